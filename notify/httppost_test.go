package notify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestRetryAfter(t *testing.T) {
	now := time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		value, date string
		want        time.Duration
	}{
		{"", "", 0},
		{"0", "", 0},
		{"3", "", 3 * time.Second},
		{" 3 ", "", 3 * time.Second},
		{"1.5", "", 1500 * time.Millisecond},
		{"-1", "", 0},
		{"NaN", "", 0},
		{"Inf", "", time.Hour},
		{"99999999999999999999", "", time.Hour},
		{"soon", "", 0},
		{"Wed, 01 May 2024 12:00:20 GMT", "", 20 * time.Second},
		{"Wed, 01 May 2024 11:00:00 GMT", "", 0},
		{"Wed, 01 May 2030 12:00:00 GMT", "", time.Hour},
		{"Wed, 01 May 2024 12:00:20 GMT", "Wed, 01 May 2024 12:00:05 GMT", 15 * time.Second},
		{"Wed, 01 May 2024 12:00:20 GMT", "nonsense", 20 * time.Second},
	} {
		h := http.Header{"Retry-After": {c.value}, "Date": {c.date}}
		if got := retryAfter(h, now); got != c.want {
			t.Errorf("Retry-After %q, Date %q: %s, want %s", c.value, c.date, got, c.want)
		}
	}
}

// acceptThenClose answers the first request on each connection and closes the
// connection after it has read the second: what a server does whose keep-alive
// ended just then. It counts requests.
func acceptThenClose(t *testing.T) (addr string, requests *atomic.Int32) {
	t.Helper()
	requests = new(atomic.Int32)
	var served sync.Map // remote addresses
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		_, again := served.LoadOrStore(r.RemoteAddr, true)
		if _, err := io.Copy(io.Discard, r.Body); err != nil || again {
			panic(http.ErrAbortHandler)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL, requests
}

// The host's client keeps connections, the second request arrives on a kept one
// that the server then closes, and the request has an Idempotency-Key: for this
// net/http makes a request again. The control shows that it does.
func TestNobodyReplaysAPost(t *testing.T) {
	send := map[string]func(t *testing.T, url string, c *http.Client) error{
		"http": func(t *testing.T, url string, c *http.Client) error {
			h, err := NewHTTP(url, WithHTTPClient(c))
			if err != nil {
				t.Fatal(err)
			}
			_, err = h.Send(t.Context(), hello("id-1"))
			return err
		},
		"control": func(t *testing.T, url string, c *http.Client) error {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Idempotency-Key", "id-1")
			resp, err := c.Do(req)
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			return err
		},
	}
	for name, c := range map[string]struct {
		requests int32
		second   string
	}{
		"http":    {2, "uncertain"},
		"control": {3, "sent"},
	} {
		url, requests := acceptThenClose(t)
		client := &http.Client{Transport: &http.Transport{}}
		if err := send[name](t, url, client); err != nil {
			t.Fatalf("%s: first: %v", name, err)
		}
		err := send[name](t, url, client)
		if got := verdict(err); got != c.second || requests.Load() != c.requests {
			t.Errorf("%s: second: %s after %d requests, want %s after %d (%v)", name, got, requests.Load(), c.second, c.requests, err)
		}
		client.CloseIdleConnections()
	}
}

// Our own client has a connection for each request.
func TestOwnClientKeepsNoConnection(t *testing.T) {
	url, requests := acceptThenClose(t)
	h, err := NewHTTP(url)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := h.Send(t.Context(), hello("id-1")); err != nil {
			t.Error(err)
		}
	}
	if requests.Load() != 3 {
		t.Errorf("%d requests", requests.Load())
	}
}

// A server that closes without having read leaves nothing certain, whatever it
// answered others.
func TestAcceptThenCloseAtOnce(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var accepted atomic.Int32
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			buf := make([]byte, 1)
			_, _ = c.Read(buf)
			c.Close()
		}
	}()
	h, err := NewHTTP("http://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Send(t.Context(), hello("id-1")); verdict(err) != "uncertain" || accepted.Load() != 1 {
		t.Errorf("%v with %d connections", err, accepted.Load())
	}
	l.Close()
	<-done
	if _, err := h.Send(t.Context(), hello("id-1")); verdict(err) != "not sent" {
		t.Errorf("nobody listens: %v", err)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	var elsewhere atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	status := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, status)
	}))
	defer srv.Close()
	for code, want := range map[int]string{301: "permanent", 302: "not sent", 303: "uncertain", 307: "not sent", 308: "permanent"} {
		status = code
		for _, client := range []*http.Client{nil, {Transport: &http.Transport{DisableKeepAlives: true}}} {
			h, err := NewHTTP(srv.URL, WithHTTPClient(client))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := h.Send(t.Context(), hello("id-1")); verdict(err) != want {
				t.Errorf("%d: %v, want %s", code, err, want)
			}
		}
	}
	if n := elsewhere.Load(); n != 0 {
		t.Errorf("%d requests reached the other host", n)
	}
}

func TestEndlessReplyIsBounded(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		chunk := make([]byte, 64<<10)
		for r.Context().Err() == nil {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}))
	defer srv.Close()
	p := newPoster(nil, 10*time.Second)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.do(req, 1000)
	if err != nil || len(r.body) != 1000 || r.cut == nil {
		t.Errorf("%d bytes, cut %v, error %v", len(r.body), r.cut, err)
	}
}

func TestErrorsDoNotShowTheURL(t *testing.T) {
	boom := errors.New("boom")
	client := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return nil, boom }}}
	w, err := NewSlackWebhook("https://hooks.slack.test/services/T0/B0/hush", WithHTTPClient(client))
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Send(t.Context(), hello("id-1"))
	if !errors.Is(err, boom) || verdict(err) != "not sent" || strings.Contains(err.Error(), "hush") {
		t.Errorf("%v", err)
	}
	h, err := NewHTTP("https://example.test/hook?key=hush", WithSecret([]byte("hush-hush-hush-hush")), WithHeader("Authorization", "hush"))
	if err != nil {
		t.Fatal(err)
	}
	if shown := fmt.Sprintf("%v %+v %#v %v %+v %#v", w, w, w, h, h, h); strings.Contains(shown, "hush") {
		t.Errorf("a secret shows: %s", shown)
	}
	for _, bad := range []string{"://hush", "ftp://hush.test/hush-path", "/hush-path"} {
		if _, err := NewHTTP(bad); err == nil || strings.Contains(err.Error(), "hush-path") || strings.Contains(err.Error(), "://hush\"") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
