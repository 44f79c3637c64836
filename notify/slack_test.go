package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nexuscore/onceq/notify/notifytest"
)

func fakeSlack(t *testing.T, opts ...notifytest.Option) *notifytest.Slack {
	t.Helper()
	fake, err := notifytest.NewSlack(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	return fake
}

func slackTo(t *testing.T, fake *notifytest.Slack, opts ...DestinationOption) *Slack {
	t.Helper()
	s, err := NewSlack(notifytest.Token, notifytest.Channel, append([]DestinationOption{WithAPIURL(fake.URL())}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func hello(id string) Message {
	return Message{ID: id, RunID: "run-1", Event: "done", Generation: 1, Attempt: 1, Content: Content{Text: "hello"}}
}

// verdict is how a send ended, for tables.
func verdict(err error) string {
	if err == nil {
		return "sent"
	}
	e, ok := errors.AsType[*SendError](err)
	if !ok {
		return "unclassified: " + err.Error()
	}
	s := e.Kind.String()
	if e.RateLimited {
		s += ", rate limited"
	}
	if e.RetryAfter > 0 {
		s += ", " + e.RetryAfter.String()
	}
	return s
}

func TestSlackReplyClasses(t *testing.T) {
	type testCase struct {
		name  string
		fault notifytest.Fault
		want  string
		seen  int
	}
	cases := []testCase{
		{"ok", notifytest.None, "sent", 1},
		{"slow", notifytest.Slow(20 * time.Millisecond), "sent", 1},
		{"dropped before", notifytest.Drop, "uncertain", 0},
		{"accepted, reply dropped", notifytest.AcceptThenDrop, "uncertain", 1},
		{"accepted, reply cut", notifytest.AcceptThenCut, "uncertain", 1},
		{"accepted, reply malformed", notifytest.AcceptThenMalformed, "uncertain", 1},
		{"whole, then cut", notifytest.Fault{Body: `{"ok":true,"ts":"1700000000.000100"}   `, Cut: 37}, "uncertain", 0},
		{"malformed", notifytest.Malformed, "uncertain", 0},
		{"empty reply", notifytest.Fault{Status: 200}, "uncertain", 0},
		{"ok false without an error", notifytest.Reply(`{"ok":false}`), "uncertain", 0},
		{"empty object", notifytest.Reply(`{}`), "uncertain", 0},
		{"null", notifytest.Reply(`null`), "uncertain", 0},
		{"ok without ts", notifytest.Reply(`{"ok":true}`), "uncertain", 0},
		{"ok with an odd ts", notifytest.Reply(`{"ok":true,"ts":"soon"}`), "uncertain", 0},
		{"ts of another type", notifytest.Reply(`{"ok":true,"ts":17}`), "uncertain", 0},
		{"ok and an error with ts", notifytest.Reply(`{"ok":true,"error":"odd","ts":"1700000000.000100"}`), "sent", 0},
		{"202", notifytest.Fault{Status: 202, Body: `{"ok":true,"ts":"1700000000.000100"}`}, "uncertain", 0},
		{"429 integer", notifytest.RateLimited("2"), "not sent, rate limited, 2s", 0},
		{"429 decimal", notifytest.RateLimited("1.5"), "not sent, rate limited, 1.5s", 0},
		{"429 without header", notifytest.RateLimited(""), "not sent, rate limited", 0},
		{"429 nonsense", notifytest.RateLimited("soon"), "not sent, rate limited", 0},
		{"429 negative", notifytest.RateLimited("-3"), "not sent, rate limited", 0},
		{"429 endless", notifytest.RateLimited("1e300"), "not sent, rate limited, 1h0m0s", 0},
		{"429 page", notifytest.Fault{Status: 429, Body: "<html>", Header: http.Header{"Retry-After": {"7"}}}, "not sent, rate limited, 7s", 0},
		{"302", notifytest.Fault{Status: 302, Header: http.Header{"Location": {"http://127.0.0.1:1/"}}}, "not sent", 0},
		{"307", notifytest.Fault{Status: 307, Header: http.Header{"Location": {"http://127.0.0.1:1/"}}}, "not sent", 0},
		{"403 of a proxy", notifytest.Status(403), "not sent", 0},
		{"404 of a proxy", notifytest.Status(404), "not sent", 0},
		{"408", notifytest.Status(408), "not sent", 0},
		{"413", notifytest.Status(413), "permanent", 0},
		{"403 of Slack", notifytest.Fault{Status: 403, Body: `{"ok":false,"error":"invalid_auth"}`}, "permanent", 0},
		{"500", notifytest.Status(500), "uncertain", 0},
		{"accepted, 502", notifytest.AcceptThenStatus(502), "uncertain", 1},
		{"503 with an error", notifytest.Fault{Status: 503, Body: `{"ok":false,"error":"not_authed"}`}, "uncertain", 0},
		{"503 with Retry-After", notifytest.Fault{Status: 503, Header: http.Header{"Retry-After": {"9"}}}, "uncertain, 9s", 0},
	}
	for code, want := range map[string]string{
		"ratelimited":                    "not sent, rate limited",
		"rate_limited":                   "not sent, rate limited",
		"request_timeout":                "not sent",
		"team_added_to_org":              "not sent",
		"fatal_error":                    "uncertain",
		"internal_error":                 "uncertain",
		"service_unavailable":            "uncertain",
		"something_new":                  "uncertain",
		"channel_not_found":              "permanent",
		"not_in_channel":                 "permanent",
		"is_archived":                    "permanent",
		"invalid_auth":                   "permanent",
		"not_authed":                     "permanent",
		"account_inactive":               "permanent",
		"token_revoked":                  "permanent",
		"token_expired":                  "permanent",
		"missing_scope":                  "permanent",
		"msg_too_long":                   "permanent",
		"no_text":                        "permanent",
		"invalid_blocks":                 "permanent",
		"invalid_blocks_format":          "permanent",
		"restricted_action":              "permanent",
		"restricted_action_read_only":    "permanent",
		"metadata_too_large":             "permanent",
		"metadata_must_be_sent_from_app": "permanent",
	} {
		cases = append(cases, testCase{code, notifytest.Refuse(code), want, 0})
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			fake := fakeSlack(t)
			fake.Script("chat.postMessage", c.fault)
			r, err := slackTo(t, fake).Send(t.Context(), hello("id-1"))
			if got := verdict(err); got != c.want {
				t.Errorf("got %s, want %s (%v)", got, c.want, err)
			}
			if (r.ID != "") != (err == nil) {
				t.Errorf("receipt %+v with error %v", r, err)
			}
			if n := fake.Calls("chat.postMessage"); n != 1 {
				t.Errorf("%d POSTs for one attempt", n)
			}
			if n := len(fake.Seen(notifytest.Channel)); n != c.seen {
				t.Errorf("a person sees %d messages, want %d", n, c.seen)
			}
		})
	}
}

func TestSlackRetryAfterDate(t *testing.T) {
	fake := fakeSlack(t)
	// A date is meant by the server's clock, which here is years off ours.
	fake.Script("chat.postMessage", notifytest.Fault{Status: 429, Header: http.Header{
		"Date": {"Fri, 01 Mar 2019 10:00:00 GMT"}, "Retry-After": {"Fri, 01 Mar 2019 10:00:30 GMT"},
	}})
	_, err := slackTo(t, fake).Send(t.Context(), hello("id-1"))
	if got := verdict(err); got != "not sent, rate limited, 30s" {
		t.Error(got)
	}
}

func TestSlackNotReached(t *testing.T) {
	fake := fakeSlack(t)
	s := slackTo(t, fake)
	fake.Down()
	_, err := s.Send(t.Context(), hello("id-1"))
	if got := verdict(err); got != "not sent" {
		t.Errorf("refused connection: %s (%v)", got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Send(ctx, hello("id-1"))
	if got := verdict(err); got != "not sent" || !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: %s (%v)", got, err)
	}
	if n := fake.Calls("chat.postMessage"); n != 0 {
		t.Errorf("calls = %d", n)
	}
}

// A TLS handshake that fails comes before any header.
func TestSlackHandshakeFails(t *testing.T) {
	fake := fakeSlack(t)
	s := slackTo(t, fake, WithAPIURL(strings.Replace(fake.URL(), "http:", "https:", 1)))
	_, err := s.Send(t.Context(), hello("id-1"))
	if got := verdict(err); got != "not sent" {
		t.Errorf("%s (%v)", got, err)
	}
}

func TestSlackTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := fakeSlack(t, notifytest.WithMemory())
		s := slackTo(t, fake, WithHTTPClient(fake.HTTPClient()), WithTimeout(3*time.Second))
		for _, f := range []notifytest.Fault{notifytest.Hang, notifytest.AcceptThenHang, notifytest.Slow(time.Minute)} {
			fake.Script("chat.postMessage", f)
			begin := time.Now()
			_, err := s.Send(t.Context(), hello("id-1"))
			if got := verdict(err); got != "uncertain" || time.Since(begin) != 3*time.Second {
				t.Errorf("%+v: %s after %s", f, got, time.Since(begin))
			}
		}
		// Nobody accepts the connection. (net/http lets a dial outlive its request.)
		end := make(chan struct{})
		defer close(end)
		stuck := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			<-end
			return nil, errors.New("too late")
		}}}
		s = slackTo(t, fake, WithHTTPClient(stuck))
		if _, err := s.Send(t.Context(), hello("id-1")); verdict(err) != "not sent" {
			t.Errorf("dial that hangs: %v", err)
		}
	})
}

type silent struct{}

func (silent) RoundTrip(*http.Request) (*http.Response, error) { return nil, errors.New("went wrong") }

// A transport that does not say what it wrote leaves everything possible.
func TestSlackOpaqueTransport(t *testing.T) {
	s := slackTo(t, fakeSlack(t), WithHTTPClient(&http.Client{Transport: silent{}}))
	if _, err := s.Send(t.Context(), hello("id-1")); verdict(err) != "uncertain" {
		t.Error(err)
	}
}

func TestSlackMessageAsPosted(t *testing.T) {
	fake := fakeSlack(t)
	s := slackTo(t, fake)
	m := hello("id-1")
	m.Text = "<!channel> R&D\x00 \xff @here"
	m.Link = "https://example.com/run?a=1&b=<2>|x"
	first, err := s.Send(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	m = hello("id-2")
	m.Thread = first.ID
	m.Blocks = json.RawMessage(`[{"type":"new_kind","n":12345678901234567890}]`)
	if _, err := s.Send(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	seen := fake.Seen(notifytest.Channel)
	if len(seen) != 2 {
		t.Fatalf("seen %+v", seen)
	}
	if first.ID != seen[0].TS || first.Channel != notifytest.Channel {
		t.Errorf("receipt %+v", first)
	}
	want := "&lt;!channel&gt; R&amp;D \uFFFD @\u2060here\n<https://example.com/run?a=1&amp;b=%3C2%3E%7Cx>"
	if diff := cmp.Diff(want, seen[0].Text); diff != "" {
		t.Error(diff)
	}
	if seen[0].Parse != "none" {
		t.Errorf("parse %q lets Slack look for names", seen[0].Parse)
	}
	if seen[1].ThreadTS != first.ID || string(seen[1].Blocks) != `[{"type":"new_kind","n":12345678901234567890}]` {
		t.Errorf("second: %+v", seen[1])
	}
	if diff := cmp.Diff(notifytest.Metadata{EventType: "onceq_notification", EventPayload: map[string]any{"key": "id-2"}}, seen[1].Metadata); diff != "" {
		t.Error(diff)
	}
}

func TestSlackRefusesWhatCannotBePosted(t *testing.T) {
	fake := fakeSlack(t)
	s := slackTo(t, fake)
	for name, change := range map[string]func(*Message){
		"nothing to say":     func(m *Message) { m.Text = "" },
		"only bad blocks":    func(m *Message) { m.Text, m.Blocks = "", json.RawMessage(`[1]`) },
		"block without type": func(m *Message) { m.Text, m.Blocks = "", json.RawMessage(`[{}]`) },
		"thread":             func(m *Message) { m.Thread = "yesterday" },
	} {
		m := hello("id-1")
		change(&m)
		if _, err := s.Send(t.Context(), m); verdict(err) != "permanent" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := fake.Calls("chat.postMessage"); n != 0 {
		t.Errorf("calls = %d", n)
	}
}

func TestNewSlackValidates(t *testing.T) {
	for _, c := range []struct {
		token, channel string
		opts           []DestinationOption
		want           string
	}{
		{"", "C012", nil, "the token is empty"},
		{"xoxb\n", "C012", nil, "token is empty"},
		{"xoxb", "#general", nil, "a name would work for posting until somebody renames the channel"},
		{"xoxb", "general", nil, `channel "general" is no channel ID`},
		{"xoxb", "U012ABC", nil, "an ID begins with C, G or D"},
		{"xoxb", "C012", []DestinationOption{WithName("a b")}, `name "a b"`},
		{"xoxb", "C012", []DestinationOption{WithTimeout(0)}, "NewSlack: WithTimeout: 0s, from 1ms to 1h"},
		{"xoxb", "C012", []DestinationOption{WithHistoryPages(0)}, "NewSlack: WithHistoryPages: 0, from 1 to 1000"},
		{"xoxb", "C012", []DestinationOption{WithTimeout(2 * time.Hour)}, "WithTimeout: 2h0m0s"},
		{"xoxb", "C012", []DestinationOption{WithHistoryPages(1001)}, "WithHistoryPages: 1001"},
		{"xoxb", "C012", []DestinationOption{WithSecret(make([]byte, 32))}, "option WithSecret does not apply"},
		{"xoxb", "C012", []DestinationOption{WithAPIURL("slack.com")}, "http or https"},
	} {
		_, err := NewSlack(c.token, c.channel, c.opts...)
		refused(t, err, c.want)
	}
	s, err := NewSlack("xoxb-hush", "C0123ABC")
	if err != nil {
		t.Fatal(err)
	}
	if s.Name() != "slack-C0123ABC" {
		t.Errorf("name %q", s.Name())
	}
	if shown := fmt.Sprintf("%v %+v %#v", s, s, s); strings.Contains(shown, "hush") {
		t.Errorf("the token shows: %s", shown)
	}
}

func TestSlackCheck(t *testing.T) {
	fake := fakeSlack(t)
	if err := slackTo(t, fake).Check(t.Context()); err != nil {
		t.Error(err)
	}
	if n := len(fake.Seen(notifytest.Channel)); n != 0 {
		t.Errorf("Check posted %d messages", n)
	}
	err := slackTo(t, fakeSlack(t, notifytest.WithScopes("chat:write"))).Check(t.Context())
	if err == nil || !strings.Contains(err.Error(), "missing_scope: add the scope and reinstall the app (needed: channels:history; provided: chat:write)") {
		t.Errorf("missing scope: %v", err)
	}
	fake.Kick(notifytest.Channel)
	if err := slackTo(t, fake).Check(t.Context()); err == nil || !strings.Contains(err.Error(), "invite the app") {
		t.Errorf("not in channel: %v", err)
	}
	s, err := NewSlack("xoxb-other", notifytest.Channel, WithAPIURL(strings.TrimSuffix(fake.URL(), "/")))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "invalid_auth") {
		t.Errorf("token: %v", err)
	}
}

// Every code that the lists know is classified as they say; a typo in one would
// make a permanent failure uncertain for ever.
func TestSlackCodesAreWellFormed(t *testing.T) {
	for code := range slackCodes {
		if strings.Trim(code, "abcdefghijklmnopqrstuvwxyz_") != "" {
			t.Errorf("code %q", code)
		}
	}
	if slices.ContainsFunc([]string{"fatal_error", "internal_error"}, func(c string) bool { return slackKind(c) != KindUncertain }) {
		t.Error("Slack says that these may have succeeded")
	}
}
