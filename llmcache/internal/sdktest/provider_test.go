package sdktest

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// reply is one answer of the provider and how it travels.
type reply struct {
	status     int
	media      string
	body       string
	retryAfter string
	piece      int  // bytes per flush; 0: all at once
	cut        int  // bytes after which the answer ends; below 0: none
	abort      bool // the cut breaks the connection instead of ending the body in order
	gzip       bool
	gap        time.Duration // between pieces
	hold       chan struct{} // before the piece at holdAt is sent, this is waited for
	holdAt     int
}

// provider is the server. It answers each call by its script and remembers it.
type provider struct {
	*httptest.Server
	answer func(n int, r *http.Request, body []byte) reply

	mu    sync.Mutex
	calls []call
	left  int // calls whose client went away before the end
}

type call struct {
	path   string
	header http.Header
	body   []byte
}

// serve starts a provider that answers call n, counted from 1, with answer.
func serve(t testing.TB, answer func(n int, r *http.Request, body []byte) reply) *provider {
	t.Helper()
	p := &provider{answer: answer}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	p.mu.Lock()
	p.calls = append(p.calls, call{path: r.URL.RequestURI(), header: r.Header.Clone(), body: body})
	n := len(p.calls)
	p.mu.Unlock()
	if !p.send(w, r, p.answer(n, r, body)) {
		p.mu.Lock()
		p.left++
		p.mu.Unlock()
	}
}

// send reports false when the client went away.
func (p *provider) send(w http.ResponseWriter, r *http.Request, a reply) bool {
	body := []byte(a.body)
	if a.gzip && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		var z bytes.Buffer
		zw := gzip.NewWriter(&z)
		_, _ = zw.Write(body)
		_ = zw.Close()
		body = z.Bytes()
		w.Header().Set("Content-Encoding", "gzip")
	}
	w.Header().Set("Content-Type", a.media)
	w.Header().Set("X-Request-Id", "req_"+strconv.Itoa(time.Now().Nanosecond()))
	if a.retryAfter != "" {
		w.Header().Set("Retry-After", a.retryAfter)
	}
	cut := a.cut >= 0 && a.cut < len(body)
	if cut {
		body = body[:a.cut]
	}
	w.WriteHeader(max(a.status, 200))
	flush := http.NewResponseController(w)
	_ = flush.Flush()
	for sent := 0; sent < len(body); {
		if a.hold != nil && sent >= a.holdAt {
			select {
			case <-a.hold:
				a.hold = nil
			case <-r.Context().Done():
				return false
			}
		}
		end := len(body)
		if a.piece > 0 {
			end = min(sent+a.piece, end)
		}
		if a.hold != nil {
			end = min(end, a.holdAt)
		}
		if _, err := w.Write(body[sent:end]); err != nil {
			return false
		}
		if flush.Flush() != nil {
			return false
		}
		sent = end
		if a.gap > 0 {
			select {
			case <-time.After(a.gap):
			case <-r.Context().Done():
				return false
			}
		}
	}
	if cut && a.abort {
		panic(http.ErrAbortHandler)
	}
	return true
}

// plain sends https requests to the server without TLS. openai-go gives Azure's
// credentials to nobody over plain HTTP but a loopback address, and then calls it
// with a transport of its own.
type plain struct{ *http.Transport }

func newPlain(t testing.TB) plain {
	p := plain{http.DefaultTransport.(*http.Transport).Clone()}
	t.Cleanup(p.CloseIdleConnections)
	return p
}

func (p plain) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme == "https" {
		r = r.Clone(r.Context())
		r.URL.Scheme = "http"
	}
	return p.Transport.RoundTrip(r)
}

// clip shortens an answer for a message.
func clip(s string) string {
	if len(s) > 200 {
		return s[:100] + " ... " + s[len(s)-100:]
	}
	return s
}

func (p *provider) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.calls)
}

// awaitLeft waits until a client has gone away.
func (p *provider) awaitLeft(ctx context.Context, n int) bool {
	for {
		p.mu.Lock()
		left := p.left
		p.mu.Unlock()
		if left >= n {
			return true
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return false
		}
	}
}
