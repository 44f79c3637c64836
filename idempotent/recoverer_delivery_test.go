package idempotent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/nexuscore/onceq/idempotent"
)

// failures collects what OnFailed is told.
func failures(into chan<- idempotent.Failure) idempotent.Option {
	return idempotent.WithOnFailed(func(_ context.Context, f idempotent.Failure) { into <- f })
}

// failsFirst fails its first attempt in a way that is retried after a minute.
func failsFirst(ctx context.Context, _ *asynq.Task) error {
	if idempotent.MustFromContext(ctx).Number() == 1 {
		return idempotent.RateLimited(errors.New("not now"), time.Minute)
	}
	return nil
}

// A run that waits for a retry depends on its task. Whatever became of it, the
// run goes on: with the task that asynq has, else with what the record kept.
func TestRetryWhoseTaskIsNoLongerThere(t *testing.T) {
	for name, lose := range map[string]func(w *world) error{
		"archived":      func(w *world) error { return w.insp.ArchiveTask("default", "k") },
		"gone":          func(w *world) error { return w.insp.DeleteTask("default", "k") },
		"and its queue": func(w *world) error { return w.insp.DeleteQueue("default", true) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				seen := make(chan string, 10)
				w.serve(w.guard, func(ctx context.Context, task *asynq.Task) error {
					seen <- string(task.Payload())
					return failsFirst(ctx, task)
				})
				w.recover(w.guard)
				if err := w.enqueue("k", "what to do"); err != nil {
					t.Fatal(err)
				}
				<-seen
				time.Sleep(5 * time.Second)
				if err := lose(w); err != nil {
					t.Fatal(err)
				}
				time.Sleep(90 * time.Second)
				if r := w.lookup("k"); r.State != idempotent.StateSucceeded || r.Crashes != 0 {
					t.Fatalf("%+v, want succeeded without a crash; tasks %v", r, w.tasks())
				}
				if got := <-seen; got != "what to do" {
					t.Fatalf("payload %q, want the original's", got)
				}
			})
		})
	}
}

// A run that waits for its turn in asynq is left to it.
func TestRetryThatIsOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		srv := w.serve(w.guard, failsFirst)
		if err := w.enqueue("k", "x"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		srv.Shutdown() // a backlog: the retry falls due and nobody takes it
		w.recover(w.guard)
		time.Sleep(5 * time.Minute)
		if got := w.tasks(); !slices.Equal(got, []string{"k retry"}) {
			t.Fatalf("tasks %v, want the one that waits", got)
		}
	})
}

func TestLostPayload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := make(chan idempotent.Failure, 10)
		w := newWorld(t, failures(failed))
		w.serve(w.guard, failsFirst)
		w.recover(w.guard)
		if err := w.enqueue("k", strings.Repeat("x", 64<<10+1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if err := w.insp.DeleteTask("default", "k"); err != nil {
			t.Fatal(err)
		}
		f := <-failed
		if f.Key != "k" || f.Generation != 1 || f.Attempt != 1 || f.Task.Type() != taskType || !errors.Is(f.Err, idempotent.ErrOrphaned) {
			t.Fatalf("OnFailed got %+v, want k as orphaned", f)
		}
		r := w.lookup("k")
		if r.State != idempotent.StateFailed || r.Reason != "its task is gone and its payload was too large to keep" {
			t.Fatalf("%v %q", r.State, r.Reason)
		}
		time.Sleep(5 * time.Minute)
		if len(failed) != 0 {
			t.Fatal("OnFailed was called again")
		}
		w.checkIndexEmpty()
	})
}

// An empty payload is a payload.
func TestEmptyPayloadIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.serve(w.guard, failsFirst)
		w.recover(w.guard)
		if err := w.enqueue("k", ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if err := w.insp.DeleteTask("default", "k"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(90 * time.Second)
		if r := w.lookup("k"); r.State != idempotent.StateSucceeded {
			t.Fatalf("%v %q, want succeeded", r.State, r.Reason)
		}
	})
}

// A deadline that is over while the run waits: asynq would archive it in silence.
func TestDeadlineIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := make(chan idempotent.Failure, 10)
		w := newWorld(t, failures(failed))
		w.serve(w.guard, failsFirst)
		w.recover(w.guard)
		_, err := w.producer.Enqueue(t.Context(), "k", task("x"), asynq.Deadline(time.Now().Add(30*time.Second)), asynq.MaxRetry(1))
		if err != nil {
			t.Fatal(err)
		}
		f := <-failed
		if f.Key != "k" || !errors.Is(f.Err, idempotent.ErrOrphaned) {
			t.Fatalf("OnFailed got %+v", f)
		}
		if r := w.lookup("k"); r.State != idempotent.StateFailed || r.Reason != "its task's deadline is over" {
			t.Fatalf("%v %q, want failed for its deadline", r.State, r.Reason)
		}
	})
}

// A handler that hangs past its last timeout: asynq archives the task, and the run
// must not rest as "retrying" for ever.
func TestHungWithItsLastRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := make(chan idempotent.Failure, 10)
		w := newWorld(t, failures(failed))
		release := make(chan struct{})
		n := &counter{}
		w.serve(w.guard, func(context.Context, *asynq.Task) error {
			n.add()
			<-release
			return nil
		})
		t.Cleanup(func() { close(release) })
		w.recover(w.guard)
		if err := w.enqueue("k", "x", asynq.Timeout(20*time.Second), asynq.MaxRetry(1)); err != nil {
			t.Fatal(err)
		}
		f := <-failed
		if n.get() != 2 || f.Attempt != 2 {
			t.Errorf("%d attempts, the failure says %d; want 2", n.get(), f.Attempt)
		}
		want := "its retries are spent; the last attempt: the handler did not return within the grace after its context ended"
		if r := w.lookup("k"); r.State != idempotent.StateFailed || r.Reason != want {
			t.Fatalf("%v %q, want failed: %s", r.State, r.Reason, want)
		}
	})
}

// A payload too large to keep, and the run is handed over: its delivery waits in a long
// queue, and is not taken for gone.
func TestLargeRunThatWasHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		large := asynq.NewTask(taskType, bytes.Repeat([]byte("x"), 70<<10))
		srv := w.serve(w.guard, func(context.Context, *asynq.Task) error {
			return idempotent.RateLimited(errors.New("later"), 20*time.Second)
		})
		if _, err := w.client.Enqueue(large, asynq.TaskID("k"), asynq.MaxRetry(0), asynq.Timeout(time.Hour)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		srv.Shutdown() // nobody works for a while
		w.recover(w.guard)
		time.Sleep(5 * time.Minute)
		if r := w.lookup("k"); r.State != idempotent.StateRetrying {
			t.Fatalf("%+v, want it waiting; tasks %v", r, w.tasks())
		}
		w.serve(w.newGuard(), nop)
		time.Sleep(time.Minute)
		if r := w.lookup("k"); r.State != idempotent.StateSucceeded {
			t.Errorf("%+v, want succeeded", r)
		}
	})
}

// The same for one that hangs and reports no progress: asynq still thinks that it works.
func TestHungWithoutProgressOnItsLastRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := make(chan idempotent.Failure, 10)
		w := newWorld(t, failures(failed), idempotent.WithProgressTimeout(time.Minute))
		release := make(chan struct{})
		n := &counter{}
		w.serve(w.guard, func(context.Context, *asynq.Task) error {
			n.add()
			<-release
			return nil
		})
		t.Cleanup(func() { close(release) })
		w.recover(w.guard)
		if err := w.enqueue("k", "x", asynq.MaxRetry(1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Minute)
		if r := w.lookup("k"); r.State != idempotent.StateFailed || n.get() != 2 || len(failed) != 1 {
			t.Errorf("%+v after %d attempts and told %d times, want failed after 2 and once", r, n.get(), len(failed))
		}
	})
}

// Of an attempt that hangs, whose lease cannot be given back, its neighbours hear nothing.
func TestHungAttemptDoesNotStopTheHeart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, idempotent.WithTTL(2*time.Second), idempotent.WithProgressTimeout(3*time.Second))
		f := &slowly{match: "onceq:{leases}:waiting", by: 3 * time.Second}
		w.rdb.AddHook(f)
		var wg sync.WaitGroup
		for _, key := range []string{"h1", "h2", "h3"} {
			wg.Go(func() {
				_ = direct(t.Context(), w.guard, key, func(ctx context.Context, _ *asynq.Task) error { <-ctx.Done(); return ctx.Err() })
			})
		}
		err := direct(t.Context(), w.guard, "k", func(ctx context.Context, _ *asynq.Task) error {
			for range 20 {
				time.Sleep(time.Second)
				idempotent.Progress(ctx)
			}
			return ctx.Err()
		})
		if err != nil {
			t.Errorf("the neighbour that works: %v", err)
		}
		wg.Wait()
		time.Sleep(10 * time.Second)
	})
}

// The delivery that was given can die as well, before its attempt begins.
func TestDeliveryThatDiesBeforeItBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		events := make(chan began, 10)
		m := w.machine(hangAlways(events))
		if err := w.enqueue("k", "x"); err != nil {
			t.Fatal(err)
		}
		<-events
		w.recover(w.guard)
		m.cut.Store(true)
		time.Sleep(35 * time.Second)
		id := fmt.Sprintf("k~r%d", w.lookup("k").Token)
		if err := w.insp.ArchiveTask("default", id); err != nil { // as asynq does when its lease is over
			t.Fatal(err)
		}
		w.serve(w.guard, func(ctx context.Context, _ *asynq.Task) error {
			if got, _ := asynq.GetTaskID(ctx); got != id+".2" {
				t.Errorf("delivered as %s, want %s.2", got, id)
			}
			return nil
		})
		time.Sleep(12 * time.Second)
		if r := w.lookup("k"); r.State != idempotent.StateSucceeded || r.Attempt != 2 {
			t.Fatalf("%v, attempt %d; want succeeded in the second; tasks %v", r.State, r.Attempt, w.tasks())
		}
	})
}

// An attempt that never ends well ends the run after its crashes, with a reason.
func TestPoisonPillIsNotDeliveredForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := make(chan idempotent.Failure, 10)
		w := newWorld(t, failures(failed), idempotent.WithMaxCrashes(2))
		events := make(chan began, 10)
		first := w.machine(hangAlways(events))
		if err := w.enqueue("k", "x", asynq.MaxRetry(1)); err != nil {
			t.Fatal(err)
		}
		<-events
		w.recover(w.guard)
		first.cut.Store(true)
		second := w.machine(hangAlways(events))
		if e := <-events; e.crashes != 1 {
			t.Fatalf("%+v, want one crash", e)
		}
		second.cut.Store(true)
		w.serve(w.guard, nop)
		if f := <-failed; !errors.Is(f.Err, idempotent.ErrPoisoned) {
			t.Fatalf("OnFailed got %v, want ErrPoisoned", f.Err)
		}
		if r := w.lookup("k"); r.State != idempotent.StateFailed || r.Reason != "crashed 2 times" {
			t.Fatalf("%v %q, want failed after 2 crashes", r.State, r.Reason)
		}
	})
}

func TestRecovererOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for want, opt := range map[string]idempotent.RecovererOption{
			"onceq: invalid: WithInterval: 9ms is not between 10ms and 1m": idempotent.WithInterval(9 * time.Millisecond),
			"onceq: invalid: WithBatch: 0 is not between 1 and 1000":       idempotent.WithBatch(0),
		} {
			if _, err := idempotent.NewRecoverer(w.guard, opt); !errors.Is(err, idempotent.ErrInvalid) || err.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
		}
		if _, err := idempotent.NewRecoverer(nil); !errors.Is(err, idempotent.ErrInvalid) {
			t.Errorf("nil guard: %v, want ErrInvalid", err)
		}
		r := w.recover(w.guard, idempotent.WithoutPresence())
		if err := r.Start(); !errors.Is(err, idempotent.ErrInvalid) {
			t.Errorf("second Start: %v, want ErrInvalid", err)
		}
		r.Shutdown()
		r.Shutdown()
		if err := r.Run(t.Context()); !errors.Is(err, idempotent.ErrInvalid) {
			t.Errorf("Run after Shutdown: %v, want ErrInvalid", err)
		}
		never, err := idempotent.NewRecoverer(w.guard)
		if err != nil {
			t.Fatal(err)
		}
		never.Shutdown() // without Start
	})
}
