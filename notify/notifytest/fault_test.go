package notifytest_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/slack-go/slack"

	"github.com/nexuscore/onceq/notify/notifytest"
)

func TestFaults(t *testing.T) {
	limited := func(err error) bool {
		var e *slack.RateLimitedError
		return errors.As(err, &e) && e.RetryAfter == 2*time.Second
	}
	status := func(code int) func(error) bool {
		return func(err error) bool { var e slack.StatusCodeError; return errors.As(err, &e) && e.Code == code }
	}
	network := func(err error) bool { var e *url.Error; return errors.As(err, &e) }
	anything := func(err error) bool { return err != nil }
	for _, c := range []struct {
		name  string
		fault notifytest.Fault
		is    func(error) bool
		seen  int
	}{
		{"drop", notifytest.Drop, network, 0},
		{"accept then drop", notifytest.AcceptThenDrop, network, 1},
		{"malformed", notifytest.Malformed, anything, 0},
		{"accept then malformed", notifytest.AcceptThenMalformed, anything, 1},
		{"accept then cut", notifytest.AcceptThenCut, func(err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) }, 1},
		{"rate limited", notifytest.RateLimited("2"), limited, 0},
		{"rate limited without header", notifytest.RateLimited(""), status(429), 0},
		{"500", notifytest.Status(500), status(500), 0},
		{"accept then 503", notifytest.AcceptThenStatus(503), status(503), 1},
		{"refuse", notifytest.Refuse("fatal_error"), func(err error) bool { return err.Error() == "fatal_error" }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			fake, api := start(t)
			fake.Script("chat.postMessage", c.fault)
			if _, err := post(api, "one"); err == nil || !c.is(err) {
				t.Errorf("error = %v", err)
			}
			if n := len(fake.Seen(notifytest.Channel)); n != c.seen {
				t.Errorf("seen %d, want %d", n, c.seen)
			}
			if _, err := post(api, "two"); err != nil {
				t.Errorf("after the script: %v", err)
			}
			if n := fake.Calls("chat.postMessage"); n != 2 {
				t.Errorf("calls = %d", n)
			}
		})
	}
}

func TestReplyThatIsNoErrorForTheClient(t *testing.T) {
	for _, body := range []string{`{"ok":false}`, `{}`, `{"ok":true}`} {
		fake, api := start(t)
		fake.Script("chat.postMessage", notifytest.Reply(body))
		if ts, err := post(api, "x"); err != nil || ts != "" {
			t.Errorf("%s: ts %q, err %v: slack-go reports neither", body, ts, err)
		}
	}
}

func TestAlwaysOnCallClear(t *testing.T) {
	fake, api := start(t)
	var calls []string
	fake.OnCall(func(c notifytest.Call) notifytest.Fault {
		calls = append(calls, fmt.Sprint(c.Method, " ", c.Channel, " ", c.N))
		return notifytest.Status(502)
	})
	fake.Always("", notifytest.Status(500))
	fake.Script("chat.postMessage", notifytest.None)
	for i, want := range []string{"", "500", "502", ""} {
		switch i {
		case 2:
			fake.Clear()
			fake.OnCall(func(c notifytest.Call) notifytest.Fault {
				calls = append(calls, fmt.Sprint(c.Method, " ", c.Channel, " ", c.N))
				return notifytest.Status(502)
			})
		case 3:
			fake.Clear()
		}
		_, err := post(api, "x")
		if got := fmt.Sprint(err); (want == "") != (err == nil) || !strings.Contains(got, want) {
			t.Errorf("call %d: %v, want %q", i, err, want)
		}
	}
	if diff := cmp.Diff([]string{"chat.postMessage C0FAKE0001 3"}, calls); diff != "" {
		t.Errorf("OnCall: %s", diff)
	}
}

// A misspelt method would be a fault that never happens and a test that passes.
func TestMisspeltMethodPanics(t *testing.T) {
	fake, _ := start(t)
	for what, f := range map[string]func(){
		"Script":        func() { fake.Script("chat.postMesage", notifytest.Drop) },
		"Script, empty": func() { fake.Script("", notifytest.Drop) },
		"Always":        func() { fake.Always("chat.delete", notifytest.Drop) },
		"Limit":         func() { fake.Limit("Webhook", 1, time.Second) },
		"Calls":         func() { fake.Calls("chat.postMesage") },
	} {
		func() {
			defer func() {
				if s := fmt.Sprint(recover()); !strings.Contains(s, "notifytest: there is no method ") {
					t.Errorf("%s: recovered %s", what, s)
				}
			}()
			f()
		}()
	}
	for _, m := range []string{"auth.test", "chat.postMessage", "conversations.history", "conversations.replies", "webhook"} {
		fake.Script(m, notifytest.None)
		fake.Always(m, notifytest.None)
		fake.Limit(m, 0, 0)
		fake.Calls(m)
	}
	fake.Always("", notifytest.None)
}

func TestUnknownMethod(t *testing.T) {
	fake, _ := start(t)
	resp, err := http.Get(fake.URL() + "chat.delete")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	if string(b) != `{"error":"unknown_method","ok":false}` {
		t.Errorf("%s", b)
	}
	http.DefaultClient.CloseIdleConnections()
}
