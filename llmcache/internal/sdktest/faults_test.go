package sdktest

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nexuscore/onceq/llmcache"
)

// everyByte are the clients whose answers are cut at each byte: one for each way
// of framing and of reading. Those of the others are cut at each seventh.
var everyByte = map[string]bool{
	"openai-go chat": true, "openai-go chat stream": true, "anthropic stream": true, "anthropic bedrock stream": true,
	"go-openai chat stream": true, "langchaingo ollama stream": true, "langchaingo googleai stream": true, "genai stream": true,
}

// TestCutAtEveryByte: an answer that ends too early, in order or not, is passed
// on as it is and never stored: the resumed attempt asks again.
func TestCutAtEveryByte(t *testing.T) {
	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			whole := c.answer(1)
			step := 7 // the scanners are tested at every byte of these framings where they live
			switch {
			case testing.Short():
				step = 97
			case everyByte[c.name]:
				step = 1
			}
			var cut int
			var abort bool
			p := serve(t, func(n int, _ *http.Request, _ []byte) reply {
				r := c.reply(1)
				r.cut, r.abort = cut, abort
				return r
			})
			store := llmcache.NewMemoryStore()
			tm := newTeam(t, store)
			end := len(whole)
			if strings.HasPrefix(c.media, mediaJSON) {
				end = len(strings.TrimRight(whole, "\n")) // the document is all there
			}
			for cut = 0; cut < end; cut++ {
				if cut%step != 0 && cut < end-20 {
					continue // the last bytes are where it is decided
				}
				abort = cut%2 == 0
				key := fmt.Sprintf("run-%d", cut)
				once := func() { // what the SDK makes of it is its own affair
					_, _ = c.ask(context.WithValue(attempt(t, key), noRetries{}, true), tm.hc, p.URL)
				}
				once()
				before := p.count()
				once()
				if p.count() == before {
					t.Fatalf("cut after byte %d of %d (abort %v), and replayed: %q", cut, len(whole), abort, whole[:cut])
				}
			}
			cut = -1
			want := c.must(t, attempt(t, "run"), tm, p.URL)
			before := p.count()
			if got := c.must(t, attempt(t, "run"), tm, p.URL); got != want || p.count() != before {
				t.Errorf("the whole answer is not replayed: %d calls, %q, %q", p.count()-before, clip(got), clip(want))
			}
		})
	}
}

// TestRateLimited: a 429 passes with its Retry-After, frees the lease for the
// SDK's own retry, and is not stored; the 200 that follows is.
func TestRateLimited(t *testing.T) {
	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := serve(t, func(n int, _ *http.Request, _ []byte) reply {
				if n == 1 {
					return reply{status: 429, media: mediaJSON, retryAfter: "1", cut: -1, body: `{"type":"error","error":{"type":"rate_limit_error","message":"slow down","code":429,"status":"RESOURCE_EXHAUSTED"}}`}
				}
				return c.reply(n)
			})
			tm := newTeam(t, llmcache.NewMemoryStore())
			ctx := attempt(t, "run-1")
			got, err := c.ask(ctx, tm.hc, p.URL)
			if err != nil && c.retries {
				t.Fatalf("the SDK did not get through: %v", err)
			}
			if err == nil && !c.retries {
				t.Fatalf("a 429 became %q", got)
			}
			if err != nil {
				got = c.must(t, ctx, tm, p.URL)
			}
			if p.count() != 2 {
				t.Errorf("%d calls, want 2", p.count())
			}
			if again := c.must(t, attempt(t, "run-1"), tm, p.URL); again != got || p.count() != 2 {
				t.Errorf("replayed as %q with %d calls, was %q", clip(again), p.count(), clip(got))
			}
		})
	}
}

// TestErrorInsideASuccess: a 200 that holds an error is not stored.
func TestErrorInsideASuccess(t *testing.T) {
	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := serve(t, func(int, *http.Request, []byte) reply {
				body := `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`
				switch {
				case strings.HasPrefix(c.media, "text/event-stream"):
					// Half an answer, then the error, then what would have been its end.
					end := strings.LastIndex(strings.TrimRight(c.answer(1), "\n"), "\n\n")
					if end < 0 {
						end = 0
					}
					body = c.answer(1)[:max(end, 0)] + "\n\nevent: error\ndata: " + body + "\n\n" + strings.TrimLeft(c.answer(1)[end:], "\n")
				case strings.HasSuffix(c.media, "ndjson"):
					body = `{"error":"overloaded"}` + "\n" + c.answer(1)
				case c.stream && strings.HasPrefix(c.media, mediaJSON):
					body = "[" + body + "," + c.answer(1)[1:]
				case c.stream:
					body = bedrockException(1)
				}
				return reply{media: c.media, body: body, cut: -1}
			})
			tm := newTeam(t, llmcache.NewMemoryStore())
			_, _ = c.ask(attempt(t, "run-1"), tm.hc, p.URL)
			before := p.count()
			_, _ = c.ask(attempt(t, "run-1"), tm.hc, p.URL)
			if p.count() == before {
				t.Error("stored")
			}
		})
	}
}

// TestStalled: an answer that stops halfway ends with the caller's patience, not
// later; it is not stored, and the provider sees the client go.
func TestStalled(t *testing.T) {
	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			never := make(chan struct{})
			p := serve(t, func(n int, _ *http.Request, _ []byte) reply {
				r := c.reply(n)
				if n == 1 {
					r.hold, r.holdAt = never, len(r.body)/2
				}
				return r
			})
			tm := newTeam(t, llmcache.NewMemoryStore())
			ctx, cancel := context.WithTimeout(attempt(t, "run-1"), 300*time.Millisecond)
			defer cancel()
			begun := time.Now()
			if s, err := c.ask(ctx, tm.hc, p.URL); err == nil && !strings.HasPrefix(c.name, "langchaingo") {
				t.Errorf("no error, but %q", s)
			}
			if d := time.Since(begun); d > 10*time.Second {
				t.Errorf("took %v", d)
			}
			wait, stop := context.WithTimeout(t.Context(), 20*time.Second)
			defer stop()
			if !p.awaitLeft(wait, 1) {
				t.Error("the provider's connection is still open")
			}
			before := p.count()
			c.must(t, attempt(t, "run-1"), tm, p.URL)
			if p.count() == before {
				t.Error("half an answer was stored")
			}
		})
	}
}
