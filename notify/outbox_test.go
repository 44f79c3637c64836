package notify

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"gorm.io/gorm"

	"github.com/nexuscore/onceq/internal/dbtest"
)

// channel is a destination that cannot be asked: it counts what people see.
type channel struct {
	name string
	// answer decides what becomes of the nth call, 1 for the first: whether
	// people see the message, and what Send returns. Nil for success.
	answer func(ctx context.Context, n int, m Message) (shown bool, err error)

	mu    sync.Mutex
	calls int
	seen  map[string]int // run/event → how often people saw it
	last  Message
}

func (c *channel) Name() string { return c.name }

func (c *channel) Send(ctx context.Context, m Message) (Receipt, error) {
	c.mu.Lock()
	c.calls++
	n := c.calls
	c.last = m
	c.mu.Unlock()
	shown, err := true, error(nil)
	if c.answer != nil {
		shown, err = c.answer(ctx, n, m)
	}
	if shown {
		c.show(m)
	}
	return Receipt{ID: "ts-" + m.RunID, Channel: "C1"}, err
}

func (c *channel) show(m Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = map[string]int{}
	}
	c.seen[m.RunID+"/"+m.Event]++
}

func (c *channel) count() (calls int, seen map[string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls, maps.Clone(c.seen)
}

// asked is a channel that can be asked what it has.
type asked struct {
	channel
	// find overrides the answer to the nth question.
	find      func(n int, there bool) (bool, error)
	questions int // guarded by mu
}

func (a *asked) Find(_ context.Context, m Message) (Receipt, bool, error) {
	a.mu.Lock()
	a.questions++
	n, there := a.questions, a.seen[m.RunID+"/"+m.Event] > 0
	a.mu.Unlock()
	if a.find != nil {
		var err error
		if there, err = a.find(n, there); err != nil {
			return Receipt{}, false, err
		}
	}
	return Receipt{ID: "found-" + m.RunID}, there, nil
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// quick are settings under which what takes minutes takes milliseconds.
func quick(opts ...Option) []Option {
	return append([]Option{
		WithLogger(quiet), WithPollInterval(5 * time.Millisecond), WithBackoff(time.Millisecond, 20*time.Millisecond),
		// A lease that a busy machine does not outlast; tests in which one ends take a shorter.
		WithSendTimeout(5 * time.Second), WithLeaseTTL(20 * time.Second), WithReconcileGrace(20 * time.Millisecond),
	}, opts...)
}

// outboxOn returns an outbox with its table in db.
func outboxOn(t *testing.T, db *gorm.DB, dest []Destination, opts ...Option) *Outbox {
	t.Helper()
	o, err := New(db, dest, opts...)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return o
}

func drain(t *testing.T, o *Outbox) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := o.Drain(ctx); err != nil {
		t.Fatal(err)
	}
}

// states are run/event → state of all rows of a destination.
func states(t *testing.T, o *Outbox, destination string) map[string]State {
	t.Helper()
	var rows []row
	if err := o.store.rows(t.Context()).Where("destination = ?", destination).Find(&rows).Error; err != nil {
		t.Fatal(err)
	}
	m := map[string]State{}
	for _, r := range rows {
		m[r.RunID+"/"+r.EventType] = r.Status
	}
	return m
}

func same[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func done(run string) Event {
	return Event{RunID: run, Type: "done", Payload: map[string]int{"phases": 7}, Content: Content{Text: run + " is done"}}
}

// bubble runs f in virtual time, with an outbox on SQLite.
func bubble(t *testing.T, dest []Destination, opts []Option, f func(t *testing.T, o *Outbox)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := dbtest.New(t, "sqlite")
		f(t, outboxOn(t, d.DB, dest, append([]Option{WithLogger(quiet)}, opts...)...))
	})
}

// running runs the outbox until the test or stop ends it.
func running(t *testing.T, o *Outbox) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- o.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

func TestSendsWhatWasEnqueued(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *dbtest.Database) {
		slack, mail := &channel{name: "slack"}, &channel{name: "mail"}
		o := outboxOn(t, d.DB, []Destination{slack, mail}, quick()...)
		must(t, o.Enqueue(t.Context(), d.DB, done("r1")))
		must(t, o.Enqueue(t.Context(), d.DB, Event{RunID: "r1", Type: "done", Content: Content{Text: "again"}})) // N7
		must(t, o.Enqueue(t.Context(), d.DB, Event{RunID: "R1", Type: "done", Destinations: []string{"mail"}}))
		must(t, o.Enqueue(t.Context(), d.DB, Event{RunID: "r1", Type: "done", Generation: 2, Destinations: []string{"mail"}}))
		drain(t, o)

		calls, seen := slack.count()
		same(t, "slack calls", calls, 1)
		same(t, "slack", seen, map[string]int{"r1/done": 1})
		_, seen = mail.count()
		same(t, "mail", seen, map[string]int{"r1/done": 2, "R1/done": 1})
		m := slack.last
		if m.CreatedAt.IsZero() || m.FirstAttemptAt.Before(m.CreatedAt) {
			t.Errorf("created %v, first attempt %v", m.CreatedAt, m.FirstAttemptAt)
		}
		m.CreatedAt, m.FirstAttemptAt = time.Time{}, time.Time{}
		same(t, "message", m, Message{
			ID: "9acc057564c3f442858bd222a49d69da", Destination: "slack", RunID: "r1", Event: "done", Generation: 1, Attempt: 1,
			Payload: []byte(`{"phases":7}`), Content: Content{Text: "r1 is done"},
		})
		var r row
		must(t, o.store.rows(t.Context()).Where("destination = 'slack'").Find(&r).Error)
		same(t, "receipt", r.Receipt, `{"id":"ts-r1","channel":"C1"}`)
		same(t, "attempts", r.Attempts, 1)
	})
}

func TestEnqueueBelongsToTheTransaction(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *dbtest.Database) {
		c := &channel{name: "slack"}
		o := outboxOn(t, d.DB, []Destination{c}, quick()...)
		boom := errors.New("boom")
		err := d.DB.Transaction(func(tx *gorm.DB) error {
			must(t, o.Enqueue(t.Context(), tx, done("rolled-back")))
			return boom
		})
		if !errors.Is(err, boom) {
			t.Fatal(err)
		}
		must(t, d.DB.Transaction(func(tx *gorm.DB) error {
			// Conditions that the host chained before are not ours.
			return o.Enqueue(t.Context(), tx.Where("nonsense = ?", 1).Table("nowhere"), done("committed"))
		}))
		drain(t, o)
		same(t, "rows", states(t, o, "slack"), map[string]State{"committed/done": StateSent})
	})
}
