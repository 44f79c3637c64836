package llmcache

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/nexuscore/onceq/internal/redistest"
)

func TestEverythingElsePassesUntouched(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	var n redistest.Counter
	rdb.AddHook(&n)
	var got string
	p := &provider{answer: func(_ int64, req *http.Request, body []byte) (*http.Response, error) {
		got = fmt.Sprint(req.Method, " ", req.URL.Path, " ", string(body), " ", req.ContentLength)
		return jsonAnswer(200, "{}"), nil
	}}
	tr := open(t, rdb).Transport(p)
	for _, tc := range []struct{ method, path, body string }{
		{"GET", "/v1/models", ""},
		{"POST", "/v1/files", "x"},
		{"POST", "/v1/batches", "{}"},
		{"POST", "/v1/responses", `{"model":"m","input":"x","store":true}`},
		{"POST", "/v1/responses", `{"model":"m","input":"x","store":false,"previous_response_id":"r"}`},
		{"POST", "/v1/chat/completions", `{"model":"m","model":"m"}`},
		{"POST", "/v1/chat/completions", `not JSON`},
		{"POST", "/anything", plainChat},
	} {
		var body io.Reader
		if tc.body != "" {
			body = io.MultiReader(strings.NewReader(tc.body)) // of unknown length
		}
		req, _ := http.NewRequestWithContext(t.Context(), tc.method, "https://api.openai.com"+tc.path, body)
		req.Header.Set("Content-Type", "application/json")
		get(t, tr, req)
		if want := fmt.Sprint(tc.method, " ", tc.path, " ", tc.body, " ", req.ContentLength); got != want {
			t.Errorf("the provider got %q, want %q", got, want)
		}
	}
	if n.Commands() != 0 {
		t.Errorf("%d commands reached Redis", n.Commands())
	}
}

// A stream that is too large passes whole, in little memory, and holds up nobody.
func TestLargeStreamPasses(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	const events = 4000
	event := "data: " + repeat("x", 10_000) + "\n\n"
	p := &provider{}
	p.answer = func(_ int64, req *http.Request, _ []byte) (*http.Response, error) {
		parts := make([]any, events)
		for i := range parts {
			parts[i] = event
		}
		return p.streamAnswer(req, parts...), nil
	}
	c := open(t, rdb, WithMaxValue(100_000))
	tr := c.Transport(p)
	var wg sync.WaitGroup
	for range 3 { // two of them join the first, and are sent away when it gets too large
		wg.Go(func() {
			resp, err := tr.RoundTrip(ask(t, t.Context(), streamChat))
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = resp.Body.Close() }()
			if b, ok := resp.Body.(*liveBody); ok {
				defer func() {
					if n := cap(b.tape.buf); n > 400_000 {
						t.Errorf("%d bytes kept of a stream too large to keep", n)
					}
				}()
			}
			n, err := io.Copy(io.Discard, resp.Body)
			if err != nil || n != int64(events*len(event)) {
				t.Errorf("%d bytes, %v; want %d", n, err, events*len(event))
			}
		})
	}
	wg.Wait()
	if got := c.Stats().Stored; got != 0 {
		t.Errorf("%d stored", got)
	}
	if keys := rdb.Keys(t.Context(), "*:lease").Val(); len(keys) > 0 {
		t.Errorf("leases left: %v", keys)
	}
}

func TestCompatibleServer(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	p := &provider{answer: func(n int64, _ *http.Request, _ []byte) (*http.Response, error) { return jsonAnswer(200, chat(n)), nil }}
	tr := transport(t, open(t, rdb), p, WithCompatible("/llm/ask", OpenAIChat))
	for range 2 {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://gateway/llm/ask", strings.NewReader(plainChat))
		req.Header.Set("Content-Type", "application/json")
		get(t, tr, req)
	}
	if p.calls.Load() != 1 {
		t.Errorf("%d calls, want 1", p.calls.Load())
	}
}
