package llmcache

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
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
