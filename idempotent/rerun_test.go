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

// A rerun right after the failure, within the window of the enqueue that is long done.
func TestRerunOfARunThatFailedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var n counter
		w.serve(w.guard, func(context.Context, *asynq.Task) error {
			if n.add() == 1 {
				return idempotent.Permanent(errors.New("no"))
			}
			return nil
		})
		if err := w.enqueue("k", "x"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if r := w.lookup("k"); r.State != idempotent.StateFailed || r.Reason != "no" {
			t.Fatalf("%+v, want failed for the reason %q", r, "no")
		}
		if _, err := w.producer.Rerun(t.Context(), "k", task("x"), idempotent.RerunOptions{}, asynq.Timeout(time.Hour)); err != nil {
			t.Fatalf("Rerun within the window: %v", err)
		}
		var dup *idempotent.DuplicateError
		if _, err := w.producer.Rerun(t.Context(), "k", task("x"), idempotent.RerunOptions{}, asynq.Timeout(time.Hour)); !errors.As(err, &dup) || dup.State != idempotent.StateQueued {
			t.Errorf("a second one at once: %v, want ErrDuplicate in state queued", err)
		}
		time.Sleep(2 * time.Second)
		if r := w.lookup("k"); r.State != idempotent.StateSucceeded || r.Generation != 2 || n.get() != 2 {
			t.Errorf("%+v after %d executions, want generation 2 succeeded after 2", r, n.get())
		}
	})
}

// The record of a run that is to begin long after the retention is still there then.
func TestRunThatBeginsAfterTheRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, idempotent.WithRetention(10*time.Minute), idempotent.WithTTL(time.Minute))
		if err := w.enqueue("k", "x", asynq.ProcessIn(20*time.Minute)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Minute)
		if err := w.enqueue("k", "y", asynq.Queue("other")); !errors.Is(err, idempotent.ErrPayloadMismatch) {
			t.Errorf("enqueued again with another payload: %v, want ErrPayloadMismatch", err)
		}
		if err := w.enqueue("l", "x", asynq.ProcessIn(367*24*time.Hour)); !errors.Is(err, idempotent.ErrInvalid) {
			t.Errorf("in more than a year: %v, want ErrInvalid", err)
		}
	})
}

// A run of which nothing is known is not a failed one after a Rerun that failed.
func TestFailedRerunOfAnUnknownRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &failing{err: errors.New("refused"), next: w.client}
		p, err := idempotent.NewProducer(w.guard, f)
		if err != nil {
			t.Fatal(err)
		}
		rerun := func() error {
			_, err := p.Rerun(t.Context(), "k", task("x"), idempotent.RerunOptions{}, asynq.Timeout(time.Hour))
			return err
		}
		if err := rerun(); !errors.Is(err, idempotent.ErrUnavailable) || !errors.Is(err, f.err) {
			t.Fatalf("err = %v, want ErrUnavailable wrapping the client's", err)
		}
		if keys := w.mini.Keys(); len(keys) != 0 {
			t.Errorf("left behind: %v", keys)
		}
		f.after = true
		if err := rerun(); err != nil {
			t.Errorf("the task got in all the same: %v, want queued", err)
		}
		w.in(idempotent.StateQueued, 2)
	})
}

// asynq's archive remembers failed runs for longer than their records live.
func TestRerunOfAForgottenRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		fail := true
		w.serve(w.guard, func(context.Context, *asynq.Task) error {
			if fail {
				return idempotent.Permanent(errors.New("no"))
			}
			return nil
		})
		forgotten := func() {
			t.Helper()
			time.Sleep(15 * time.Second)
			w.mini.Del("onceq:{k}:run")
		}
		queued := func(payload string, how idempotent.RerunOptions, id string) {
			t.Helper()
			if info, err := w.rerun(payload, how); err != nil || info.ID != id {
				t.Fatalf("Rerun: %+v, %v; want the task %s", info, err, id)
			}
		}
		if err := w.enqueue("k", "x"); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"k~g2", "k~g3", "k~g4"} {
			time.Sleep(2 * time.Second)
			queued("x", idempotent.RerunOptions{}, id)
		}
		forgotten()
		wantDup(t, w.enqueue("k", "x"), idempotent.StateFailed)
		if _, err := w.rerun("y", idempotent.RerunOptions{}); !errors.Is(err, idempotent.ErrPayloadMismatch) {
			t.Errorf("resumed with another payload: %v, want ErrPayloadMismatch", err)
		}
		if w.mini.Exists("onceq:{k}:run") {
			t.Error("a refused rerun left a record behind")
		}
		queued("x", idempotent.RerunOptions{}, "k~g5")
		forgotten()
		fail = false
		queued("y", idempotent.RerunOptions{FromScratch: true}, "k~g9")
		time.Sleep(2 * time.Second)
		w.in(idempotent.StateSucceeded, 9)
	})
}
