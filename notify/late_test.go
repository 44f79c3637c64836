package notify

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/nexuscore/onceq/internal/dbtest"
)

// N8: a worker that is frozen between its claim and its POST.
func TestFrozenWorkerDoesNotPost(t *testing.T) {
	for _, frozen := range []time.Duration{20 * time.Second, 40 * time.Second, 10 * time.Minute} {
		t.Run(frozen.String(), func(t *testing.T) {
			c := &channel{name: "d"}
			second := &channel{name: "d"}
			bubble(t, []Destination{c}, []Option{WithPolicy("d", PolicyResend)}, func(t *testing.T, o *Outbox) {
				var froze atomic.Bool
				after(t, o.store.db, "query", func(_ int, tx *gorm.DB) error {
					if strings.Contains(tx.Statement.SQL.String(), "token = ") && froze.CompareAndSwap(false, true) {
						time.Sleep(frozen)
					}
					return nil
				})
				must(t, o.Enqueue(t.Context(), o.store.db, done("r")))
				stop := running(t, o)
				time.Sleep(time.Second)
				// Another process has the table, too. (Virtual time has one SQLite file.)
				o2, err := New(o.store.db.Session(&gorm.Session{}), []Destination{second}, WithLogger(quiet), WithPolicy("d", PolicyResend))
				must(t, err)
				running(t, o2)
				time.Sleep(frozen + time.Minute)
				stop()
				calls, _ := c.count()
				others, _ := second.count()
				if frozen > 30*time.Second {
					same(t, "calls of the frozen worker", calls, 0)
				}
				same(t, "calls of both", calls+others, 1)
				same(t, "states", states(t, o, "d"), map[string]State{"r/done": StateSent})
			})
		})
	}
}

// N8: a send that outlives its lease: what comes back late changes nothing.
func TestLateResultChangesNothing(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *dbtest.Database) {
		late, began := make(chan struct{}), make(chan struct{})
		c := Func("d", func(context.Context, Message) (Receipt, error) {
			close(began)
			<-late
			return Receipt{ID: "late"}, nil
		})
		o := outboxOn(t, d.DB, []Destination{c}, quick(WithSendTimeout(20*time.Millisecond), WithLeaseTTL(50*time.Millisecond))...)
		must(t, o.Enqueue(t.Context(), d.DB, done("r")))
		stop := running(t, o)
		<-began
		eventually(t, func() bool { return states(t, o, "d")["r/done"] == StateHeld })
		close(late)
		stop()
		e, err := o.List(t.Context(), Filter{})
		must(t, err)
		same(t, "state", e[0].State, StateHeld)
		same(t, "receipt", e[0].Receipt, Receipt{})
	})
}

// N8: what comes back late meets the next attempt in the same state.
func TestLateResultDoesNotTouchTheNextAttempt(t *testing.T) {
	c := &channel{name: "d", answer: func(_ context.Context, n int, _ Message) (bool, error) {
		if n == 1 {
			time.Sleep(35 * time.Second) // whatever its context says
			return false, notSent(0)
		}
		time.Sleep(8 * time.Second)
		return true, nil
	}}
	bubble(t, []Destination{c}, []Option{WithPolicy("d", PolicyResend)}, func(t *testing.T, o *Outbox) {
		must(t, o.Enqueue(t.Context(), o.store.db, done("r")))
		running(t, o)
		time.Sleep(34 * time.Second)
		calls, _ := c.count()
		same(t, "calls", calls, 2)
		time.Sleep(time.Minute)
		calls, seen := c.count()
		same(t, "calls", calls, 2)
		same(t, "seen", seen, map[string]int{"r/done": 1})
		same(t, "states", states(t, o, "d"), map[string]State{"r/done": StateSent})
	})
}
