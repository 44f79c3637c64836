package notify

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nexuscore/onceq/internal/dbtest"
	"github.com/nexuscore/onceq/notify/notifytest"
)

// slackBubble runs f in virtual time with an outbox that posts to a fake Slack.
func slackBubble(t *testing.T, fakeOpts []notifytest.Option, f func(t *testing.T, o *Outbox, fake *notifytest.Slack), opts ...Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		fake := fakeSlack(t, append(fakeOpts, notifytest.WithMemory())...)
		s := slackTo(t, fake, WithHTTPClient(fake.HTTPClient()), WithName("slack"))
		d := dbtest.New(t, "sqlite")
		f(t, outboxOn(t, d.DB, []Destination{s}, append([]Option{WithLogger(quiet), WithPollInterval(5 * time.Second)}, opts...)...), fake)
	})
}

// told counts how often a person in the channel was told of each run.
func told(fake *notifytest.Slack) map[string]int {
	n := map[string]int{}
	for _, m := range fake.Seen(notifytest.Channel) {
		n[m.Text]++
	}
	return n
}

// Traps N1, N5: whatever becomes of the reply, a person sees the message once.
func TestSlackThroughOutboxOnce(t *testing.T) {
	for name, fault := range map[string]notifytest.Fault{
		"fine": notifytest.None, "accepted, dropped": notifytest.AcceptThenDrop, "dropped": notifytest.Drop,
		"accepted, hangs": notifytest.AcceptThenHang, "hangs": notifytest.Hang,
		"accepted, 500": notifytest.AcceptThenStatus(500), "500": notifytest.Status(500),
		"accepted, malformed": notifytest.AcceptThenMalformed, "malformed": notifytest.Malformed,
		"neither": notifytest.Reply(`{"ok":false}`), "fatal_error": notifytest.Refuse("fatal_error"),
		"limited": notifytest.RateLimited("7"), "limited, no header": notifytest.RateLimited(""),
	} {
		t.Run(name, func(t *testing.T) {
			// The history lags, but less than the outbox waits.
			slackBubble(t, []notifytest.Option{notifytest.WithHistoryLag(5 * time.Second)}, func(t *testing.T, o *Outbox, fake *notifytest.Slack) {
				fake.Script("chat.postMessage", fault)
				must(t, o.Enqueue(t.Context(), o.store.db, done("r1")))
				stop := running(t, o)
				time.Sleep(5 * time.Minute)
				stop()
				same(t, "states", states(t, o, "slack"), map[string]State{"r1/done": StateSent})
				same(t, "told", told(fake), map[string]int{"r1 is done": 1})
				want := 1
				if len(fault.Header)+fault.Status > 0 && !fault.Apply || fault.Drop && !fault.Apply || fault.Hang && !fault.Apply || fault.Body != "" && !fault.Apply {
					want = 2
				}
				if n := fake.Calls("chat.postMessage"); n != want {
					t.Errorf("%d POSTs, want %d", n, want)
				}
			})
		})
	}
}

// Without the scope nobody can tell, and the message waits for a person.
func TestSlackThroughOutboxWithoutScope(t *testing.T) {
	slackBubble(t, []notifytest.Option{notifytest.WithScopes("chat:write")}, func(t *testing.T, o *Outbox, fake *notifytest.Slack) {
		fake.Script("chat.postMessage", notifytest.AcceptThenDrop)
		must(t, o.Enqueue(t.Context(), o.store.db, done("r1")))
		stop := running(t, o)
		time.Sleep(10 * time.Minute)
		stop()
		same(t, "states", states(t, o, "slack"), map[string]State{"r1/done": StateHeld})
		same(t, "told", told(fake), map[string]int{"r1 is done": 1})
		if n := fake.Calls("conversations.history"); n != 1 {
			t.Errorf("asked %d times for what no asking changes", n)
		}
	})
}

// Reading is limited apart from posting: one message in doubt holds up no other.
func TestSlackReadingLimitHoldsUpNoPost(t *testing.T) {
	slackBubble(t, nil, func(t *testing.T, o *Outbox, fake *notifytest.Slack) {
		for range 40 { // more often than a question may be asked
			fake.Script("conversations.history", notifytest.RateLimited("10"))
		}
		fake.Script("chat.postMessage", notifytest.AcceptThenDrop)
		must(t, o.Enqueue(t.Context(), o.store.db, done("r1")))
		running(t, o)
		time.Sleep(30 * time.Second)
		must(t, o.Enqueue(t.Context(), o.store.db, done("r2")))
		time.Sleep(5 * time.Second)
		same(t, "soon", told(fake), map[string]int{"r1 is done": 1, "r2 is done": 1})
		time.Sleep(10 * time.Minute)
		same(t, "states", states(t, o, "slack"), map[string]State{"r1/done": StateSent, "r2/done": StateSent})
		same(t, "told", told(fake), map[string]int{"r1 is done": 1, "r2 is done": 1})
	})
}

// A burst over the channel's limit arrives whole, without a storm of refused POSTs.
func TestSlackBurstWithinRateLimit(t *testing.T) {
	slackBubble(t, nil, func(t *testing.T, o *Outbox, fake *notifytest.Slack) {
		fake.Limit("chat.postMessage", 1, time.Second)
		want := map[string]int{}
		for i := range 30 {
			run := fmt.Sprint("r", i)
			must(t, o.Enqueue(t.Context(), o.store.db, done(run)))
			want[run+" is done"] = 1
		}
		running(t, o)
		time.Sleep(10 * time.Minute)
		same(t, "told", told(fake), want)
		if n := fake.Calls("chat.postMessage"); n > 30*5 {
			t.Errorf("%d POSTs for 30 messages", n)
		}
	})
}

// An outage of half an hour loses nothing and doubles nothing.
func TestSlackOutage(t *testing.T) {
	slackBubble(t, nil, func(t *testing.T, o *Outbox, fake *notifytest.Slack) {
		must(t, o.Enqueue(t.Context(), o.store.db, done("r1")))
		must(t, o.Enqueue(t.Context(), o.store.db, done("r2")))
		fake.Script("chat.postMessage", notifytest.AcceptThenDrop)
		fake.OnCall(func(notifytest.Call) notifytest.Fault {
			fake.Down()
			return notifytest.Drop
		})
		running(t, o)
		time.Sleep(30 * time.Minute)
		fake.Clear()
		must(t, fake.Up())
		time.Sleep(20 * time.Minute)
		same(t, "told", told(fake), map[string]int{"r1 is done": 1, "r2 is done": 1})
		same(t, "states", states(t, o, "slack"), map[string]State{"r1/done": StateSent, "r2/done": StateSent})
	})
}

// A receiver that keeps keys is sent to again, and takes the message once; for
// one that does not, the message is held.
func TestHTTPThroughOutbox(t *testing.T) {
	for _, c := range []struct {
		name  string
		opts  []DestinationOption
		more  []Option
		posts int
		state State
	}{
		{"keeps keys", []DestinationOption{WithIdempotentReceiver()}, nil, 2, StateSent},
		{"keeps keys, overridden", []DestinationOption{WithIdempotentReceiver()}, []Option{WithPolicy("hook", PolicyHold)}, 1, StateHeld},
		{"does not", nil, nil, 1, StateHeld},
	} {
		t.Run(c.name, func(t *testing.T) {
			var mu sync.Mutex
			posts, taken := 0, map[string]string{}
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				mu.Lock()
				defer mu.Unlock()
				posts++
				key := r.Header.Get("Idempotency-Key")
				if first, again := taken[key]; again && first != string(body) {
					t.Errorf("the body changed: %s, then %s", first, body)
				}
				taken[key] = string(body)
				if posts == 1 || err != nil {
					panic(http.ErrAbortHandler)
				}
			}))
			t.Cleanup(srv.Close)
			h, err := NewHTTP(srv.URL, append(c.opts, WithName("hook"))...)
			must(t, err)
			d := dbtest.New(t, "sqlite")
			o := outboxOn(t, d.DB, []Destination{h}, quick(c.more...)...)
			must(t, o.Enqueue(t.Context(), d.DB, done("r1")))
			drain(t, o)
			mu.Lock()
			defer mu.Unlock()
			if posts != c.posts || len(taken) != 1 {
				t.Errorf("%d POSTs with %d keys, want %d with one", posts, len(taken), c.posts)
			}
			same(t, "states", states(t, o, "hook"), map[string]State{"r1/done": c.state})
		})
	}
}
