package idempotent_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/nexuscore/onceq/idempotent"
)

// What Final says is what the guard does: also when a shutdown ends the context of
// a task without retries left, which asynq puts back.
func TestFinalAtAShutdownWithASpentBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var n counter
		finals, started := make(chan bool, 1), make(chan struct{}, 1)
		h := func(ctx context.Context, _ *asynq.Task) error {
			if n.add() == 2 { // the last try
				started <- struct{}{}
				<-ctx.Done()
				finals <- idempotent.MustFromContext(ctx).Final(ctx.Err())
				return ctx.Err()
			}
			if n.get() == 1 {
				return errors.New("uses the only retry")
			}
			return nil
		}
		srv := w.serve(w.guard, h)
		if err := w.enqueue("k", "{}", asynq.MaxRetry(1)); err != nil {
			t.Fatal(err)
		}
		<-started
		srv.Shutdown()
		if <-finals {
			t.Error("Final(context.Canceled) = true at a shutdown, want false: asynq puts the task back")
		}
		w.serve(w.newGuard(), h)
		time.Sleep(time.Minute)
		if r := w.lookup("k"); r.State != idempotent.StateSucceeded || n.get() != 3 {
			t.Fatalf("%v after %d attempts, want succeeded after 3", r.State, n.get())
		}
	})
}
