package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nexuscore/onceq/notify/notifytest"
)

// Trap: accepted, the reply dropped. The message is found again.
func TestSlackFindsWhatItPosted(t *testing.T) {
	for _, f := range []notifytest.Fault{
		notifytest.AcceptThenDrop, notifytest.AcceptThenMalformed, notifytest.AcceptThenStatus(500), notifytest.AcceptThenCut,
	} {
		fake := fakeSlack(t)
		s := slackTo(t, fake)
		m := hello("id-1")
		m.FirstAttemptAt = time.Now()
		fake.Script("chat.postMessage", f)
		if _, err := s.Send(t.Context(), m); verdict(err) != "uncertain" {
			t.Fatalf("%+v: %v", f, err)
		}
		r, found, err := s.Find(t.Context(), m)
		if err != nil || !found || r.ID != fake.Seen(notifytest.Channel)[0].TS || r.Channel != notifytest.Channel {
			t.Errorf("Find = %+v, %v, %v", r, found, err)
		}
		other := m
		other.ID = "id-2"
		if _, found, err := s.Find(t.Context(), other); found || err != nil {
			t.Errorf("another message: %v, %v", found, err)
		}
	}
}

func TestSlackFindsReplies(t *testing.T) {
	fake := fakeSlack(t, notifytest.WithMaxPage(2))
	s := slackTo(t, fake)
	root, err := fake.Say(notifytest.Channel, notifytest.Message{Text: "root"})
	if err != nil {
		t.Fatal(err)
	}
	m := hello("id-1")
	m.Thread = root
	m.FirstAttemptAt = time.Now()
	if _, err := s.Send(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := fake.Say(notifytest.Channel, notifytest.Message{Text: "noise", ThreadTS: root}); err != nil {
			t.Fatal(err)
		}
	}
	if _, found, err := s.Find(t.Context(), m); !found || err != nil {
		t.Errorf("reply: %v, %v", found, err)
	}
	unsent := m
	unsent.ID = "id-2"
	if _, found, err := s.Find(t.Context(), unsent); found || err != nil {
		t.Errorf("unsent reply: %v, %v", found, err)
	}
	if fake.Calls("conversations.history") != 1 {
		t.Error("a reply that is not in its thread must be looked for in the channel")
	}
	gone := unsent
	gone.Thread = "1500000000.000100"
	if _, found, err := s.Find(t.Context(), gone); found || err != nil {
		t.Errorf("no such thread: %v, %v", found, err)
	}
}

// Messages of other apps have any shape, and more than one page of them follows.
func TestSlackFindsAmongOthers(t *testing.T) {
	fake := fakeSlack(t, notifytest.WithMaxPage(3))
	s := slackTo(t, fake)
	say := func(raw string) {
		t.Helper()
		if _, err := fake.Say(notifytest.Channel, notifytest.Message{Raw: json.RawMessage(raw)}); err != nil {
			t.Fatal(err)
		}
	}
	m := hello("id-1")
	m.FirstAttemptAt = time.Now()
	if _, err := s.Send(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		say(`{"type":7,"text":{"odd":[]},"blocks":"none"}`)
		say(`{"metadata":"none"}`)
		say(`{"metadata":{"event_type":"onceq_notification","event_payload":["id-1"]}}`)
		say(`{"metadata":{"event_type":"someone_else","event_payload":{"key":"id-1"}}}`)
	}
	r, found, err := s.Find(t.Context(), m)
	if err != nil || !found || r.ID != fake.Seen(notifytest.Channel)[0].TS {
		t.Errorf("Find = %+v, %v, %v", r, found, err)
	}
	if n := fake.Calls("conversations.history"); n != 3 {
		t.Errorf("%d pages read", n)
	}
}

// Whatever keeps Find from reading everything is "cannot tell", never "absent".
func TestSlackCannotTell(t *testing.T) {
	for _, c := range []struct {
		name  string
		opts  []notifytest.Option
		fault *notifytest.Fault
		kind  Kind
		text  string
	}{
		{name: "scope", opts: []notifytest.Option{notifytest.WithScopes("chat:write")}, kind: KindPermanent, text: "needed: channels:history"},
		{name: "too much", opts: []notifytest.Option{notifytest.WithMaxPage(1)}, text: "2 pages of history since the first attempt are not all of it"},
		{name: "token", fault: &notifytest.Fault{Body: `{"ok":false,"error":"token_expired"}`}, kind: KindPermanent, text: "token_expired"},
		{name: "outage", fault: &notifytest.Fault{Status: 503}, text: "HTTP 503"},
		{name: "dropped", fault: &notifytest.Drop, text: "EOF"},
		{name: "cut", fault: &notifytest.Fault{Cut: 30}, text: "undecodable"},
		{name: "page of html", fault: &notifytest.Malformed, text: "undecodable"},
		{name: "no messages", fault: &notifytest.Fault{Body: `{"ok":true}`}, text: "reply has no messages"},
		{name: "neither", fault: &notifytest.Fault{Body: `{}`}, text: "neither ok nor an error"},
		{name: "no cursor", fault: &notifytest.Fault{Body: `{"ok":true,"messages":[],"has_more":true}`}, text: "no cursor"},
		{name: "cursor stands", fault: &notifytest.Fault{Body: `{"ok":true,"messages":[],"has_more":true,"response_metadata":{"next_cursor":"x"}}`}, text: "cursor does not move"},
		{name: "unknown code", fault: &notifytest.Fault{Body: `{"ok":false,"error":"new_thing"}`}, text: "new_thing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			fake := fakeSlack(t, c.opts...)
			for range 4 {
				if _, err := fake.Say(notifytest.Channel, notifytest.Message{Text: "noise"}); err != nil {
					t.Fatal(err)
				}
			}
			if c.fault != nil {
				fake.Always("conversations.history", *c.fault)
			}
			_, found, err := slackTo(t, fake, WithHistoryPages(2)).Find(t.Context(), hello("id-1"))
			e, ok := errors.AsType[*SendError](err)
			if found || !ok || e.Kind != c.kind || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), "cannot tell whether the message arrived") {
				t.Errorf("Find = %v, %v; want kind %v and %q", found, err, c.kind, c.text)
			}
		})
	}
}

func TestSlackFindUnreachableIsNotAbsent(t *testing.T) {
	fake := fakeSlack(t)
	s := slackTo(t, fake)
	fake.Down()
	if _, found, err := s.Find(t.Context(), hello("id-1")); found || verdict(err) != "uncertain" {
		t.Errorf("%v, %v", found, err)
	}
}

// History is read from the first attempt on, with room for clocks that differ.
func TestSlackFindReadsNoOlderHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := fakeSlack(t, notifytest.WithMemory(), notifytest.WithMaxPage(10))
		s := slackTo(t, fake, WithHTTPClient(fake.HTTPClient()), WithHistoryPages(1))
		for range 50 {
			if _, err := fake.Say(notifytest.Channel, notifytest.Message{Text: "old"}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Hour)
		m := hello("id-1")
		if _, err := s.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		m.FirstAttemptAt = time.Now().Add(9 * time.Minute) // our clock is ahead
		if _, found, err := s.Find(t.Context(), m); !found || err != nil {
			t.Errorf("%v, %v", found, err)
		}
		m.FirstAttemptAt, m.CreatedAt = time.Time{}, time.Now()
		m.ID = "id-2"
		if _, found, err := s.Find(t.Context(), m); found || err != nil {
			t.Errorf("with CreatedAt alone: %v, %v", found, err)
		}
	})
}

func TestSlackFindAndRateLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := fakeSlack(t, notifytest.WithMemory(), notifytest.WithMaxPage(1))
		s := slackTo(t, fake, WithHTTPClient(fake.HTTPClient()))
		m := hello("id-1")
		if _, err := s.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if _, err := fake.Say(notifytest.Channel, notifytest.Message{Text: fmt.Sprint(i)}); err != nil {
				t.Fatal(err)
			}
		}
		fake.Limit("conversations.history", 1, 2*time.Second)
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, found, err := s.Find(ctx, m); !found || err != nil || time.Since(begin) != 6*time.Second {
			t.Errorf("patient: %v, %v after %s", found, err, time.Since(begin))
		}

		fake.Limit("conversations.history", 1, time.Minute)
		begin = time.Now()
		_, found, err := s.Find(ctx, m)
		if found || verdict(err) != "uncertain, rate limited, 1m0s" || time.Since(begin) != 0 {
			t.Errorf("no time to wait: %v, %s, after %s", found, verdict(err), time.Since(begin))
		}
	})
}
