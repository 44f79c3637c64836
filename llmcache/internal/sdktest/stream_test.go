package sdktest

import (
	"context"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/nexuscore/onceq/llmcache"
)

// watch stands where an SDK stands and counts the bytes of a body that reach it.
type watch struct {
	next http.RoundTripper
	seen func(total int)
}

func (w watch) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := w.next.RoundTrip(r)
	if err == nil {
		resp.Body = &watched{ReadCloser: resp.Body, seen: w.seen}
	}
	return resp, err
}

type watched struct {
	io.ReadCloser
	seen  func(int)
	total int
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	w.total += n
	w.seen(w.total)
	return n, err
}

// TestNothingIsHeldBack: the provider sends the second half of a stream only when
// the SDK has read the first.
func TestNothingIsHeldBack(t *testing.T) {
	for _, c := range clients {
		if !c.stream {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := make(chan struct{})
			var once sync.Once
			half := len(c.answer(1)) / 2
			p := serve(t, func(n int, _ *http.Request, _ []byte) reply {
				r := c.reply(n)
				r.hold, r.holdAt = got, half
				return r
			})
			tm := newTeam(t, llmcache.NewMemoryStore())
			tm.hc.Transport = watch{tm.hc.Transport, func(total int) {
				if total >= half {
					once.Do(func() { close(got) })
				}
			}}
			ctx, cancel := context.WithTimeout(attempt(t, "run-1"), 20*time.Second)
			defer cancel()
			c.must(t, ctx, tm, p.URL)
		})
	}
}

// TestStopsEarly: a reader that goes away after the first bytes leaves nothing
// behind, and the provider's connection is closed.
func TestStopsEarly(t *testing.T) {
	for _, c := range clients {
		if !c.stream {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			never := make(chan struct{})
			half := len(c.answer(1)) / 2
			p := serve(t, func(n int, _ *http.Request, _ []byte) reply {
				r := c.reply(n)
				if n == 1 {
					r.hold, r.holdAt = never, half
				}
				return r
			})
			tm := newTeam(t, llmcache.NewMemoryStore())
			ctx, cancel := context.WithCancel(attempt(t, "run-1"))
			leaver := &http.Client{Transport: watch{tm.hc.Transport, func(total int) {
				if total > 0 {
					cancel()
				}
			}}}
			_, _ = c.ask(ctx, leaver, p.URL)
			wait, stop := context.WithTimeout(t.Context(), 20*time.Second)
			defer stop()
			if !p.awaitLeft(wait, 1) {
				t.Error("the provider's connection is still open")
			}
			before := p.count()
			want := c.must(t, attempt(t, "run-1"), tm, p.URL)
			if p.count() != before+1 {
				t.Error("half an answer was stored")
			}
			if got := c.must(t, attempt(t, "run-1"), tm, p.URL); got != want || p.count() != before+1 {
				t.Error("the whole answer is not replayed")
			}
		})
	}
}
