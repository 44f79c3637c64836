package modelserver

import (
	"context"
	"errors"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// streamText reads a stream to its end.
func streamText(ctx context.Context, c openai.Client, p openai.ChatCompletionNewParams) (text, finish string, err error) {
	st := c.Chat.Completions.NewStreaming(ctx, p)
	defer st.Close()
	for st.Next() {
		for _, ch := range st.Current().Choices {
			text += ch.Delta.Content
			finish += ch.FinishReason
		}
	}
	return text, finish, st.Err()
}

func TestRateLimitThenSuccess(t *testing.T) {
	s, c := start(t, WithFault(1, RateLimit(1500*time.Millisecond)))
	_, err := c.Chat.Completions.New(t.Context(), ask("context", "context", goal))
	e, ok := errors.AsType[*openai.Error](err)
	if !ok || e.StatusCode != 429 || e.Response.Header.Get("Retry-After") != "2" {
		t.Fatalf("got %v, want 429 with Retry-After 2", err)
	}
	if _, err := c.Chat.Completions.New(t.Context(), ask("context", "context", goal)); err != nil {
		t.Fatal(err)
	}
	if got := s.Summary(); got.Calls != 2 || got.Refused != 1 || got.Paid != 1 || got.Repeated != 0 {
		t.Errorf("summary %+v", got)
	}
}

func TestErrorIsRetriedBySDK(t *testing.T) {
	s, c := start(t)
	if err := s.Fail(1, Error(503).In("planning", "")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Chat.Completions.New(t.Context(), ask("context", "context", goal)); err != nil {
		t.Errorf("another phase: %v", err)
	}
	fast := option.WithMaxRetryDelay(time.Millisecond)
	if _, err := c.Chat.Completions.New(t.Context(), ask("planning", "risks", goal), option.WithMaxRetries(1), fast); err != nil {
		t.Error(err)
	}
	calls := s.Calls()
	if len(calls) != 3 || calls[1].Status != 503 || calls[1].Fault != "error" || calls[2].Retry != "1" || calls[1].Hash != calls[2].Hash {
		t.Errorf("calls %+v", calls)
	}
}

func TestCutIsAnErrorAndTruncateIsNot(t *testing.T) {
	s, c := start(t)
	if err := s.Fail(1, CutAfter(2000)); err != nil {
		t.Fatal(err)
	}
	text, finish, err := streamText(t.Context(), c, ask("implementation", "code", goal))
	if err == nil || text == "" || finish != "" {
		t.Errorf("cut: %d bytes, finish %q, %v; want a part and an error", len(text), finish, err)
	}
	if err := s.Fail(1, TruncateAfter(2000)); err != nil {
		t.Fatal(err)
	}
	text, finish, err = streamText(t.Context(), c, ask("implementation", "code", goal))
	if err != nil || text == "" || finish != "" {
		t.Errorf("truncate: %d bytes, finish %q, %v; want a part and no error", len(text), finish, err)
	}
	if err := s.Fail(1, CutAfter(10)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Chat.Completions.New(t.Context(), ask("context", "context", goal)); err == nil {
		t.Error("cut, not streamed: no error")
	}
	if got := s.Summary(); got.Interrupted != 3 || got.Paid != 3 || got.Repeated != 0 {
		t.Errorf("summary %+v", got)
	}
}

func TestDrop(t *testing.T) {
	s, c := start(t, WithFault(1, Drop()))
	if _, err := c.Chat.Completions.New(t.Context(), ask("context", "context", goal)); err == nil {
		t.Error("no error")
	}
	if got, err := s.Await(t.Context(), func(c Call) bool { return c.Outcome != Open }); err != nil || got.Outcome != Cut || got.Status != 0 {
		t.Errorf("call %+v, %v", got, err)
	}
}

func TestHangUntilReleased(t *testing.T) {
	s, c := start(t, WithFault(1, Hang().In("implementation", "tests")))
	errc := make(chan error, 1)
	go func() {
		_, err := c.Chat.Completions.New(t.Context(), ask("implementation", "tests", goal))
		errc <- err
	}()
	open := func(c Call) bool { return c.Task == "tests" && c.Outcome == Open }
	if _, err := s.Await(t.Context(), open); err != nil {
		t.Fatal(err)
	}
	s.Release()
	if err := <-errc; err != nil {
		t.Error(err)
	}
}

func TestClientThatLeaves(t *testing.T) {
	s, c := start(t, WithFault(1, Hang()))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = s.Await(ctx, func(c Call) bool { return c.Outcome == Open })
		cancel()
	}()
	if _, err := c.Chat.Completions.New(ctx, ask("context", "context", goal)); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if _, err := s.Await(t.Context(), func(c Call) bool { return c.Outcome == Left }); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Chat.Completions.New(t.Context(), ask("context", "context", goal)); err != nil {
		t.Fatal(err)
	}
	// Only a completed answer makes the next equal call a repeat.
	if got := s.Summary(); got.Paid != 2 || got.Interrupted != 1 || got.Repeated != 0 {
		t.Errorf("summary %+v", got)
	}
}

func TestReaderThatStopsEarly(t *testing.T) {
	s, c := start(t, WithLatency(0, 2*time.Millisecond))
	st := c.Chat.Completions.NewStreaming(t.Context(), ask("implementation", "code", goal))
	for range 3 {
		st.Next()
	}
	st.Close()
	got, err := s.Await(t.Context(), func(c Call) bool { return c.Outcome != Open })
	if err != nil || got.Outcome != Left {
		t.Errorf("call %+v, %v; want left", got, err)
	}
}

func TestLatencyByTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(WithLatency(time.Second, time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		body := `{"model":"m","stream":true,"max_tokens":10,"messages":[{"role":"system","content":"task: context"}]}`
		began := time.Now()
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(body)))
		// the role, two deltas for 40 bytes, the end
		if got, want := time.Since(began), time.Second+4*time.Minute; got != want {
			t.Errorf("took %v, want %v: %s", got, want, w.Body)
		}
		if !strings.HasSuffix(w.Body.String(), "data: [DONE]\n\n") {
			t.Errorf("body %s", w.Body)
		}
	})
}

func TestAdmin(t *testing.T) {
	s, c := start(t)
	do := func(method, path, body string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.Addr()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		return r.StatusCode, string(b)
	}
	defer http.DefaultClient.CloseIdleConnections()
	for _, x := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{"POST", "/_faults", `{"kind":"error","status":418,"n":1}`, 204, ""},
		{"POST", "/_faults", `{"kind":"smoke"}`, 400, "allowed are rate_limit"},
		{"POST", "/_faults", `{"kind":"hang","extra":1}`, 400, "extra"},
		{"POST", "/_latency", `{"call_ms":-5}`, 400, "latency per call"},
		{"POST", "/_latency", `{"chunk_ms":9223372036854775807}`, 400, "latency per chunk"},
		{"POST", "/_latency", `{"call_ms":0}`, 204, ""},
		{"POST", "/_release", "", 204, ""},
	} {
		if status, body := do(x.method, x.path, x.body); status != x.status || !strings.Contains(body, x.says) {
			t.Errorf("%s %s %s: %d %s", x.method, x.path, x.body, status, body)
		}
	}
	if _, err := c.Chat.Completions.New(t.Context(), ask("context", "context", goal)); err == nil {
		t.Error("the fault did not happen")
	}
	if status, body := do("GET", "/_calls", ""); status != 200 || !strings.Contains(body, `"refused":1`) || !strings.Contains(body, `"status":418`) {
		t.Errorf("calls: %d %s", status, body)
	}
	do("POST", "/_faults", `{"kind":"error"}`)
	do("DELETE", "/_faults", "")
	if _, err := c.Chat.Completions.New(t.Context(), ask("context", "context", goal)); err != nil {
		t.Errorf("after healing: %v", err)
	}
	do("DELETE", "/_calls", "")
	if got := s.Summary(); got != (Summary{}) {
		t.Errorf("after reset: %+v", got)
	}
}

func TestFullRecordRefuses(t *testing.T) {
	s, c := start(t)
	s.mu.Lock()
	s.calls = make([]Call, maxCalls)
	s.mu.Unlock()
	_, err := c.Chat.Completions.New(t.Context(), ask("context", "context", goal))
	if e, ok := errors.AsType[*openai.Error](err); !ok || e.StatusCode != 503 || !strings.Contains(e.Message, "record is full") {
		t.Errorf("got %v", err)
	}
}

func TestFlags(t *testing.T) {
	fs := flag.NewFlagSet("worker", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	f := RegisterFlags(fs)
	args := []string{"-model-latency", "1ms", "-model-samples", "-model-fail", "rate_limit:2s@planning/risks*3", "-model-fail", "cut:5"}
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	s, err := New(f.Options()...)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	want := planned{3, RateLimit(2*time.Second).In("planning", "risks")}
	if s.latency.call != time.Millisecond || !s.samples || len(s.faults) != 2 || s.faults[0] != want || s.faults[1] != (planned{1, CutAfter(5)}) {
		t.Errorf("server %+v", s.faults)
	}
	for _, bad := range []string{"", "smoke", "cut:x", "hang:5", "error:99", "drop*x", "drop*0"} {
		if err := fs.Parse([]string{"-model-fail", bad}); err == nil {
			t.Errorf("-model-fail %q was taken", bad)
		}
	}
}

// stuckWriter takes nothing until it is let go.
type stuckWriter struct {
	http.ResponseWriter
	free chan struct{}
}

func (w stuckWriter) Write(p []byte) (int, error) {
	<-w.free
	return len(p), nil
}

func TestCloseWaitsForHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New()
		if err != nil {
			t.Fatal(err)
		}
		w := stuckWriter{httptest.NewRecorder(), make(chan struct{})}
		go s.ServeHTTP(w, httptest.NewRequest("GET", "/v1/models", nil))
		synctest.Wait()
		closed := false
		go func() {
			_ = s.Close()
			closed = true
		}()
		synctest.Wait()
		if closed {
			t.Error("closed while a handler was at work")
		}
		close(w.free)
		synctest.Wait()
		if !closed {
			t.Error("not closed after the last handler")
		}
	})
}

// leavingWriter is a client that is gone once it has read the reason why the
// text ended, before [DONE]. The writes still succeed, into a buffer.
type leavingWriter struct {
	*httptest.ResponseRecorder
	leave context.CancelFunc
}

func (w leavingWriter) Write(p []byte) (int, error) {
	if strings.Contains(string(p), `"finish_reason":"stop"`) {
		w.leave()
	}
	return w.ResponseRecorder.Write(p)
}

func TestClientThatLeavesBeforeDone(t *testing.T) {
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, leave := context.WithCancel(t.Context())
	body := `{"model":"m","stream":true,"messages":[{"role":"system","content":"task: context"}]}`
	r := httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(body)).WithContext(ctx)
	w := leavingWriter{httptest.NewRecorder(), leave}
	s.ServeHTTP(w, r)
	if got := s.Calls()[0].Outcome; got != Left || strings.Contains(w.Body.String(), "[DONE]") {
		t.Errorf("outcome %q, want left", got)
	}
}
