package orchestrator_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nexuscore/onceq/checkpoint"
	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/notify"
	"github.com/nexuscore/onceq/orchestrator"
)

func TestTwoClicksAreOneRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.serve()
		var wg sync.WaitGroup
		answers := make(chan error, 20)
		for range 20 {
			wg.Go(func() {
				_, err := w.dispatcher.Create(t.Context(), orchestrator.NewRun{RunID: "7", Requirement: "build a thing"})
				answers <- err
			})
		}
		wg.Wait()
		accepted := 0
		for range 20 {
			switch err := <-answers; {
			case err == nil:
				accepted++
			case !errors.Is(err, idempotent.ErrDuplicate) && !errors.Is(err, idempotent.ErrAlreadySucceeded):
				t.Errorf("Create = %v", err)
			}
		}
		if accepted != 1 {
			t.Errorf("%d of 20 were accepted, want 1", accepted)
		}
		time.Sleep(10 * time.Second)
		if n := w.team.total(); n != 7 {
			t.Errorf("%d phases were run, want 7", n)
		}
	})
}

func TestAnotherRequirementUnderTheSameID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		for _, state := range []idempotent.State{idempotent.StateQueued, idempotent.StateRetrying, idempotent.StateSucceeded} {
			w.team.hook = nil
			switch state {
			case idempotent.StateQueued:
				w.create("7")
			case idempotent.StateRetrying:
				w.team.hook = failing("review", 1, errBoom)
				_ = w.deliver("7", "1")
			case idempotent.StateSucceeded:
				_ = w.deliver("7", "1")
			}
			_, err := w.dispatcher.Create(t.Context(), orchestrator.NewRun{RunID: "7", Requirement: "build another thing"})
			var other *idempotent.PayloadMismatchError
			if !errors.As(err, &other) || other.State != state {
				t.Errorf("while %v: %v", state, err)
			}
		}
		// Redis remembers what the table has lost.
		w.must(w.db.Exec("DELETE FROM onceq_runs").Error)
		run, err := w.dispatcher.Create(t.Context(), orchestrator.NewRun{RunID: "7", Requirement: "build another thing"})
		if !errors.Is(err, idempotent.ErrPayloadMismatch) || run != (orchestrator.Run{}) {
			t.Errorf("after the row is gone: %+v, %v, want no run", run, err)
		}
		if _, err := w.dispatcher.Status(t.Context(), "7"); !errors.Is(err, orchestrator.ErrNotFound) {
			t.Errorf("the refused run has a row: %v", err)
		}
	})
}

// The producer finds out that the run is queued.
func TestAnEnqueueWhoseReplyWasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, f := withFlaky(t, setup{})
		f.after = errDead
		if _, err := w.dispatcher.Create(t.Context(), orchestrator.NewRun{RunID: "7", Requirement: "build a thing"}); err != nil {
			t.Fatalf("Create = %v", err)
		}
		if _, err := w.dispatcher.Create(t.Context(), orchestrator.NewRun{RunID: "7", Requirement: "build a thing"}); !errors.Is(err, idempotent.ErrDuplicate) {
			t.Errorf("asked again: %v, want a duplicate: it is queued", err)
		}
		unnamed, err := w.dispatcher.Create(t.Context(), orchestrator.NewRun{Requirement: "build a thing"})
		if err != nil {
			t.Fatalf("Create = %v", err)
		}
		w.serve()
		time.Sleep(10 * time.Second)
		w.is("7", orchestrator.StatusSuccess)
		w.is(unnamed.RunID, orchestrator.StatusSuccess)
		if n := w.team.total(); n != 14 {
			t.Errorf("%d phases were run, want 14", n)
		}
	})
}

func TestACallerWhoHangsUpGetsItsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := w.dispatcher.Create(ctx, orchestrator.NewRun{RunID: "7", Requirement: "build a thing"}); err != nil {
			t.Fatal(err)
		}
		if n := w.rdb.LLen(t.Context(), "asynq:{default}:pending").Val(); n != 1 {
			t.Errorf("%d tasks, want 1", n)
		}
	})
}

func TestRerunAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		_, err := w.dispatcher.Rerun(t.Context(), "nobody", false)
		if !errors.Is(err, orchestrator.ErrNotFound) {
			t.Errorf("of no run: %v", err)
		}
		w.create("7")
		var dup *idempotent.DuplicateError
		if _, err = w.dispatcher.Rerun(t.Context(), "7", false); !errors.As(err, &dup) || dup.State != idempotent.StateQueued {
			t.Errorf("of a queued run: %v", err)
		}
		w.team.hook = failing("review", 1, idempotent.Permanent(errBoom))
		_ = w.deliver("7", "1")
		before := w.status("7")
		// Redis refuses while a lease is held: the row must say FAILED again.
		lock := "onceq:{orchestrator-run-7}:lock"
		w.must(w.rdb.Set(t.Context(), lock, "another", time.Minute).Err())
		_, err = w.dispatcher.Rerun(t.Context(), "7", false)
		if !errors.As(err, &dup) || dup.State != idempotent.StateRunning || dup.RetryAfter <= 0 {
			t.Errorf("of a run that is held: %v", err)
		}
		w.must(w.rdb.Del(t.Context(), lock).Err())
		after := w.status("7")
		before.Revision, before.UpdatedAt, after.Revision, after.UpdatedAt = 0, 0, 0, 0
		diff(t, "row", after, before)

		var wg sync.WaitGroup
		answers := make(chan error, 8)
		for range 8 {
			wg.Go(func() { _, err := w.dispatcher.Rerun(t.Context(), "7", false); answers <- err })
		}
		wg.Wait()
		won := 0
		for range 8 {
			if err := <-answers; err == nil {
				won++
			} else if !errors.Is(err, idempotent.ErrDuplicate) {
				t.Errorf("Rerun = %v", err)
			}
		}
		if run := w.status("7"); won != 1 || run.Generation != 2 || run.Status != orchestrator.StatusPending {
			t.Errorf("%d of 8 won, run %+v", won, run)
		}
		// A delivery of the first generation comes late.
		_ = w.deliver("7", "1")
		if run := w.status("7"); run.Status != orchestrator.StatusPending {
			t.Errorf("a stale delivery made it %s", run.Status)
		}
	})
}

func TestTheTableRefusesAnOldGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.create("7")
		w.must(w.db.Exec("UPDATE onceq_runs SET generation = 2").Error) // Redis does not know
		if err := w.deliver("7", "1"); err == nil || errors.Is(err, idempotent.ErrLeaseLost) {
			t.Errorf("err = %v, want one that ends the delivery", err)
		}
		if n := w.team.total(); n != 0 {
			t.Errorf("%d phases were run", n)
		}
		w.is("7", orchestrator.StatusPending)
		diff(t, "notifications", w.notes(), []string{})
	})
}

func TestConstructors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		bad := map[string]error{}
		add := func(name string, err error) { bad[name] = err }
		_, err := orchestrator.NewRuns(nil, nil)
		add("db", err)
		_, err = orchestrator.NewRuns(w.db, nil, orchestrator.WithTable("Runs; DROP"))
		add("WithTable", err)
		_, err = orchestrator.NewRuns(w.db, nil, orchestrator.WithTaskType("a-b"))
		add("WithTaskType", err)
		_, err = orchestrator.NewRuns(w.db, nil, orchestrator.WithLogger(nil))
		add("WithLogger", err)
		_, err = orchestrator.NewRuns(w.db, nil, orchestrator.WithMaxInput(0))
		add("WithMaxInput", err)
		_, err = orchestrator.NewRuns(w.db, nil, orchestrator.WithBuilders(nil, nil))
		add("WithBuilders", err)
		_, err = orchestrator.NewRuns(w.db, nil, orchestrator.WithReport(nil))
		add("WithReport", err)
		tx := w.db.Begin()
		_, err = orchestrator.NewRuns(tx, nil)
		tx.Rollback()
		add("transaction", err)
		_, err = orchestrator.NewRuns(w.db, (*notify.Outbox)(nil))
		add("nil *notify.Outbox", err)
		_, err = orchestrator.NewRuns(w.db, nil, nil)
		add("option 0 is nil", err)
		_, err = orchestrator.NewDispatcher(w.runs, nil)
		add("producer", err)
		_, err = orchestrator.NewDispatcher(w.runs, w.producer, orchestrator.WithQueue("q"), nil)
		add("option 1 is nil", err)
		_, err = orchestrator.NewDispatcher(w.runs, w.producer, orchestrator.WithTimeout(time.Millisecond))
		add("WithTimeout", err)
		_, err = orchestrator.NewDispatcher(w.runs, w.producer, orchestrator.WithQueue(""))
		add("WithQueue", err)
		_, err = orchestrator.NewDispatcher(w.runs, w.producer, orchestrator.WithMaxRetry(-1))
		add("WithMaxRetry", err)
		_, err = orchestrator.NewSweeper(nil)
		add("dispatcher", err)
		_, err = orchestrator.NewSweeper(w.dispatcher, orchestrator.WithInterval(0))
		add("WithInterval", err)
		_, err = orchestrator.NewSweeper(w.dispatcher, orchestrator.WithThreshold(0))
		add("WithThreshold", err)
		_, err = orchestrator.NewSweeper(w.dispatcher, orchestrator.WithBatch(0))
		add("WithBatch", err)
		_, err = orchestrator.NewSweeper(w.dispatcher, orchestrator.WithBatch(1), orchestrator.WithBatch(2), nil)
		add("option 2 is nil", err)
		o := w.orchestration()
		o.Start = nil
		_, err = orchestrator.NewHandler(w.runs, w.store, o)
		add("Start", err)
		o = w.orchestration()
		o.Phases = nil
		_, err = orchestrator.NewHandler(w.runs, w.store, o)
		add("phases: 0 given", err)
		o = w.orchestration()
		o.Phases[3].Name = "context"
		_, err = orchestrator.NewHandler(w.runs, w.store, o)
		add(`the name "context" is that of phases[0]`, err)
		o = w.orchestration()
		o.Phases[3].Run = nil
		_, err = orchestrator.NewHandler(w.runs, w.store, o)
		add("phases[3]", err)
		_, err = orchestrator.NewHandler(w.runs, nil, w.orchestration())
		add("store", err)
		_, err = orchestrator.NewHandler(w.runs, (*checkpoint.RedisStore)(nil), w.orchestration())
		add("onceq: invalid: store is nil", err)
		_, err = orchestrator.NewHandler(w.runs, w.store, w.orchestration(), checkpoint.WithTTL(0))
		add("WithTTL: 0s", err)
		_, err = orchestrator.NewHandler(w.runs, w.store, w.orchestration(), checkpoint.WithBreaker(1, time.Second))
		add("WithBreaker", err)
		_, err = orchestrator.NewHandler(w.runs, w.store, w.orchestration(), nil)
		add("onceq: invalid: option 0 is nil", err)
		for name, err := range bad {
			if !errors.Is(err, idempotent.ErrInvalid) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}
