package llmcache

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/nexuscore/onceq/internal/redistest"
)

// M1, and a connection that breaks at every single byte.
func TestCutStreamIsNotStored(t *testing.T) {
	t.Parallel()
	c := open(t, nil, WithStore(NewMemoryStore()))
	all := joined(events(1))
	done := strings.Index(all, "[DONE]") + len("[DONE]")
	for at := range all {
		for _, end := range []error{io.EOF, errCut} {
			p := &provider{}
			p.answer = func(_ int64, req *http.Request, _ []byte) (*http.Response, error) {
				return p.streamAnswer(req, all[:at], fails(end)), nil
			}
			tr := c.Transport(p)
			body := strings.Replace(streamChat, "hi", fmt.Sprint(at, end), 1)
			for range 2 {
				resp, err := tr.RoundTrip(ask(t, t.Context(), body))
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(resp.Body)
				want := end
				if end == io.EOF {
					want = nil
				}
				if string(got) != all[:at] || err != want {
					t.Fatalf("cut at %d: %q, %v; want what came and %v", at, got, err, want)
				}
				_ = resp.Body.Close()
			}
			if want := int64(2); p.calls.Load() != want && (at < done || end == errCut) {
				t.Errorf("cut at byte %d with %v: %d calls, want %d", at, end, p.calls.Load(), want)
			}
		}
	}
	if got := c.Stats(); got.Failed < int64(4*done) {
		t.Errorf("%+v, want at least %d failed", got, 4*done)
	}
}

// M3, M4 and their kind, in one piece.
func TestOnlyWholeSuccessesAreStored(t *testing.T) {
	t.Parallel()
	length := strings.Replace(chat(1), `"finish_reason":"stop"`, `"finish_reason":"length"`, 1)
	for _, tc := range []struct {
		name, body     string
		shared, stored bool
	}{
		{"whole", chat(1), true, true},
		{"length, shared", length, true, false},
		{"length, run", length, false, true},
		{"error object", `{"error":{"message":"overloaded"}}`, true, false},
		{"cut JSON", chat(1)[:100], true, false},
		{"empty", "", true, false},
		{"null", "null", true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, rdb := redistest.Mini(t)
			p := &provider{answer: func(int64, *http.Request, []byte) (*http.Response, error) { return jsonAnswer(200, tc.body), nil }}
			c := open(t, rdb)
			tr := c.Transport(p)
			for range 2 {
				ctx := t.Context()
				if !tc.shared {
					ctx, _ = attempt(t, ctx, "run", "p")
				}
				if _, got := get(t, tr, ask(t, ctx, plainChat)); strings.Join(got, "") != tc.body {
					t.Errorf("got %q, want %q", got, tc.body)
				}
			}
			want := int64(2)
			if tc.stored {
				want = 1
			}
			if p.calls.Load() != want {
				t.Errorf("%d calls, want %d", p.calls.Load(), want)
			}
		})
	}
}

// M14: errors come back as they are, free the place, and the retry has the same one.
func TestErrorsPassUnchanged(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	p := &provider{answer: func(n int64, _ *http.Request, _ []byte) (*http.Response, error) {
		switch n {
		case 1:
			resp := jsonAnswer(429, `{"error":{"message":"slow down"}}`)
			resp.Header.Set("Retry-After", "7")
			return resp, nil
		case 2:
			return jsonAnswer(503, repeat("x", maxFailure+10)), nil
		case 3:
			return nil, errCut
		}
		return jsonAnswer(200, chat(n)), nil
	}}
	c := open(t, rdb)
	tr := c.Transport(p)
	ctx, _ := attempt(t, t.Context(), "run", "p")
	resp, got := get(t, tr, ask(t, ctx, plainChat))
	if resp.StatusCode != 429 || resp.Header.Get("Retry-After") != "7" || strings.Join(got, "") != `{"error":{"message":"slow down"}}` ||
		len(resp.Header) != 2 {
		t.Errorf("429: %+v %q", resp, got)
	}
	resp, got = get(t, tr, ask(t, ctx, plainChat))
	if resp.StatusCode != 503 || len(strings.Join(got, "")) != maxFailure+10 {
		t.Errorf("503: %+v", resp)
	}
	if _, err := tr.RoundTrip(ask(t, ctx, plainChat)); err != errCut {
		t.Errorf("a broken connection: %v, want the error itself", err)
	}
	if keys := rdb.Keys(t.Context(), "*:lease").Val(); len(keys) > 0 {
		t.Errorf("leases left: %v", keys)
	}
	_, got = get(t, tr, ask(t, ctx, plainChat))
	ctx, _ = attempt(t, t.Context(), "run", "p")
	_, again := get(t, tr, ask(t, ctx, plainChat))
	if strings.Join(got, "") != chat(4) || strings.Join(again, "") != chat(4) || p.calls.Load() != 4 {
		t.Errorf("after the errors: %q, replay %q, %d calls", got, again, p.calls.Load())
	}
}

func TestUnreachableProviderCostsNothing(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	c := open(t, rdb)
	refused := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	tr := c.Transport(&provider{answer: func(int64, *http.Request, []byte) (*http.Response, error) { return nil, refused }})
	ctx, _ := attempt(t, t.Context(), "run", "p")
	if _, err := tr.RoundTrip(ask(t, ctx, plainChat)); err != refused {
		t.Errorf("%v, want the dial error", err)
	}
	same(t, "account", account(t, c, "run"), Account{})
}

func TestBudgetReachesTheCaller(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	p := &provider{answer: func(n int64, _ *http.Request, _ []byte) (*http.Response, error) { return jsonAnswer(200, chat(n)), nil }}
	client := &http.Client{Transport: open(t, rdb, WithBudget(Budget{Tokens: 20})).Transport(p)}
	ctx, _ := attempt(t, t.Context(), "run", "p")
	resp, err := client.Do(ask(t, ctx, plainChat))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	_, err = client.Do(ask(t, ctx, plainChat))
	var permanent interface{ Permanent() bool }
	if !errors.Is(err, ErrBudget) || !errors.As(err, &permanent) || !permanent.Permanent() || p.calls.Load() != 1 {
		t.Errorf("client.Do = %v after %d calls, want a permanent budget error", err, p.calls.Load())
	}
}
