package llmcache

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nexuscore/onceq/internal/redistest"
)

func TestReplayOfAnAnswerInOnePiece(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	p := &provider{answer: func(n int64, req *http.Request, body []byte) (*http.Response, error) {
		if string(body) != plainChat || req.ContentLength != int64(len(plainChat)) || req.Header.Get("Authorization") != "Bearer sk-secret-key" {
			t.Errorf("the provider got %q (%d), %v", body, req.ContentLength, req.Header)
		}
		resp := jsonAnswer(200, chat(n))
		resp.Header.Set("X-Request-Id", "req-1")
		resp.Header.Set("X-Ratelimit-Remaining-Requests", "7")
		resp.Header.Set("Set-Cookie", "a=b")
		return resp, nil
	}}
	tr := open(t, rdb).Transport(p)
	first, got := get(t, tr, ask(t, t.Context(), plainChat))
	if strings.Join(got, "") != chat(1) || first.Header.Get("Set-Cookie") != "a=b" || first.Header.Get(ReplayedHeader) != "" {
		t.Errorf("first: %q, %v; want the provider's answer untouched", got, first.Header)
	}
	// Another order of members, other white space, other volatile headers: the same call.
	req := ask(t, t.Context(), ` {"messages":[{"content":"hi","role":"user"}], "model":"gpt-x"}`)
	req.Header.Set("X-Stainless-Retry-Count", "1")
	req.Header.Set("Traceparent", "00-1-2-03")
	again, got := get(t, tr, req)
	if strings.Join(got, "") != chat(1) || again.StatusCode != 200 || again.Status != "200 OK" ||
		again.Header.Get("Content-Type") != "application/json" || again.Header.Get("X-Request-Id") != "req-1" ||
		again.Header.Get(ReplayedHeader) != "1" || again.ContentLength != int64(len(chat(1))) || again.Request != req {
		t.Errorf("replay: %q, %+v", got, again)
	}
	for _, gone := range []string{"Set-Cookie", "X-Ratelimit-Remaining-Requests"} {
		if again.Header.Get(gone) != "" {
			t.Errorf("replayed %s", gone)
		}
	}
	if p.calls.Load() != 1 {
		t.Errorf("%d calls, want 1", p.calls.Load())
	}
}

// M8: byte for byte, in the recorded pieces, and the first byte is not held back.
func TestReplayOfAStream(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	more := make(chan struct{})
	p := &provider{}
	p.answer = func(n int64, req *http.Request, _ []byte) (*http.Response, error) {
		parts := slices.Insert(events(n), 1, any(until(more)))
		parts = append(parts, "\n") // bytes after the last event belong to the answer
		return p.streamAnswer(req, parts...), nil
	}
	c := open(t, rdb, WithPrices(Prices{"gpt-x": {Input: 1_000_000, Output: 2_000_000, Cached: 0}}))
	tr := c.Transport(p)
	ctx, _ := attempt(t, t.Context(), "run", "p")
	resp, err := tr.RoundTrip(ask(t, ctx, streamChat))
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := resp.Body.Read(buf) // hangs if the first byte waits for the rest
	if err != nil || string(buf[:n]) != events(1)[0] {
		t.Fatalf("first read: %q, %v", buf[:n], err)
	}
	close(more)
	rest, err := readPieces(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	live := append([]string{string(buf[:n])}, rest...)
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	if strings.Join(live, "") != joined(events(1))+"\n" || len(live) != 6 {
		t.Errorf("live: %q", live)
	}
	ctx, _ = attempt(t, t.Context(), "run", "p")
	again, replayed := get(t, tr, ask(t, ctx, streamChat))
	if !slices.Equal(replayed, live) || again.ContentLength != -1 || again.Header.Get("Content-Type") != "text/event-stream; charset=utf-8" {
		t.Errorf("replay: %q, %+v; want the same pieces %q", replayed, again, live)
	}
	if p.calls.Load() != 1 {
		t.Errorf("%d calls, want 1", p.calls.Load())
	}
	sum := Sum{Calls: 1, InputTokens: 10, OutputTokens: 5, CachedTokens: 4, CostMicros: 6 + 10}
	same(t, "ledger", account(t, c, "run"), Account{Paid: sum, Saved: sum})
}

func TestStreamFlagAndOthersMakeOtherCalls(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	p := &provider{}
	p.answer = func(n int64, req *http.Request, body []byte) (*http.Response, error) {
		if bytes.Contains(body, []byte(`"stream":true`)) {
			return p.streamAnswer(req, events(n)...), nil
		}
		return jsonAnswer(200, chat(n)), nil
	}
	tr := transport(t, open(t, rdb), p, WithKeyHeaders("X-Experiment"))
	requests := map[string]*http.Request{}
	for name, body := range map[string]string{
		"plain": plainChat, "stream": streamChat,
		"max_tokens": `{"model":"gpt-x","messages":[{"role":"user","content":"hi"}],"max_tokens":16}`,
		"unknown":    `{"model":"gpt-x","messages":[{"role":"user","content":"hi"}],"unknown":1}`,
	} {
		requests[name] = ask(t, t.Context(), body)
	}
	requests["query"] = ask(t, t.Context(), plainChat)
	requests["query"].URL.RawQuery = "api-version=2"
	requests["host header"] = ask(t, t.Context(), plainChat)
	requests["host header"].Header.Set("X-Experiment", "b")
	requests["another key"] = ask(t, t.Context(), plainChat) // M7
	requests["another key"].Header.Set("Authorization", "Bearer sk-other-key")
	requests["tenant"] = ask(t, With(t.Context(), Tenant("acme")), plainChat)
	for name, req := range requests {
		before := p.calls.Load()
		get(t, tr, req)
		if p.calls.Load() != before+1 {
			t.Errorf("%s: answered by another call's answer", name)
		}
	}
	for _, k := range rdb.Keys(t.Context(), "*").Val() {
		dump, _ := rdb.Dump(t.Context(), k).Result()
		if strings.Contains(k+dump, "sk-") {
			t.Errorf("a credential is in Redis at %s", k) // M7
		}
	}
}

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

// M2: also when all of it has arrived already.
func TestReaderThatStopsLeavesNothing(t *testing.T) {
	for name, slow := range map[string]bool{"slow provider": true, "fast provider": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, rdb := redistest.Bubble(t)
				p := &provider{}
				p.answer = func(n int64, req *http.Request, _ []byte) (*http.Response, error) {
					if slow {
						return p.streamAnswer(req, slices.Insert(events(n), 2, any(after(time.Hour)))...), nil
					}
					return p.streamAnswer(req, joined(events(n))), nil
				}
				c := open(t, rdb)
				tr := c.Transport(p)
				ctx, _ := attempt(t, t.Context(), "run", "p")
				resp, err := tr.RoundTrip(ask(t, ctx, streamChat))
				if err != nil {
					t.Fatal(err)
				}
				buf := make([]byte, 4096)
				for i := range 2 {
					n, err := resp.Body.Read(buf)
					if err != nil || string(buf[:n]) != events(1)[i] {
						t.Fatalf("event %d: %q, %v", i, buf[:n], err)
					}
				}
				synctest.Wait()
				if err := resp.Body.Close(); err != nil {
					t.Fatal(err)
				}
				if n, err := resp.Body.Read(buf); n != 0 || err == nil {
					t.Errorf("read after Close: %d, %v", n, err)
				}
				synctest.Wait()
				if slow && p.cancelled.Load() != 1 {
					t.Error("the provider was not told")
				}
				a := account(t, c, "run")
				if c.Stats().Stored != 0 || a.Wasted.Calls != 1 || a.Paid.Calls != 0 || len(a.Open) != 0 {
					t.Errorf("%+v, account %+v; want nothing stored, one wasted", c.Stats(), a)
				}
				// The same call again has the same place in the run.
				if !slow {
					get(t, tr, ask(t, ctx, streamChat))
					ctx, _ = attempt(t, t.Context(), "run", "p")
					_, got := get(t, tr, ask(t, ctx, streamChat))
					if strings.Join(got, "") != joined(events(2)) || p.calls.Load() != 2 {
						t.Errorf("resumed: %q after %d calls", got, p.calls.Load())
					}
				}
			})
		})
	}
}

// Clients stop at the last event, before the end of the body, and some never close.
func TestReaderThatStopsAtTheLastEvent(t *testing.T) {
	for _, closes := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			_, rdb := redistest.Bubble(t)
			p := &provider{}
			p.answer = func(n int64, req *http.Request, _ []byte) (*http.Response, error) {
				return p.streamAnswer(req, append(events(n), after(time.Hour))...), nil // the connection stays open
			}
			c := open(t, rdb)
			tr := c.Transport(p)
			resp, err := tr.RoundTrip(ask(t, t.Context(), streamChat))
			if err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 4096)
			for range events(1) {
				if _, err := resp.Body.Read(buf); err != nil {
					t.Fatal(err)
				}
			}
			if closes {
				_ = resp.Body.Close()
			} else {
				time.Sleep(time.Second)
			}
			if c.Stats().Stored != 1 {
				t.Errorf("closes %v: %+v, want the answer stored", closes, c.Stats())
			}
			_, got := get(t, tr, ask(t, t.Context(), streamChat))
			if strings.Join(got, "") != joined(events(1)) {
				t.Errorf("replay: %q", got)
			}
		})
	}
}

// A reader that goes away without closing does not hold its place for ever.
func TestForgottenBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Bubble(t)
		p := &provider{}
		p.answer = func(n int64, req *http.Request, _ []byte) (*http.Response, error) {
			return p.streamAnswer(req, events(n)...), nil
		}
		c := open(t, rdb)
		resp, err := c.Transport(p).RoundTrip(ask(t, t.Context(), streamChat))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if got := c.Stats(); got.Stored != 1 {
			t.Errorf("%+v, want the whole answer stored after a while", got)
		}
		_ = resp.Body.Close()
	})
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

// M15: a provider that compresses, over real HTTP.
func TestGzip(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	calls := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		w.Header().Set("Content-Type", "application/json")
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			t.Error("compression was not asked for")
		}
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, chat(1))
		_ = z.Close()
	}))
	defer srv.Close()
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	client := &http.Client{Transport: open(t, rdb).Transport(base)}
	for range 2 {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/v1/chat/completions", strings.NewReader(plainChat))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept-Encoding", "gzip, br") // a client that wants to undo it itself
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || string(body) != chat(1) || resp.Header.Get("Content-Encoding") != "" || resp.Header.Get("Transfer-Encoding") != "" {
			t.Errorf("%q, %v, %v", body, err, resp.Header)
		}
	}
	if calls != 1 {
		t.Errorf("%d calls, want 1", calls)
	}
}

// M16: the same audio file under another multipart boundary.
func TestMultipartBoundaryDoesNotCount(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	p := &provider{answer: func(int64, *http.Request, []byte) (*http.Response, error) {
		return jsonAnswer(200, `{"text":"hello"}`), nil
	}}
	tr := open(t, rdb).Transport(p)
	send := func(boundary, audio string) {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		_ = w.SetBoundary(boundary)
		_ = w.WriteField("model", "whisper-1")
		f, _ := w.CreateFormFile("file", "a.mp3")
		_, _ = io.WriteString(f, audio)
		_ = w.Close()
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.openai.com/v1/audio/transcriptions", &b)
		req.Header.Set("Content-Type", w.FormDataContentType())
		if _, got := get(t, tr, req); strings.Join(got, "") != `{"text":"hello"}` {
			t.Errorf("got %q", got)
		}
	}
	send("one", "RIFF\x00\x01")
	send("two", "RIFF\x00\x01")
	send("two", "RIFF\x00\x02")
	if p.calls.Load() != 2 {
		t.Errorf("%d calls, want 2", p.calls.Load())
	}
}

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

// M10 with streams: two processes, one of which waits for the other.
func TestColdCrowdMakesOneStreamedCall(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	more := make(chan struct{})
	started := make(chan struct{}, 100)
	p := &provider{}
	p.answer = func(n int64, req *http.Request, _ []byte) (*http.Response, error) {
		started <- struct{}{}
		return p.streamAnswer(req, slices.Insert(events(n), 2, any(until(more)))...), nil
	}
	var wg sync.WaitGroup
	for range 2 {
		tr := open(t, server.Client()).Transport(p)
		for range 50 {
			wg.Go(func() {
				if _, got := get(t, tr, ask(t, t.Context(), streamChat)); strings.Join(got, "") != joined(events(1)) {
					t.Errorf("got %q", got)
				}
			})
		}
	}
	<-started
	time.AfterFunc(300*time.Millisecond, func() { close(more) }) // let the other process find the lease
	wg.Wait()
	if n := p.calls.Load(); n != 1 {
		t.Errorf("%d calls, want 1", n)
	}
}

// M11: the caller that reads the stream goes away; those who joined get all of it.
func TestFollowersOfAStreamSurviveItsReader(t *testing.T) {
	for _, how := range []string{"close", "cancel", "cancel before the answer"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, rdb := redistest.Bubble(t)
				more := make(chan struct{})
				p := &provider{}
				p.answer = func(n int64, req *http.Request, _ []byte) (*http.Response, error) {
					if how == "cancel before the answer" {
						if err := until(more)(req.Context()); err != nil {
							return nil, err
						}
					}
					return p.streamAnswer(req, slices.Insert(events(n), 1, any(until(more)))...), nil
				}
				c := open(t, rdb)
				tr := c.Transport(p)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var leader *http.Response
				var wg sync.WaitGroup
				wg.Go(func() {
					var err error
					leader, err = tr.RoundTrip(ask(t, ctx, streamChat))
					if (err != nil) != (how == "cancel before the answer") {
						t.Errorf("leader: %v", err)
					}
				})
				synctest.Wait()
				for range 5 {
					wg.Go(func() {
						if _, got := get(t, tr, ask(t, t.Context(), streamChat)); strings.Join(got, "") != joined(events(1)) {
							t.Errorf("follower got %q", got)
						}
					})
				}
				synctest.Wait()
				if how == "close" {
					_ = leader.Body.Close()
				} else {
					cancel()
				}
				synctest.Wait()
				close(more)
				wg.Wait()
				if p.calls.Load() != 1 || c.Stats().Stored != 1 || c.Stats().Joined != 5 {
					t.Errorf("%d calls, %+v", p.calls.Load(), c.Stats())
				}
			})
		})
	}
}

func TestCancelledReaderIsUnblocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Bubble(t)
		p := &provider{}
		p.answer = func(n int64, req *http.Request, _ []byte) (*http.Response, error) {
			return p.streamAnswer(req, events(n)[0], after(time.Hour)), nil
		}
		tr := open(t, rdb).Transport(p)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		resp, err := tr.RoundTrip(ask(t, ctx, streamChat))
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if _, err := io.ReadAll(resp.Body); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 5*time.Second {
			t.Errorf("%v after %v, want the deadline's error in time", err, time.Since(begin))
		}
		synctest.Wait()
		if p.cancelled.Load() != 1 {
			t.Error("the provider was not told")
		}
	})
}

func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Bubble(t)
		p := &provider{}
		p.answer = func(n int64, req *http.Request, _ []byte) (*http.Response, error) {
			parts := []any{}
			for _, e := range events(n) {
				parts = append(parts, after(100*time.Millisecond), e)
			}
			return p.streamAnswer(req, parts...), nil
		}
		c := open(t, rdb)
		for _, tc := range []struct {
			tr   *Transport
			want time.Duration
		}{
			{c.Transport(p), 500 * time.Millisecond},
			{c.Transport(p), 0},
			{transport(t, c, p, WithPace()), 500 * time.Millisecond},
		} {
			begin := time.Now()
			get(t, tc.tr, ask(t, t.Context(), streamChat))
			if took := time.Since(begin); took != tc.want {
				t.Errorf("took %v, want %v", took, tc.want)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
		defer cancel()
		resp, err := transport(t, c, p, WithPace()).RoundTrip(ask(t, ctx, streamChat))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(resp.Body); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want the deadline's error", err)
		}
	})
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

func TestSealedAnswersCannotBeRead(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	p := &provider{answer: func(n int64, _ *http.Request, _ []byte) (*http.Response, error) { return jsonAnswer(200, chat(n)), nil }}
	tr := open(t, rdb, WithSealer(seals(t)), WithCompressAbove(-1)).Transport(p)
	for range 2 {
		if _, got := get(t, tr, ask(t, t.Context(), plainChat)); strings.Join(got, "") != chat(1) {
			t.Errorf("got %q", got)
		}
	}
	for _, k := range rdb.Keys(t.Context(), "onceq:llm:*").Val() {
		if rdb.Type(t.Context(), k).Val() == "hash" {
			for _, v := range rdb.HGetAll(t.Context(), k).Val() {
				if strings.Contains(v, "answer 1") {
					t.Errorf("the answer can be read at %s", k)
				}
			}
		}
	}
}
