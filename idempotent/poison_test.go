package idempotent_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/logtest"
)

// dies is a worker that dies in the middle of its work.
func (w *world) dies(work func(context.Context)) error {
	return direct(w.t.Context(), w.guard, "k", func(ctx context.Context, _ *asynq.Task) error {
		work(ctx)
		w.mini.Del("onceq:{k}:lock")
		<-ctx.Done()
		return ctx.Err()
	})
}

// What gets on from crash to crash is no poison pill: deploys and outages hit long runs
// more often than the budget has crashes.
func TestCrashesOfARunThatGetsOnDoNotAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, idempotent.WithMaxCrashes(3))
		for i := range 10 {
			err := w.dies(func(ctx context.Context) {
				if got, want := idempotent.MustFromContext(ctx).Crashes(), min(i, 1); got != want {
					t.Errorf("attempt %d knows of %d crashes, want %d", i+1, got, want)
				}
				w.mini.Set("onceq:{k}:ckpt", "the snapshot of phase "+time.Now().String()) // as a save does
				time.Sleep(time.Second)
			})
			if !errors.Is(err, idempotent.ErrLeaseLost) {
				t.Fatalf("attempt %d: %v", i+1, err)
			}
		}
		for range 2 { // and then no more
			_ = w.dies(func(context.Context) {})
		}
		if err := w.dies(func(context.Context) { t.Error("began a fourth time at the same place") }); !errors.Is(err, idempotent.ErrPoisoned) {
			t.Errorf("%v, want ErrPoisoned", err)
		}
	})
}

// The reply that says "this is a poison pill, and now it has failed" is lost.
func TestFailureIsToldThoughItsReplyWasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := make(chan idempotent.Failure, 10)
		w := newWorld(t, idempotent.WithMaxCrashes(1), failures(failed))
		l := new(losing)
		w.rdb.AddHook(l)
		_ = w.dies(func(context.Context) {})
		l.next("onceq:{k}:lock", 1)
		if err := w.dies(func(context.Context) { t.Error("a poison pill ran") }); !errors.Is(err, idempotent.ErrUnavailable) {
			t.Fatalf("%v, want ErrUnavailable", err)
		}
		for range 3 {
			if err := w.dies(func(context.Context) { t.Error("a failed run ran") }); !errors.Is(err, idempotent.ErrAlreadyFailed) {
				t.Fatalf("%v, want ErrAlreadyFailed", err)
			}
		}
		if len(failed) != 1 {
			t.Fatalf("told %d times, want once", len(failed))
		}
		if f := <-failed; f.Key != "k" || f.Attempt != 1 || f.Token == 0 || !errors.Is(f.Err, idempotent.ErrAlreadyFailed) {
			t.Errorf("%+v, want the failure of attempt 1", f)
		}
	})
}

// Several meet the run that nobody has told of: one of them tells.
func TestFailureIsToldByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := make(chan idempotent.Failure, 10)
		w := newWorld(t, failures(failed))
		if err := w.rdb.HSet(t.Context(), "onceq:{k}:run", "state", "failed", "gen", 1, "reason", "no").Err(); err != nil {
			t.Fatal(err)
		}
		w.rdb.AddHook(&slowly{match: " 1 onceq:{k}:run 1 ", by: 100 * time.Millisecond}) // all have seen it before one tells
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if err := direct(t.Context(), w.guard, "k", nop); !errors.Is(err, idempotent.ErrAlreadyFailed) {
					t.Errorf("%v, want ErrAlreadyFailed", err)
				}
			})
		}
		wg.Wait()
		if len(failed) != 1 {
			t.Errorf("told %d times, want once", len(failed))
		}
	})
}

// The outcome was written, its reply lost, and then Redis for longer than the lease.
func TestFailureIsToldAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := make(chan idempotent.Failure, 10)
		w := newWorld(t, failures(failed))
		l := new(losing)
		w.rdb.AddHook(l)
		w.serve(w.guard, func(context.Context, *asynq.Task) error {
			l.next("onceq:{k}:run", 200)
			return idempotent.Permanent(errors.New("no"))
		})
		if err := w.enqueue("k", "x"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(40 * time.Second)
		l.next("", 0)
		time.Sleep(5 * time.Minute)
		if r := w.lookup("k"); r.State != idempotent.StateFailed || r.Reason != "no" || len(failed) != 1 {
			t.Errorf("%+v and told %d times, want failed and once", r, len(failed))
		}
	})
}

// Two recoverers on one guard claim apart: one of them fails the run, one hook is called.
func TestTwoRecoverersOnOneGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := make(chan idempotent.Failure, 10)
		var log logtest.Log
		w := newWorld(t, failures(failed), idempotent.WithLogger(log.Logger()))
		srv := w.serve(w.guard, failsFirst)
		if err := w.enqueue("k", "x", asynq.Deadline(time.Now().Add(30*time.Second))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		srv.Shutdown()
		if err := w.insp.DeleteTask("default", "k"); err != nil {
			t.Fatal(err)
		}
		if _, err := w.client.Enqueue(task("x"), asynq.TaskID("k"), asynq.Deadline(time.Now().Add(-time.Second)), asynq.ProcessIn(time.Hour)); err != nil {
			t.Fatal(err)
		}
		if err := w.insp.ArchiveTask("default", "k"); err != nil {
			t.Fatal(err)
		}
		w.recover(w.guard)
		w.recover(w.guard)
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		said := strings.Count(log.String(), `msg="onceq: run failed"`)
		if r := w.lookup("k"); r.State != idempotent.StateFailed || len(failed) != 1 || said != 1 {
			t.Errorf("%v, told %d times and logged %d times, want failed and once", r.State, len(failed), said)
		}
	})
}
