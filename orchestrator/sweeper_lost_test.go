package orchestrator_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/orchestrator"
)

func TestRedisLostEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.create("pending")
		w.create("retrying")
		w.create("rerun")
		w.team.hook = func(_ context.Context, _ string, call int) error {
			if call == 1 {
				return errBoom
			}
			return nil
		}
		_ = w.deliver("retrying", "1")
		w.is("retrying", orchestrator.StatusRetrying)
		w.team.hook = failing("context", 100, idempotent.Permanent(errBoom))
		_ = w.deliver("rerun", "1")
		time.Sleep(afterWindow)
		if _, err := w.dispatcher.Rerun(t.Context(), "rerun", false); err != nil {
			t.Fatal(err)
		}
		w.team.hook, w.team.calls = nil, nil
		w.mini.FlushAll()
		w.serve()
		time.Sleep(31 * time.Second)
		if n := w.sweep(); n != 3 {
			t.Errorf("the sweeper did something for %d runs, want 3", n)
		}
		time.Sleep(10 * time.Second)
		for _, id := range []string{"pending", "retrying", "rerun"} {
			w.is(id, orchestrator.StatusSuccess)
		}
		if g := w.status("rerun").Generation; g != 2 {
			t.Errorf("generation %d, want 2", g)
		}
		if n := w.team.total(); n != 21 {
			t.Errorf("%d phases were run, want 21", n)
		}
		time.Sleep(time.Minute)
		if n := w.sweep(); n != 0 {
			t.Errorf("the sweeper did something for %d settled runs", n)
		}
	})
}

func TestATableOutOfABackup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.create("7")
		if err := w.deliver("7", "1"); err != nil {
			t.Fatal(err)
		}
		w.must(w.db.Exec("UPDATE onceq_runs SET status = 'RUNNING', settled = false, result = '', finished_at = 0, token = 1").Error)
		time.Sleep(31 * time.Second)
		w.sweep()
		run := w.status("7")
		if run.Status != orchestrator.StatusSuccess || run.Result != `{"phases":7}` || run.FinishedAt == 0 {
			t.Errorf("run: %+v", run)
		}
	})
}

func TestALaterGenerationThatRedisHasForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.create("7")
		w.must(w.db.Exec("UPDATE onceq_runs SET generation = 3").Error)
		w.mini.FlushAll()
		w.serve()
		time.Sleep(31 * time.Second)
		if n := w.sweep(); n != 1 {
			t.Errorf("the sweeper did something for %d runs, want 1", n)
		}
		time.Sleep(5 * time.Second)
		if run := w.status("7"); run.Status != orchestrator.StatusSuccess || run.Generation != 3 {
			t.Errorf("run: %+v", run)
		}
	})
}

// asynq gave the run's task up, and Redis knows no outcome: nobody said that the run
// has failed, so it is not left to rest for ever.
func TestAnArchivedTaskOfARunThatRedisForgot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.create("7")
		key, insp := w.runs.Key("7"), asynq.NewInspectorFromRedisClient(w.rdb)
		w.must(insp.ArchiveTask("default", key))
		for _, k := range w.rdb.Keys(t.Context(), "onceq:{"+key+"}:*").Val() {
			w.rdb.Del(t.Context(), k)
		}
		for range 2 { // the second time, the delivery it then got was given up as well
			time.Sleep(31 * time.Second)
			if n := w.sweep(); n != 1 {
				t.Fatalf("the sweeper did something for %d runs, want 1", n)
			}
			_ = insp.ArchiveTask("default", key+"~r0")
		}
		time.Sleep(31 * time.Second)
		w.serve()
		time.Sleep(10 * time.Second)
		w.is("7", orchestrator.StatusSuccess)
	})
}
