package llmcache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// provider is a base transport that stands for a provider and counts its calls.
// It needs no sockets, so it works in a bubble.
type provider struct {
	calls     atomic.Int64
	cancelled atomic.Int64 // calls whose context ended before their body did
	answer    func(n int64, req *http.Request, body []byte) (*http.Response, error)
}

func (p *provider) RoundTrip(req *http.Request) (*http.Response, error) {
	n := p.calls.Add(1)
	var body []byte
	if req.Body != nil {
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
		_ = req.Body.Close()
	}
	resp, err := p.answer(n, req, body)
	if err != nil {
		return nil, err
	}
	resp.Request = req
	if resp.Header == nil {
		resp.Header = http.Header{}
	}
	return resp, nil
}

// pieces is a body that comes in these pieces. A function among them is run
// instead: to wait, or to end the body with an error.
func (p *provider) pieces(ctx context.Context, parts ...any) io.ReadCloser {
	r, w := io.Pipe()
	stop := context.AfterFunc(ctx, func() { _ = w.CloseWithError(ctx.Err()) })
	go func() {
		defer stop()
		defer func() {
			if ctx.Err() != nil {
				p.cancelled.Add(1)
			}
		}()
		for _, part := range parts {
			switch part := part.(type) {
			case string:
				if _, err := io.WriteString(w, part); err != nil {
					return
				}
			case func(context.Context) error:
				if err := part(ctx); err != nil {
					_ = w.CloseWithError(err)
					return
				}
			}
		}
		_ = w.Close()
	}()
	return r
}

func jsonAnswer(status int, body string) *http.Response {
	return &http.Response{
		StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
	}
}

func (p *provider) streamAnswer(req *http.Request, parts ...any) *http.Response {
	return &http.Response{
		StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}},
		Body: p.pieces(req.Context(), parts...), ContentLength: -1,
	}
}

const chatURL = "https://api.openai.com/v1/chat/completions"

func chat(n int64) string {
	return fmt.Sprintf(`{"id":"c%d","object":"chat.completion","model":"gpt-x-2026","choices":[{"index":0,"message":{"role":"assistant","content":"answer %d <é>"},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,"prompt_tokens_details":{"cached_tokens":4}}}`, n, n)
}

// events are a whole streamed answer, in the pieces a server flushes.
func events(n int64) []any {
	return []any{
		fmt.Sprintf("data: {\"id\":\"s%d\",\"model\":\"gpt-x-2026\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hel\"},\"finish_reason\":null}]}\n\n", n),
		"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"lo\"},\"finish_reason\":null}]}\n\n",
		"data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
		"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":5,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n",
		"data: [DONE]\n\n",
	}
}

func joined(parts []any) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.(string))
	}
	return b.String()
}

func ask(t testing.TB, ctx context.Context, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, chatURL, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer sk-secret-key")
	return req
}

const (
	plainChat  = `{"model":"gpt-x","messages":[{"role":"user","content":"hi"}]}`
	streamChat = `{"model":"gpt-x","stream":true,"messages":[{"role":"user","content":"hi"}]}`
)

// transport is NewTransport with options that are right.
func transport(t testing.TB, c *Cache, base http.RoundTripper, opts ...TransportOption) *Transport {
	t.Helper()
	tr, err := c.NewTransport(base, opts...)
	if err != nil {
		t.Fatalf("NewTransport: %v", err)
	}
	return tr
}

// get sends a request and reads the answer to its end, piece by piece.
func get(t testing.TB, rt http.RoundTripper, req *http.Request) (*http.Response, []string) {
	t.Helper()
	resp, err := rt.RoundTrip(req)
	if err != nil {
		t.Fatalf("RoundTrip: %v", err)
	}
	pieces, err := readPieces(resp.Body)
	if err != nil {
		t.Fatalf("read body: %v", err)
	}
	_ = resp.Body.Close()
	return resp, pieces
}

func readPieces(r io.Reader) (pieces []string, err error) {
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			pieces = append(pieces, string(buf[:n]))
		}
		if err == io.EOF {
			return pieces, nil
		}
		if err != nil {
			return pieces, err
		}
	}
}

var errCut = errors.New("connection reset")

func fails(err error) func(context.Context) error {
	return func(context.Context) error { return err }
}

// until is a piece that comes when c is closed.
func until(c <-chan struct{}) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-c:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func after(d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		if !pause(ctx, d) {
			return ctx.Err()
		}
		return nil
	}
}

func repeat(s string, n int) string { return string(bytes.Repeat([]byte(s), n)) }
