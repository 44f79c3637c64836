package notify

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nexuscore/onceq/internal/database"
	"github.com/nexuscore/onceq/internal/dbtest"
)

func TestOperators(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *dbtest.Database) {
		c := &channel{name: "d"}
		c.answer = func(_ context.Context, _ int, m Message) (bool, error) {
			switch c.mu.Lock(); {
			case strings.HasPrefix(m.RunID, "vague"):
				defer c.mu.Unlock()
				if c.calls < 5 {
					return false, errVague
				}
			case m.RunID == "refused" && c.calls < 5:
				defer c.mu.Unlock()
				return false, errPermanent
			default:
				defer c.mu.Unlock()
			}
			return true, nil
		}
		o := outboxOn(t, d.DB, []Destination{c}, quick(WithConcurrency(1))...)
		for _, run := range []string{"taken", "vague1", "vague2", "refused"} {
			must(t, o.Enqueue(t.Context(), d.DB, done(run)))
		}
		drain(t, o)
		same(t, "states", states(t, o, "d"), map[string]State{
			"taken/done": StateSent, "vague1/done": StateHeld, "vague2/done": StateHeld, "refused/done": StateFailed,
		})
		ids := map[string]int64{}
		all, err := o.List(t.Context(), Filter{})
		must(t, err)
		for _, e := range all {
			ids[e.RunID] = e.ID
		}
		held, err := o.List(t.Context(), Filter{State: StateHeld, Destination: "d", Limit: 1})
		must(t, err)
		same(t, "first page", held[0].RunID, "vague1")
		held, err = o.List(t.Context(), Filter{State: StateHeld, After: held[0].ID})
		must(t, err)
		same(t, "second page", []any{len(held), held[0].RunID, held[0].Attempts, held[0].Event}, []any{1, "vague2", 1, "done"})
		one, err := o.List(t.Context(), Filter{RunID: "refused"})
		must(t, err)
		same(t, "by run", []any{len(one), one[0].LastError}, []any{1, "permanent: channel_not_found"})

		for what, err := range map[string]error{
			"requeue what was sent": o.Requeue(t.Context(), ids["taken"]),
			"resolve what was sent": o.Resolve(t.Context(), ids["taken"], false),
		} {
			if !errors.Is(err, ErrState) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if err := o.Requeue(t.Context(), 1<<40); !errors.Is(err, ErrNotFound) {
			t.Errorf("requeue what is not there: %v", err)
		}
		must(t, o.Resolve(t.Context(), ids["vague1"], true))
		must(t, o.Resolve(t.Context(), ids["vague2"], false))
		must(t, o.Requeue(t.Context(), ids["refused"]))
		drain(t, o)
		same(t, "states", states(t, o, "d"), map[string]State{
			"taken/done": StateSent, "vague1/done": StateSent, "vague2/done": StateSent, "refused/done": StateSent,
		})
		_, seen := c.count()
		same(t, "seen", seen, map[string]int{"taken/done": 1, "vague2/done": 1, "refused/done": 1})
		stats, err := o.Stats(t.Context())
		must(t, err)
		same(t, "stats", stats, map[string]map[State]int64{"d": {StateSent: 4}})
	})
}

// Ten people press the button at once.
func TestOperatorsAreCompareAndSet(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *dbtest.Database) {
		c := &channel{name: "d", answer: func(context.Context, int, Message) (bool, error) { return false, errVague }}
		o := outboxOn(t, d.DB, []Destination{c}, quick()...)
		must(t, o.Enqueue(t.Context(), d.DB, done("r")))
		drain(t, o)
		e, err := o.List(t.Context(), Filter{})
		must(t, err)
		var wg sync.WaitGroup
		won := make(chan bool, 10)
		for i := range 10 {
			wg.Go(func() {
				err := o.Resolve(t.Context(), e[0].ID, i%2 == 0)
				if err != nil && !errors.Is(err, ErrState) && !database.Repeatable(err) {
					t.Errorf("Resolve: %v", err)
				}
				won <- err == nil
			})
		}
		wg.Wait()
		close(won)
		n := 0
		for w := range won {
			if w {
				n++
			}
		}
		same(t, "winners", n, 1)
	})
}

// A check that is under way when a person decides changes nothing afterwards.
func TestResolveBeatsTheCheckUnderWay(t *testing.T) {
	asking, answer := make(chan struct{}, 1), make(chan struct{})
	a := &asked{channel: channel{name: "d", answer: func(context.Context, int, Message) (bool, error) { return false, errVague }}}
	a.find = func(n int, _ bool) (bool, error) {
		asking <- struct{}{}
		<-answer
		return false, nil
	}
	d := dbtest.New(t, "sqlite")
	o := outboxOn(t, d.DB, []Destination{a}, quick(WithReconcileGrace(0))...)
	must(t, o.Enqueue(t.Context(), d.DB, done("r")))
	stop := running(t, o)
	<-asking
	e, err := o.List(t.Context(), Filter{State: StateUncertain})
	must(t, err)
	must(t, o.Resolve(t.Context(), e[0].ID, true))
	close(answer)
	stop()
	same(t, "states", states(t, o, "d"), map[string]State{"r/done": StateSent})
	calls, _ := a.count()
	same(t, "calls", calls, 1)
}

func TestLimitOnAskingDoesNotHoldUpSending(t *testing.T) {
	a := &asked{channel: channel{name: "d"}}
	bubble(t, []Destination{a}, nil, func(t *testing.T, o *Outbox) {
		a.answer = func(_ context.Context, n int, _ Message) (bool, error) {
			if n <= 5 {
				return true, errVague
			}
			return true, nil
		}
		begun := time.Now()
		a.find = func(_ int, there bool) (bool, error) {
			if time.Since(begun) < time.Second { // one, or all that were on their way when the first was refused
				return false, limited(time.Minute)
			}
			return there, nil
		}
		for _, run := range []string{"1", "2", "3", "4", "5", "6", "7", "8"} {
			must(t, o.Enqueue(t.Context(), o.store.db, done(run)))
		}
		running(t, o)
		time.Sleep(30 * time.Second)
		calls, _ := a.count()
		same(t, "sent meanwhile", calls, 8)
		if a.mu.Lock(); a.questions > 4 {
			t.Errorf("%d questions in the minute of silence", a.questions)
		}
		a.mu.Unlock()
		time.Sleep(2 * time.Minute)
		_, seen := a.count()
		same(t, "seen", seen["1/done"], 1)
		stats, err := o.Stats(t.Context())
		must(t, err)
		same(t, "stats", stats["d"], map[State]int64{StateSent: 8})
	})
}

type advised struct{ channel }

func (*advised) DefaultPolicy() Policy { return PolicyResend }

func TestDestinationAdvisesItsPolicy(t *testing.T) {
	db := dbtest.New(t, "sqlite").DB
	for _, c := range []struct {
		opts []Option
		want Policy
	}{{nil, PolicyResend}, {[]Option{WithPolicy("d", PolicyHold)}, PolicyHold}} {
		o, err := New(db, []Destination{&advised{channel{name: "d"}}}, c.opts...)
		must(t, err)
		same(t, "policy", o.lanes[0].policy, c.want)
	}
}

// This machine's clock is an hour off; that of the database counts.
func TestTheDatabasesClockCounts(t *testing.T) {
	dbtest.EachDialect(t, func(t *testing.T, d *dbtest.Database) {
		s := &newFor(t, d.DB).store
		s.clock.offset.Store(int64(time.Hour))
		s.compare(t.Context())
		got := time.Until(s.time())
		if s.dialect == sqlite {
			same(t, "offset without a server", got.Round(time.Minute), time.Hour)
			return
		}
		if got.Abs() > time.Second {
			t.Errorf("offset %v, want next to none: it is the same machine", got)
		}
		if s.dialect == mysql { // can be told another time
			pool, err := d.DB.DB()
			must(t, err)
			pool.SetMaxOpenConns(1)
			execSQL(t, d.DB, "SET timestamp = UNIX_TIMESTAMP() + 600")
			s.compare(t.Context())
			same(t, "offset", time.Until(s.time()).Round(10*time.Second), 10*time.Minute)
		}
	})
}
