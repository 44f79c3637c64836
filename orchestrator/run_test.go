package orchestrator_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/redistest"
	"github.com/nexuscore/onceq/orchestrator"
)

func diff(t *testing.T, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func TestARunFromPostToSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.serve()
		run := w.create("7")
		if run.Status != orchestrator.StatusPending || run.Generation != 1 || run.ID == 0 {
			t.Errorf("created: %+v", run)
		}
		time.Sleep(10 * time.Second)
		run = w.status("7")
		if run.Status != orchestrator.StatusSuccess || run.PhasesDone != 7 || run.PhasesTotal != 7 || run.Phase != "review" ||
			run.Result != `{"phases":7}` || run.Attempts != 1 || run.FinishedAt == 0 || !run.Settled {
			t.Errorf("run: %+v", run)
		}
		if n := w.team.total(); n != 7 {
			t.Errorf("%d phases were run, want 7", n)
		}
		diff(t, "notifications", w.notes(), []string{"orchestrator_complete/1"})
		diff(t, "history", w.kinds("7"), []orchestrator.HistoryKind{
			"created", "attempt_begun", "phase_finished", "phase_finished", "phase_finished", "phase_finished",
			"phase_finished", "phase_finished", "phase_finished", "succeeded",
		})
		seen, err := w.guard.Lookup(t.Context(), w.runs.Key("7"))
		if err != nil || seen.State != idempotent.StateSucceeded || string(seen.Result) != `{"phases":7}` {
			t.Errorf("Lookup = %+v, %v", seen, err)
		}
		if keys := w.rdb.Keys(t.Context(), "onceq:*ckpt").Val(); len(keys) != 0 {
			t.Errorf("checkpoint left behind: %v", keys)
		}
	})
}

func TestAFailedAttemptResumesWhereItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.team.hook = failing("architecture", 2, errBoom)
		w.serve()
		w.create("7")
		time.Sleep(time.Minute)
		w.is("7", orchestrator.StatusSuccess)
		diff(t, "calls", w.team.calls, map[string]int{
			"context": 1, "requirements": 1, "planning": 1, "architecture": 3, "implementation": 1, "testing": 1, "review": 1,
		})
		diff(t, "notifications", w.notes(), []string{"orchestrator_complete/1"})
		if run := w.status("7"); run.Attempts != 3 || run.Error != "" || run.Result != `{"phases":7}` {
			t.Errorf("run: %+v", run)
		}
		diff(t, "history", w.kinds("7"), []orchestrator.HistoryKind{
			"created", "attempt_begun", "phase_finished", "phase_finished", "phase_finished", "phase_failed", "attempt_failed",
			"attempt_begun", "resumed", "phase_failed", "attempt_failed",
			"attempt_begun", "resumed", "phase_finished", "phase_finished", "phase_finished", "phase_finished", "succeeded",
		})
	})
}

func TestFailedOnlyWhenNoRetryIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{dispatcher: []orchestrator.DispatcherOption{orchestrator.WithMaxRetry(2)}})
		var during []orchestrator.Status
		fail := failing("testing", 1000, errBoom)
		w.team.hook = func(ctx context.Context, phase string, call int) error {
			if phase == "testing" && call > 1 {
				entries, _ := w.runs.History(t.Context(), "7")
				for _, e := range entries {
					if e.Kind == orchestrator.KindRunFailed {
						during = append(during, orchestrator.StatusFailed)
					}
				}
			}
			return fail(ctx, phase, call)
		}
		w.serve()
		w.create("7")
		time.Sleep(2 * time.Minute)
		run := w.status("7")
		if run.Status != orchestrator.StatusFailed || run.Attempts != 3 || run.Phase != "testing" || run.PhasesDone != 5 ||
			run.Error != `phase "testing": boom` {
			t.Errorf("run: %+v", run)
		}
		if len(during) > 0 {
			t.Errorf("the run was FAILED while a retry was left")
		}
		diff(t, "notifications", w.notes(), []string{"orchestrator_failed/1"})
		if keys := w.rdb.Keys(t.Context(), "onceq:*ckpt").Val(); len(keys) != 1 {
			t.Errorf("the checkpoint of a failed run is gone: %v", keys)
		}

		w.team.hook = nil
		again, err := w.dispatcher.Rerun(t.Context(), "7", false)
		if err != nil || again.Status != orchestrator.StatusPending || again.Generation != 2 {
			t.Fatalf("Rerun = %+v, %v", again, err)
		}
		time.Sleep(10 * time.Second)
		run = w.status("7")
		if run.Status != orchestrator.StatusSuccess || run.Generation != 2 || run.Attempts != 1 || run.Error != "" {
			t.Errorf("after the rerun: %+v", run)
		}
		if n := w.team.count("context"); n != 1 {
			t.Errorf("phase context ran %d times, want 1: the rerun resumes", n)
		}
		diff(t, "notifications", w.notes(), []string{"orchestrator_failed/1", "orchestrator_complete/2"})
	})
}

func TestRerunFromScratch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.team.hook = failing("review", 1, idempotent.Permanent(errBoom))
		w.serve()
		w.create("7")
		time.Sleep(10 * time.Second)
		w.is("7", orchestrator.StatusFailed)
		if _, err := w.dispatcher.Rerun(t.Context(), "7", true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		w.is("7", orchestrator.StatusSuccess)
		if n := w.team.count("context"); n != 2 {
			t.Errorf("phase context ran %d times, want 2: from scratch", n)
		}
		_, err := w.dispatcher.Rerun(t.Context(), "7", false)
		if !errors.Is(err, idempotent.ErrAlreadySucceeded) {
			t.Errorf("Rerun of a run that succeeded: %v", err)
		}
	})
}

func TestPanicAndTimeoutAreFailuresOfTheAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{dispatcher: []orchestrator.DispatcherOption{orchestrator.WithTimeout(time.Minute)}})
		w.team.hook = func(ctx context.Context, phase string, call int) error {
			switch {
			case phase == "planning" && call == 1:
				panic("lost the plan")
			case phase == "testing" && call == 1:
				<-ctx.Done() // asynq discards what comes now
				return ctx.Err()
			}
			return nil
		}
		w.serve()
		w.create("7")
		time.Sleep(59 * time.Second)
		if run := w.status("7"); run.Error != "panic: lost the plan" || run.Attempts != 2 {
			t.Errorf("after the panic: %+v", run)
		}
		time.Sleep(time.Minute)
		w.is("7", orchestrator.StatusSuccess)
		if n := w.team.total(); n != 9 {
			t.Errorf("%d phases were run, want 9", n)
		}
	})
}

// What a panic carries counts as if it had been returned.
func TestAPanicWithAPermanentErrorIsNotRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.team.hook = func(context.Context, string, int) error { panic(idempotent.Permanent(errBoom)) }
		w.create("7")
		if err := w.deliver("7", "1"); !errors.Is(err, errBoom) {
			t.Errorf("err = %v, want boom", err)
		}
		if run := w.status("7"); run.Status != orchestrator.StatusFailed || run.Error != "panic: boom" {
			t.Errorf("%s (%s), want FAILED: no retry helps", run.Status, run.Error)
		}
	})
}

func TestATimeoutWithoutRetriesLeftIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{dispatcher: []orchestrator.DispatcherOption{
			orchestrator.WithTimeout(time.Minute), orchestrator.WithMaxRetry(1)}})
		w.team.hook = func(ctx context.Context, phase string, _ int) error {
			if phase == "testing" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		w.serve()
		w.create("7")
		time.Sleep(4 * time.Minute)
		w.is("7", orchestrator.StatusFailed)
		diff(t, "notifications", w.notes(), []string{"orchestrator_failed/1"})
	})
}

func TestShutdownWithASpentBudgetIsNotAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{dispatcher: []orchestrator.DispatcherOption{orchestrator.WithMaxRetry(1)}})
		w.team.hook = func(ctx context.Context, phase string, call int) error {
			switch {
			case phase == "testing" && call == 1:
				return errBoom
			case phase == "testing" && call == 2:
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		srv := w.serve()
		w.create("7")
		time.Sleep(10 * time.Second)
		srv.Shutdown()
		time.Sleep(time.Second)
		if run := w.status("7"); run.Status != orchestrator.StatusRetrying {
			t.Errorf("after the shutdown: %s %s, want RETRYING", run.Status, run.Error)
		}
		w.serve()
		time.Sleep(3 * time.Minute)
		w.is("7", orchestrator.StatusSuccess)
		diff(t, "notifications", w.notes(), []string{"orchestrator_complete/1"})
	})
}

func TestAPoisonPillIsFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gopts := []idempotent.Option{idempotent.WithMaxCrashes(2), idempotent.WithTTL(2 * time.Second)}
		w := newWorld(t, setup{guard: gopts})
		w.create("7")
		for range 2 {
			p := w.newProcess(setup{guard: gopts})
			p.team.hook = p.dieIn("planning")
			_ = p.deliver("7", "1")
			time.Sleep(3 * time.Second)
		}
		if err := w.deliver("7", "1"); !errors.Is(err, idempotent.ErrPoisoned) {
			t.Fatalf("delivery after the crashes: %v", err)
		}
		w.is("7", orchestrator.StatusFailed)
		diff(t, "notifications", w.notes(), []string{"orchestrator_failed/1"})
	})
}

func TestNotWrappedByAGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		err := w.handler.ProcessTask(t.Context(), asynq.NewTask("orchestrator:run", []byte(`{"run_id":"7"}`)))
		if !errors.Is(err, asynq.SkipRetry) {
			t.Errorf("err = %v, want one that is not retried", err)
		}
	})
}

func TestARunCostsTwoRoundTripsMoreThanItHasPhases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.create("warm-up") // loads the scripts
		_ = w.deliver("warm-up", "1")
		w.create("7")
		var c redistest.Counter
		w.rdb.AddHook(&c)
		for i, want := range []int64{9, 1} { // the second is a duplicate
			c.Reset()
			if err := w.deliver("7", "1"); err != nil {
				t.Fatal(err)
			}
			if c.RoundTrips() != want || c.Commands() != want {
				t.Errorf("delivery %d: %d round trips, %d commands; want %d", i+1, c.RoundTrips(), c.Commands(), want)
			}
		}
	})
}

func TestADeliveryWithoutARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		if err := w.deliver("7", "1"); !errors.Is(err, orchestrator.ErrNotFound) || errors.Is(err, asynq.SkipRetry) {
			t.Errorf("err = %v, want ErrNotFound, and that another try follows", err)
		}
		for _, payload := range []string{"", "null", "{", `{"run_id":""}`, `{"run_id":7}`, "\xff"} {
			task := asynq.NewTaskWithHeaders("orchestrator:run", []byte(payload), map[string]string{"onceq-key": "k" + payload[:min(1, len(payload))] + "x"})
			err := w.guard.Middleware(w.handler).ProcessTask(t.Context(), task)
			if !errors.Is(err, asynq.SkipRetry) {
				t.Errorf("payload %q: %v, want an error that is not retried", payload, err)
			}
		}
		diff(t, "notifications", w.notes(), []string{})
	})
}

func TestTheHookIsFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.create("7")
		w.team.hook = failing("review", 1, errBoom)
		_ = w.deliver("7", "1")
		run := w.status("7")
		task := asynq.NewTask("orchestrator:run", []byte(`{"run_id":"7"}`))
		for name, f := range map[string]idempotent.Failure{
			"of an older token":   {Generation: 1, Token: run.Token - 1, Err: errBoom, Task: task},
			"of another task":     {Generation: 1, Token: run.Token, Err: errBoom, Task: asynq.NewTask("other", task.Payload())},
			"without a task":      {Generation: 1, Token: run.Token, Err: errBoom},
			"of a generation ago": {Generation: 0, Token: run.Token, Err: errBoom, Task: task},
		} {
			w.runs.OnFailed(t.Context(), f)
			if got := w.status("7"); got.Revision != run.Revision {
				t.Errorf("a failure %s changed the row: %+v", name, got)
			}
		}
		_ = w.deliver("7", "1")
		w.is("7", orchestrator.StatusSuccess)
		w.runs.OnFailed(t.Context(), idempotent.Failure{Generation: 9, Token: run.Token * 2, Err: errBoom, Task: task})
		w.is("7", orchestrator.StatusSuccess)
		diff(t, "notifications", w.notes(), []string{"orchestrator_complete/1"})
	})
}
