package idempotent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/nexuscore/onceq/idempotent"
)

// A producer dies between opening a new generation and enqueueing it. The delivery that
// is left is of the older one, and makes way for what is missing.
func TestRerunWhoseProducerDied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var n counter
		w.serve(w.guard, func(ctx context.Context, task *asynq.Task) error {
			if n.add() == 1 {
				return idempotent.RateLimited(errors.New("not now"), 30*time.Second)
			}
			if got := idempotent.MustFromContext(ctx).Generation(); got != 2 || string(task.Payload()) != "x" {
				t.Errorf("generation %d of %q, want 2 of x", got, task.Payload())
			}
			return nil
		})
		if err := w.enqueue("k", "x"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Second)
		w.openGeneration("k", 2)
		time.Sleep(time.Minute)
		if r := w.lookup("k"); r.State != idempotent.StateSucceeded || r.Generation != 2 || n.get() != 2 {
			t.Errorf("%+v after %d executions, want generation 2 succeeded after 2; tasks %v", r, n.get(), w.tasks())
		}
		if got := w.tasks(); len(got) != 0 {
			t.Errorf("tasks left: %v", got)
		}
	})
}

// While that producer may still be at it, the older delivery waits and is not dropped.
func TestOlderDeliveryWaitsForTheProducer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.openGeneration("k", 2)
		w.mini.Set("onceq:{k}:enq", "somebody")
		w.mini.SetTTL("onceq:{k}:enq", 10*time.Second)
		w.serve(w.guard, nop)
		if _, err := w.client.Enqueue(task("x"), asynq.TaskID("k"), asynq.MaxRetry(1), asynq.Timeout(time.Hour)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if got := w.tasks(); !slices.Equal(got, []string{"k retry"}) {
			t.Errorf("tasks %v, want k waiting", got)
		}
		time.Sleep(time.Minute)
		if r := w.lookup("k"); r.State != idempotent.StateSucceeded || r.Generation != 2 {
			t.Errorf("%+v, want generation 2 succeeded", r)
		}
	})
}

// openGeneration leaves what a Rerun leaves whose process died before its enqueue.
func (w *world) openGeneration(key string, generation int) {
	w.t.Helper()
	fp := idempotent.Fingerprint(taskType, []byte("x"))
	if err := w.rdb.HSet(w.t.Context(), "onceq:{"+key+"}:run", "state", "queued", "gen", generation, "fp", fp, "attempt", 0, "crashes", 0).Err(); err != nil {
		w.t.Fatal(err)
	}
}

// A success stays one, whichever generation a late delivery claims to be of.
func TestSuccessOutlastsANewerGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := make(chan idempotent.Failure, 10)
		w := newWorld(t, failures(failed))
		if err := direct(t.Context(), w.guard, "k", nop); err != nil {
			t.Fatal(err)
		}
		header := map[string]string{"onceq-key": "k", "onceq-generation": "2"}
		late := asynq.NewTaskWithHeaders(taskType, []byte("{}"), header)
		if err := w.guard.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
			t.Error("a success was executed again")
			return nil
		})).ProcessTask(t.Context(), late); err != nil {
			t.Errorf("%v, want it skipped", err)
		}
		if _, err := w.client.Enqueue(late, asynq.Deadline(time.Now().Add(time.Minute)), asynq.MaxRetry(1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		w.serve(w.guard, nop)
		time.Sleep(time.Minute)
		if r := w.lookup("k"); r.State != idempotent.StateSucceeded || len(failed) != 0 {
			t.Errorf("%v and %d failures, want succeeded and none", r.State, len(failed))
		}
	})
}

// Nothing that an attempt with this ID left in the archive ends a run that is to go on.
func TestHandOverPastAnArchivedTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		if _, err := w.client.Enqueue(task("x"), asynq.TaskID("k"), asynq.MaxRetry(0), asynq.Timeout(time.Hour)); err != nil {
			t.Fatal(err)
		}
		w.archived("k~r0") // as an earlier delivery that never began left it
		f := &refusing{match: "onceq:{k}:lock"}
		w.rdb.AddHook(f)
		srv := w.serve(w.guard, nop)
		time.Sleep(2 * time.Second)
		srv.Shutdown()
		waiting := w.tasks()
		if len(waiting) != 2 || slices.Contains(waiting, "k archived") {
			t.Fatalf("tasks %v, want k handed over to another", waiting)
		}
		f.set("")
		w.serve(w.newGuard(), nop)
		time.Sleep(time.Minute)
		if r := w.lookup("k"); r.State != idempotent.StateSucceeded {
			t.Errorf("%v, want succeeded; tasks %v", r.State, w.tasks())
		}
	})
}

// The same for one that had begun, whose token names the delivery to come.
func TestHandOverPastAnArchivedTaskOfTheToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var n counter
		w.serve(w.guard, func(ctx context.Context, _ *asynq.Task) error {
			if n.add() > 1 {
				return nil
			}
			w.archived(fmt.Sprintf("k~r%d", idempotent.MustFromContext(ctx).Token()))
			w.mini.Del("onceq:{k}:lock")
			<-ctx.Done()
			return ctx.Err()
		})
		if _, err := w.client.Enqueue(task("x"), asynq.TaskID("k"), asynq.MaxRetry(0), asynq.Timeout(time.Hour)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if r := w.lookup("k"); r.State != idempotent.StateSucceeded || n.get() != 2 {
			t.Errorf("%+v after %d attempts, want succeeded after 2; tasks %v", r, n.get(), w.tasks())
		}
	})
}

// archived leaves a task that asynq has given up.
func (w *world) archived(id string) {
	w.t.Helper()
	if _, err := w.client.Enqueue(task("x"), asynq.TaskID(id), asynq.ProcessIn(time.Hour)); err != nil {
		w.t.Error(err)
	}
	if err := w.insp.ArchiveTask("default", id); err != nil {
		w.t.Error(err)
	}
}

// What a run checkpointed is not found by the run that has its key after it was forgotten.
func TestForgottenRunStartsAfresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		stamp := func() (s string) {
			_ = direct(t.Context(), w.guard, "k", func(ctx context.Context, _ *asynq.Task) error {
				s = idempotent.StampOf(ctx)
				return errors.New("again")
			})
			return s
		}
		first := stamp()
		time.Sleep(time.Second)
		if again := stamp(); again != first {
			t.Errorf("the stamp changed from %q to %q between two attempts", first, again)
		}
		w.mini.Del("onceq:{k}:run")
		if after := stamp(); after == first {
			t.Errorf("the stamp is %q still", after)
		}
	})
}
