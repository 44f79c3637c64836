package notify

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gorm.io/gorm"

	"github.com/nexuscore/onceq/internal/database"
	"github.com/nexuscore/onceq/internal/dbtest"
	"github.com/nexuscore/onceq/internal/logtest"
)

// after calls f after every statement of one kind ("query", "update") of db, and
// lets it replace the error: what f returns is what the caller sees.
func after(t *testing.T, db *gorm.DB, kind string, f func(n int, tx *gorm.DB) error) {
	t.Helper()
	var n atomic.Int64
	call := func(tx *gorm.DB) {
		if err := f(int(n.Add(1)), tx); err != nil {
			_ = tx.AddError(err)
		}
	}
	cb, name := db.Callback(), t.Name()+kind
	var err error
	switch kind {
	case "query":
		err = cb.Query().After("gorm:after_query").Register(name, call)
	case "update":
		err = cb.Update().After("gorm:after_update").Register(name, call)
	}
	must(t, err)
}

func TestRateLimitClosesTheGateForAllOfItsDestination(t *testing.T) {
	start := time.Time{}
	var at []time.Duration
	d := Func("d", func(_ context.Context, m Message) (Receipt, error) {
		at = append(at, time.Since(start).Truncate(time.Second))
		if len(at) == 1 {
			return Receipt{}, limited(30 * time.Second)
		}
		return Receipt{}, nil
	})
	other := &channel{name: "other"}
	bubble(t, []Destination{d, other}, []Option{WithConcurrency(1)}, func(t *testing.T, o *Outbox) {
		start = time.Now()
		stop := running(t, o)
		for i := range 3 {
			must(t, o.Enqueue(t.Context(), o.store.db, done(fmt.Sprint("r", i))))
		}
		time.Sleep(20 * time.Second)
		o.Kick() // opens no gate
		calls, _ := other.count()
		same(t, "calls of the other destination meanwhile", calls, 3)
		time.Sleep(20 * time.Second)
		stop()
		same(t, "calls", at, []time.Duration{0, 30 * time.Second, 30 * time.Second, 30 * time.Second})
	})
}

// N4: 429 without Retry-After for ten minutes.
func TestRateLimitWithoutRetryAfterBacksOff(t *testing.T) {
	c := &channel{name: "d"}
	start := time.Time{}
	c.answer = func(context.Context, int, Message) (bool, error) {
		if time.Since(start) < 10*time.Minute {
			return false, limited(0)
		}
		return true, nil
	}
	bubble(t, []Destination{c}, nil, func(t *testing.T, o *Outbox) {
		start = time.Now()
		for i := range 20 {
			must(t, o.Enqueue(t.Context(), o.store.db, done(fmt.Sprint("r", i))))
		}
		running(t, o)
		time.Sleep(10 * time.Minute)
		// Up to four at once, 1 s, 2 s, 4 s ... 5 min, each between a tenth and the whole.
		if calls, _ := c.count(); calls > 120 {
			t.Errorf("%d calls in ten minutes", calls)
		}
		time.Sleep(15 * time.Minute)
		_, seen := c.count()
		same(t, "messages seen", len(seen), 20)
	})
}

func TestBackoffGrowsToItsLimit(t *testing.T) {
	for n, want := range map[int]time.Duration{0: 1, 1: 1, 2: 2, 3: 4, 9: 256, 10: 300, 50: 300, 1 << 40: 300} {
		want *= time.Second
		most := time.Duration(0)
		for range 2000 {
			d := backoff(n, time.Second, 5*time.Minute)
			if d < want/10 || d > want {
				t.Fatalf("backoff(%d) = %v, want between a tenth and all of %v", n, d, want)
			}
			most = max(most, d)
		}
		if most < want*8/10 {
			t.Errorf("backoff(%d) was at most %v of %v", n, most, want)
		}
	}
}

func TestHangingDestinationHoldsUpNobody(t *testing.T) {
	release := make(chan struct{})
	hangs := Func("hangs", func(context.Context, Message) (Receipt, error) {
		<-release // whatever its context says
		return Receipt{}, nil
	})
	c := &channel{name: "d"}
	synctest.Test(t, func(t *testing.T) {
		release = make(chan struct{})
		o := outboxOn(t, dbtest.New(t, "sqlite").DB, []Destination{hangs, c}, WithLogger(quiet), WithConcurrency(2))
		for i := range 10 {
			must(t, o.Enqueue(t.Context(), o.store.db, done(fmt.Sprint("r", i))))
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- o.Run(ctx) }()
		time.Sleep(time.Second)
		_, seen := c.count()
		same(t, "messages of the other destination", len(seen), 10)
		time.Sleep(time.Minute)
		counts, err := o.Stats(t.Context())
		must(t, err)
		same(t, "rows of the hanging one", counts["hangs"], map[State]int64{StateHeld: 2, StatePending: 8})

		cancel()
		start := time.Now()
		err = <-ended
		if took := time.Since(start); took > 22*time.Second {
			t.Errorf("Run took %v to end", took)
		}
		if err == nil || !strings.Contains(err.Error(), `"hangs" ignores its context: 2 calls`) {
			t.Errorf("Run: %v", err)
		}
		close(release)
		synctest.Wait()
		counts, err = o.Stats(t.Context())
		must(t, err)
		same(t, "rows after the late answers", counts["hangs"], map[State]int64{StateHeld: 2, StatePending: 8})
	})
}

// N9: the process is told to stop while a message is on its way.
func TestShutdownWritesWhatWasSent(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *dbtest.Database) {
		begun := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		c := &channel{name: "d", answer: func(sending context.Context, _ int, _ Message) (bool, error) {
			close(begun)
			<-ctx.Done()
			return true, sending.Err()
		}}
		o := outboxOn(t, d.DB, []Destination{c}, quick()...)
		must(t, o.Enqueue(t.Context(), d.DB, done("r")))
		ended := make(chan error, 1)
		go func() { ended <- o.Run(ctx) }()
		<-begun
		cancel()
		must(t, <-ended)
		same(t, "states", states(t, o, "d"), map[string]State{"r/done": StateSent})
	})
}

func TestShutdownGivesBackWhatWasNotBegun(t *testing.T) {
	c := &channel{name: "d"}
	bubble(t, []Destination{c}, nil, func(t *testing.T, o *Outbox) {
		ctx, cancel := context.WithCancel(t.Context())
		after(t, o.store.db, "update", func(int, *gorm.DB) error { cancel(); return nil }) // with the claim
		must(t, o.Enqueue(t.Context(), o.store.db, done("r")))
		must(t, o.Run(ctx))
		calls, _ := c.count()
		same(t, "calls", calls, 0)
		e, err := o.List(t.Context(), Filter{})
		must(t, err)
		same(t, "state", e[0].State, StatePending)
		same(t, "attempts", e[0].Attempts, 0)
	})
}

// eventually polls: rows send no event.
func eventually(t *testing.T, f func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !f(); database.Pause(t.Context(), 5*time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not happen in 20 s")
		}
	}
}

// N6: eight workers of four processes, through an outage.
func TestSeveralProcessesThroughAnOutage(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *dbtest.Database) {
		c := &asked{channel: channel{name: "d", answer: func(_ context.Context, n int, _ Message) (bool, error) {
			switch {
			case n > 60:
				return true, nil
			case n%3 == 0:
				return true, errVague
			case n%3 == 1:
				return false, errVague
			}
			return false, notSent(0)
		}}}
		var os []*Outbox
		for range 4 {
			o := outboxOn(t, d.Open(t), []Destination{c}, quick(WithConcurrency(2))...)
			os = append(os, o)
			running(t, o)
		}
		want := map[string]int{}
		for i := range 40 {
			must(t, os[i%4].Enqueue(t.Context(), os[i%4].store.db, done(fmt.Sprint("r", i))))
			want[fmt.Sprintf("r%d/done", i)] = 1
		}
		drain(t, os[0])
		_, seen := c.count()
		same(t, "seen", seen, want)
	})
}

// A reply of the database gets lost after the statement took effect.
func TestLostRepliesOfTheDatabase(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *dbtest.Database) {
		c := &channel{name: "d"}
		var log logtest.Log
		o := outboxOn(t, d.DB, []Destination{c}, quick(WithLogger(log.Logger()))...)
		var updates atomic.Int64
		after(t, o.store.db, "update", func(n int, _ *gorm.DB) error {
			updates.Store(int64(n))
			if n <= 2 { // the claim, then the mark
				return errors.New("connection reset by peer")
			}
			return nil
		})
		must(t, o.Enqueue(t.Context(), d.DB, done("r")))
		drain(t, o)
		calls, _ := c.count()
		same(t, "calls", calls, 1)
		same(t, "updates", updates.Load(), 3) // claim, mark, mark again
		if !strings.Contains(log.String(), `"notify: sent"`) || strings.Contains(log.String(), "another worker") {
			t.Errorf("log: %s", &log)
		}
		same(t, "states", states(t, o, "d"), map[string]State{"r/done": StateSent})
	})
}

// The database is away for longer than the lease, with a message just sent.
func TestResultOutlivesAnOutageOfTheDatabase(t *testing.T) {
	c := &channel{name: "d"}
	bubble(t, []Destination{c}, nil, func(t *testing.T, o *Outbox) {
		var until atomic.Int64
		c.answer = func(context.Context, int, Message) (bool, error) {
			until.Store(time.Now().Add(2 * time.Minute).Unix())
			return true, nil
		}
		for _, p := range []interface {
			Register(string, func(*gorm.DB)) error
		}{
			o.store.db.Callback().Update().Before("gorm:update"), o.store.db.Callback().Query().Before("gorm:query"),
		} {
			must(t, p.Register("outage", func(tx *gorm.DB) {
				if time.Now().Unix() < until.Load() {
					_ = tx.AddError(errors.New("connection refused"))
				}
			}))
		}
		must(t, o.Enqueue(t.Context(), o.store.db, done("r")))
		running(t, o)
		time.Sleep(5 * time.Minute)
		calls, _ := c.count()
		same(t, "calls", calls, 1)
		same(t, "states", states(t, o, "d"), map[string]State{"r/done": StateSent})
	})
}

func TestKickSavesThePoll(t *testing.T) {
	c := &channel{name: "d"}
	bubble(t, []Destination{c}, []Option{WithPollInterval(time.Hour)}, func(t *testing.T, o *Outbox) {
		running(t, o)
		time.Sleep(time.Minute)
		must(t, o.store.db.Transaction(func(tx *gorm.DB) error { return o.Enqueue(t.Context(), tx, done("r")) }))
		time.Sleep(time.Minute)
		before, _ := c.count()
		o.Kick()
		time.Sleep(time.Second)
		calls, _ := c.count()
		same(t, "calls before and after", []int{before, calls}, []int{0, 1})
	})
}

func TestGraceBeforeNotThereIsBelieved(t *testing.T) {
	a := &asked{channel: channel{name: "d"}}
	bubble(t, []Destination{a}, nil, func(t *testing.T, o *Outbox) {
		var first Message
		a.answer = func(_ context.Context, n int, m Message) (bool, error) {
			if n == 1 {
				first = m
				time.AfterFunc(8*time.Second, func() { a.show(first) }) // the destination is slow
				return false, errVague
			}
			return true, nil
		}
		must(t, o.Enqueue(t.Context(), o.store.db, done("r")))
		running(t, o)
		time.Sleep(time.Minute)
		calls, seen := a.count()
		same(t, "calls", calls, 1)
		same(t, "seen", seen, map[string]int{"r/done": 1})
		same(t, "states", states(t, o, "d"), map[string]State{"r/done": StateSent})
	})
}

func TestRunTwice(t *testing.T) {
	bubble(t, []Destination{&channel{name: "d"}}, nil, func(t *testing.T, o *Outbox) {
		stop := running(t, o)
		synctest.Wait()
		time.Sleep(time.Second)
		if err := o.Run(t.Context()); !errors.Is(err, ErrRunning) {
			t.Errorf("second Run: %v", err)
		}
		stop()
		running(t, o) // and again
		time.Sleep(time.Second)
	})
}

func TestDrainSaysWhatIsLeft(t *testing.T) {
	c := &channel{name: "d", answer: func(context.Context, int, Message) (bool, error) { return false, notSent(time.Hour) }}
	bubble(t, []Destination{c}, nil, func(t *testing.T, o *Outbox) {
		must(t, o.Enqueue(t.Context(), o.store.db, done("r")))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := o.Drain(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 notifications are left") {
			t.Errorf("Drain: %v", err)
		}
	})
}
