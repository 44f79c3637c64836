package notify

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nexuscore/onceq/notify/notifytest"
)

func TestHTTPReplyClasses(t *testing.T) {
	want := map[int]string{
		200: "sent", 201: "sent", 202: "sent", 204: "sent",
		300: "not sent", 301: "permanent", 302: "not sent", 303: "uncertain", 304: "uncertain", 307: "not sent", 308: "permanent",
		400: "permanent", 401: "not sent", 403: "not sent", 404: "not sent", 405: "permanent", 407: "not sent", 408: "not sent",
		409: "uncertain", 410: "permanent", 413: "permanent", 415: "permanent", 418: "not sent", 422: "permanent", 425: "not sent",
		429: "not sent, rate limited", 431: "permanent",
		500: "uncertain", 501: "uncertain", 502: "uncertain", 503: "uncertain", 504: "uncertain", 599: "uncertain",
	}
	status, requests := 0, 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests++
		w.WriteHeader(status)
	}))
	defer srv.Close()
	h, err := NewHTTP(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	for code, want := range want {
		status, requests = code, 0
		_, err := h.Send(t.Context(), hello("id-1"))
		if got := verdict(err); got != want || requests != 1 {
			t.Errorf("%d: %s after %d requests, want %s", code, got, requests, want)
		}
	}
}

func TestHTTPRetryAfter(t *testing.T) {
	value, code := "", 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", value)
		w.WriteHeader(code)
	}))
	defer srv.Close()
	h, err := NewHTTP(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		code        int
		value, want string
	}{
		{429, "2", "not sent, rate limited, 2s"}, {429, "0.25", "not sent, rate limited, 250ms"},
		{503, "4", "uncertain, 4s"}, {404, "5", "not sent, 5s"}, {409, "1", "uncertain, 1s"},
	} {
		code, value = c.code, c.value
		if _, err := h.Send(t.Context(), hello("id-1")); verdict(err) != c.want {
			t.Errorf("%d, %s: %v, want %s", c.code, c.value, err, c.want)
		}
	}
}

func TestHTTPRequest(t *testing.T) {
	secret := []byte("0123456789abcdef")
	var header http.Header
	var body []byte
	var host string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header, host = r.Header, r.Host
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			t.Error(err)
		}
	}))
	defer srv.Close()
	h, err := NewHTTP(srv.URL, WithSecret(secret), WithHeader("Authorization", "Bearer x"), WithHeader("X-Team", "a"), WithHeader("X-Team", "b"), WithHeader("Host", "inside.test"))
	if err != nil {
		t.Fatal(err)
	}
	m := Message{
		ID: "id-1", Destination: "ops", RunID: "run<1>", Event: "done", Generation: 2, Attempt: 1,
		Payload:   json.RawMessage(`{ "n": 12345678901234567890 }`),
		Content:   Content{Text: "a & b", Link: "https://example.com"},
		CreatedAt: time.Date(2024, 5, 1, 12, 0, 0, 5e6, time.FixedZone("", 3600)),
	}
	if _, err := h.Send(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	want := `{"id":"id-1","run_id":"run<1>","event":"done","generation":2,"created_at":"2024-05-01T11:00:00.005Z","text":"a & b","link":"https://example.com","payload":{"n":12345678901234567890}}`
	if diff := cmp.Diff(want, string(body)); diff != "" {
		t.Errorf("body: %s", diff)
	}
	got := []string{host, header.Get("Idempotency-Key"), header.Get("Content-Type"), header.Get("Authorization"), strings.Join(header["X-Team"], "+")}
	if diff := cmp.Diff([]string{"inside.test", "id-1", "application/json", "Bearer x", "a+b"}, got); diff != "" {
		t.Errorf("headers: %s", diff)
	}
	if err := VerifySignature(secret, header, body, time.Minute); err != nil {
		t.Error(err)
	}
	first := string(body)
	m.Attempt = 7
	if _, err := h.Send(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if string(body) != first {
		t.Errorf("the second attempt differs: %s", body)
	}
	m.Payload = json.RawMessage("{")
	if _, err := h.Send(t.Context(), m); verdict(err) != "permanent" {
		t.Errorf("payload that is no JSON: %v", err)
	}
}

func TestVerifySignature(t *testing.T) {
	secret, body := []byte("0123456789abcdef"), []byte(`{"id":"1"}`)
	// Computed with: printf '946684800.{"id":"1"}' | openssl dgst -sha256 -hmac 0123456789abcdef
	const golden = "v1=57d3097cf2b988411c25497f10648c5fbbda878412b38ad8804809f3d1aa146c"
	if got := sign(secret, "946684800", body); got != golden {
		t.Errorf("sign = %s, want %s: receivers compute the old one", got, golden)
	}
	synctest.Test(t, func(t *testing.T) { // begins at 946684800
		header := func(at, signature string) http.Header {
			return http.Header{"Onceq-Timestamp": {at}, "Onceq-Signature": {signature}}
		}
		good := header("946684800", golden)
		if err := VerifySignature(secret, good, body, time.Minute); err != nil {
			t.Error(err)
		}
		for name, err := range map[string]error{
			"other secret":   VerifySignature([]byte("0123456789abcdeg"), good, body, time.Minute),
			"other body":     VerifySignature(secret, good, []byte(`{"id":"2"}`), time.Minute),
			"other time":     VerifySignature(secret, header("946684801", golden), body, time.Minute),
			"no version":     VerifySignature(secret, header("946684800", golden[3:]), body, time.Minute),
			"no headers":     VerifySignature(secret, http.Header{}, body, time.Minute),
			"no signature":   VerifySignature(secret, http.Header{"Onceq-Timestamp": {"946684800"}}, body, time.Minute),
			"from to-morrow": VerifySignature(secret, header("946771200", sign(secret, "946771200", body)), body, time.Minute),
		} {
			if !errors.Is(err, ErrBadSignature) {
				t.Errorf("%s: %v", name, err)
			}
		}
		time.Sleep(61 * time.Second)
		if err := VerifySignature(secret, good, body, time.Minute); !errors.Is(err, ErrBadSignature) {
			t.Errorf("a minute later: %v", err)
		}
	})
}

func TestNewHTTPValidates(t *testing.T) {
	for _, c := range []struct {
		url  string
		opts []DestinationOption
		want string
	}{
		{"example.com", nil, "http or https"},
		{"https://example.com", []DestinationOption{WithSecret([]byte("short"))}, "WithSecret: 5 bytes, at least 16 are needed"},
		{"https://example.com", []DestinationOption{WithSecret(nil)}, "WithSecret: 0 bytes"},
		{"https://example.com", []DestinationOption{WithHeader("idempotency-key", "x")}, "WithHeader: Idempotency-Key is set by the destination"},
		{"https://example.com", []DestinationOption{WithHeader("X-A", "a\r\nB: c")}, "malformed"},
		{"https://example.com", []DestinationOption{WithHeader("", "a")}, "malformed"},
		{"https://example.com", []DestinationOption{WithHistoryPages(3)}, "does not apply"},
		{"https://" + strings.Repeat("a", 70) + ".com", nil, "see WithName"},
	} {
		_, err := NewHTTP(c.url, c.opts...)
		refused(t, err, c.want)
	}
	for url, name := range map[string]string{"https://example.com/x": "http-example.com", "http://127.0.0.1:8080": "http-127.0.0.1-8080", "http://[::1]:80/": "http-1-80"} {
		h, err := NewHTTP(url)
		if err != nil || h.Name() != name {
			t.Errorf("%s: %v, %v", url, h, err)
		}
	}
	plain, _ := NewHTTP("https://example.com")
	keeps, _ := NewHTTP("https://example.com", WithIdempotentReceiver())
	if plain.DefaultPolicy() != PolicyHold || keeps.DefaultPolicy() != PolicyResend {
		t.Error("policies")
	}
}

func TestWebhookReplyClasses(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault notifytest.Fault
		want  string
		seen  int
	}{
		{"ok", notifytest.None, "sent", 1},
		{"ok with a newline", notifytest.Reply("ok\n"), "sent", 0},
		{"200 with something else", notifytest.Reply("<html>login</html>"), "uncertain", 0},
		{"200, cut", notifytest.Fault{Body: "ok, not", Cut: 2}, "uncertain", 0},
		{"200 and nothing", notifytest.Fault{Status: 200}, "uncertain", 0},
		{"accepted, dropped", notifytest.AcceptThenDrop, "uncertain", 1},
		{"accepted, 500", notifytest.AcceptThenStatus(500), "uncertain", 1},
		{"rollup_error", notifytest.Fault{Status: 500, Body: "rollup_error"}, "uncertain", 0},
		{"503 that wants a pause", notifytest.Fault{Status: 503, Header: http.Header{"Retry-After": {"2"}}}, "uncertain, 2s", 0},
		{"429", notifytest.RateLimited("3"), "not sent, rate limited, 3s", 0},
		{"429 without header", notifytest.RateLimited(""), "not sent, rate limited", 0},
		{"invalid_payload", notifytest.Fault{Status: 400, Body: "invalid_payload"}, "permanent", 0},
		{"invalid_blocks", notifytest.Fault{Status: 400, Body: "invalid_blocks_format"}, "permanent", 0},
		{"no_text", notifytest.Fault{Status: 400, Body: "no_text"}, "permanent", 0},
		{"action_prohibited", notifytest.Fault{Status: 403, Body: "action_prohibited"}, "permanent", 0},
		{"no_service", notifytest.Fault{Status: 404, Body: "no_service\n"}, "permanent", 0},
		{"channel_is_archived", notifytest.Fault{Status: 410, Body: "channel_is_archived"}, "permanent", 0},
		{"413", notifytest.Status(413), "permanent", 0},
		{"403 of a proxy", notifytest.Status(403), "not sent", 0},
		{"302", notifytest.Fault{Status: 302, Header: http.Header{"Location": {"http://127.0.0.1:1/"}}}, "not sent", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			fake := fakeSlack(t)
			fake.Script("webhook", c.fault)
			w, err := NewSlackWebhook(fake.WebhookURL(notifytest.Channel))
			if err != nil {
				t.Fatal(err)
			}
			_, err = w.Send(t.Context(), hello("id-1"))
			if got := verdict(err); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
			if n := len(fake.Seen(notifytest.Channel)); n != c.seen || fake.Calls("webhook") != 1 {
				t.Errorf("seen %d after %d POSTs", n, fake.Calls("webhook"))
			}
		})
	}
}

// Trap: a webhook that times out cannot be asked, so nobody may think it can.
func TestWebhookCannotBeReconciled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := fakeSlack(t, notifytest.WithMemory())
		w, err := NewSlackWebhook(fake.WebhookURL(notifytest.Channel), WithHTTPClient(fake.HTTPClient()), WithTimeout(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		fake.Always("webhook", notifytest.AcceptThenHang)
		if _, err := w.Send(t.Context(), hello("id-1")); verdict(err) != "uncertain" {
			t.Error(err)
		}
		if _, ok := any(w).(Reconciler); ok {
			t.Error("a webhook is a Reconciler")
		}
		if w.Name() != "slack-webhook" {
			t.Error(w.Name())
		}
	})
}

func TestWebhookMessage(t *testing.T) {
	fake := fakeSlack(t)
	w, err := NewSlackWebhook(fake.WebhookURL(notifytest.Channel), WithName("ops"))
	if err != nil {
		t.Fatal(err)
	}
	m := hello("id-1")
	m.Text, m.Thread, m.Link = "<!everyone> hi", "1700000000.000100", "https://example.com/1"
	if _, err := w.Send(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	m.Blocks = json.RawMessage(`[{"type":"section","text":{"type":"mrkdwn","text":"<!here>"}}]`) // the host's own
	if _, err := w.Send(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	seen := fake.Seen(notifytest.Channel)
	if seen[0].Text != "&lt;!everyone&gt; hi\n<https://example.com/1>" || seen[0].ThreadTS != m.Thread || len(seen[0].Mentions()) != 0 || seen[0].Parse != "none" {
		t.Errorf("%+v", seen[0])
	}
	if diff := cmp.Diff([]string{"<!here>"}, seen[1].Mentions()); diff != "" {
		t.Error(diff)
	}
	for name, change := range map[string]func(*Message){
		"nothing": func(m *Message) { m.Text, m.Blocks, m.Link = "", nil, "" },
		"thread":  func(m *Message) { m.Thread = "x" },
	} {
		bad := m
		change(&bad)
		if _, err := w.Send(t.Context(), bad); verdict(err) != "permanent" {
			t.Errorf("%s: %v", name, err)
		}
	}
}
