package orchestrator_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/orchestrator"
)

// flaky is a client that a test takes down.
type flaky struct {
	idempotent.Enqueuer
	before error // returned instead of enqueuing
	after  error // returned after enqueuing
	calls  int
}

func (f *flaky) EnqueueContext(ctx context.Context, t *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	f.calls++
	if f.before != nil {
		return nil, f.before
	}
	info, err := f.Enqueuer.EnqueueContext(ctx, t, opts...)
	if err == nil && f.after != nil {
		return nil, f.after
	}
	return info, err
}

// withFlaky is a world whose producer enqueues through a client that can be down.
func withFlaky(t *testing.T, s setup) (*world, *flaky) {
	f := &flaky{}
	s.enqueuer = f
	w := newWorld(t, s)
	f.Enqueuer = w.client
	return w, f
}

// afterWindow is when a producer lets the next one at the same run.
const afterWindow = 11 * time.Second

func (w *world) sweep() int {
	w.t.Helper()
	n, err := w.sweeper.Sweep(w.t.Context())
	w.must(err)
	return n
}

func TestACrashBetweenCommitAndEnqueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, f := withFlaky(t, setup{})
		w.serve()
		f.before = errDead
		_, err := w.dispatcher.Create(t.Context(), orchestrator.NewRun{RunID: "7", Requirement: "build a thing"})
		if !errors.Is(err, idempotent.ErrUnavailable) {
			t.Fatalf("Create = %v", err)
		}
		w.is("7", orchestrator.StatusPending)
		f.before = nil
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		for range 3 { // in three processes
			s, err := orchestrator.NewSweeper(w.dispatcher)
			w.must(err)
			done.Go(func() { _ = s.Run(ctx) })
		}
		time.Sleep(time.Minute) // "within a minute by default"
		w.is("7", orchestrator.StatusSuccess)
		time.Sleep(5 * time.Minute)
		cancel()
		done.Wait()
		if n := w.team.total(); n != 7 {
			t.Errorf("%d phases were run, want 7", n)
		}
		diff(t, "history", w.kinds("7")[:3], []orchestrator.HistoryKind{"created", "redelivered", "attempt_begun"})
	})
}

func TestTheSweeperLeavesAloneWhatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, f := withFlaky(t, setup{guard: []idempotent.Option{idempotent.WithBackoff(100*time.Second, 100*time.Second)}})
		release := make(chan struct{})
		w.team.hook = func(ctx context.Context, phase string, call int) error {
			if phase == "planning" {
				<-release
			}
			return nil
		}
		w.serve()
		w.create("long") // a phase that takes longer than the threshold
		for _, id := range []string{"waits-1", "waits-2", "waits-3", "queued"} {
			w.create(id) // three more workers are busy; this one has to queue
		}
		time.Sleep(5 * time.Minute)
		before := f.calls
		if n := w.sweep(); n != 0 {
			t.Errorf("the sweeper did something for %d runs, want 0", n)
		}
		if f.calls != before {
			t.Errorf("%d enqueues were tried for a run that waits in the queue", f.calls-before)
		}
		if n := len(w.rdb.LRange(t.Context(), "asynq:{default}:pending", 0, -1).Val()); n != 1 {
			t.Errorf("%d tasks are waiting, want 1", n)
		}
		close(release)
		time.Sleep(10 * time.Second)
		w.team.hook = failing("context", 1000, errBoom)
		w.create("retries")
		time.Sleep(40 * time.Second)
		if run := w.status("retries"); run.Status != orchestrator.StatusRetrying {
			t.Fatalf("run: %+v", run)
		}
		if n := w.sweep(); n != 0 {
			t.Errorf("the sweeper did something for %d runs that wait for their retry", n)
		}
		if f.calls > before+2 { // the run that queued, and the new one
			t.Errorf("%d enqueues since, want at most 2", f.calls-before)
		}
	})
}

func TestARetryThatWaitsInALongQueueIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, f := withFlaky(t, setup{})
		w.create("7") // its task stays in the queue: there is no server
		w.team.hook = failing("context", 1, errBoom)
		_ = w.deliver("7", "1")
		time.Sleep(10 * time.Minute)
		if n := w.sweep(); n != 0 || f.calls != 1 {
			t.Errorf("the sweeper did something for %d runs, %d enqueues; want 0 and that of Create", n, f.calls)
		}
		w.rdb.Del(t.Context(), "asynq:{default}:pending", "asynq:{default}:t:"+w.runs.Key("7")) // now it is lost
		if n := w.sweep(); n != 1 {
			t.Errorf("the sweeper did something for %d runs, want 1", n)
		}
	})
}

func TestADeadWorkersRunIsRedelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.create("7")
		p := w.newProcess(setup{})
		p.team.hook = p.dieIn("testing")
		_ = p.deliver("7", "1")
		if err := w.dispatcher.Redeliver(t.Context(), "7"); !errors.Is(err, idempotent.ErrDuplicate) {
			t.Errorf("Redeliver under a live lease: %v", err)
		}
		time.Sleep(afterLease)
		var wg sync.WaitGroup
		won := make(chan error, 8)
		for range 8 {
			wg.Go(func() { won <- w.dispatcher.Redeliver(t.Context(), "7") })
		}
		wg.Wait()
		winners := 0
		for range 8 {
			switch err := <-won; {
			case err == nil:
				winners++
			case !errors.Is(err, idempotent.ErrDuplicate):
				t.Errorf("Redeliver = %v", err)
			}
		}
		if winners != 1 {
			t.Errorf("%d of 8 redelivered, want 1", winners)
		}
		w.serve()
		time.Sleep(5 * time.Second)
		w.is("7", orchestrator.StatusSuccess)
		if err := w.dispatcher.Redeliver(t.Context(), "7"); !errors.Is(err, idempotent.ErrAlreadySucceeded) {
			t.Errorf("Redeliver of a run that succeeded: %v", err)
		}
		if err := w.dispatcher.Redeliver(t.Context(), "nobody"); !errors.Is(err, orchestrator.ErrNotFound) {
			t.Errorf("Redeliver of no run: %v", err)
		}
	})
}

func TestAFailureWhoseHookWasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		p := w.newProcess(setup{mayFail: true})
		w.create("7")
		p.team.hook = func(context.Context, string, int) error { // the database is away; Redis hears of the failure
			p.deadStore.Store(true)
			return idempotent.Permanent(errBoom)
		}
		_ = p.deliver("7", "1")
		w.is("7", orchestrator.StatusRunning)
		time.Sleep(31 * time.Second)
		if n := w.sweep(); n != 1 {
			t.Errorf("the sweeper did something for %d runs, want 1", n)
		}
		run := w.status("7")
		if run.Status != orchestrator.StatusFailed || run.Error != `phase "context": boom` || !run.Settled {
			t.Errorf("run: %+v", run)
		}
		diff(t, "notifications", w.notes(), []string{"orchestrator_failed/1"})
	})
}

func TestACrashInTheMiddleOfARerun(t *testing.T) {
	for _, scratch := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w, f := withFlaky(t, setup{})
			w.create("7")
			w.team.hook = failing("review", 1, idempotent.Permanent(errBoom))
			_ = w.deliver("7", "1")
			time.Sleep(afterWindow)
			f.before = errDead
			run, err := w.dispatcher.Rerun(t.Context(), "7", scratch)
			if !errors.Is(err, idempotent.ErrUnavailable) || run.Status != orchestrator.StatusPending {
				t.Fatalf("Rerun = %+v, %v", run, err)
			}
			f.before = nil
			time.Sleep(afterWindow)
			if _, err := w.dispatcher.Rerun(t.Context(), "7", scratch); !errors.Is(err, idempotent.ErrDuplicate) {
				t.Errorf("a second Rerun: %v, want a duplicate: it is on record", err)
			}
			w.serve()
			time.Sleep(31 * time.Second)
			if n := w.sweep(); n != 1 {
				t.Errorf("the sweeper did something for %d runs, want 1", n)
			}
			time.Sleep(5 * time.Second)
			run = w.status("7")
			if run.Status != orchestrator.StatusSuccess || run.Generation != 2 {
				t.Errorf("run: %+v", run)
			}
			want := 1
			if scratch {
				want = 2
			}
			if n := w.team.count("context"); n != want {
				t.Errorf("from scratch %v: phase context ran %d times, want %d", scratch, n, want)
			}
		})
	}
}

func TestAKeyThatIsAnothersFailsItsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, f := withFlaky(t, setup{})
		f.before = errDead
		_, _ = w.dispatcher.Create(t.Context(), orchestrator.NewRun{RunID: "7", Requirement: "build a thing"})
		f.before = nil
		task := asynq.NewTask("other", []byte("payload"))
		if _, err := w.producer.Enqueue(t.Context(), w.runs.Key("7"), task, asynq.Timeout(time.Hour)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(31 * time.Second)
		if n := w.sweep(); n != 1 {
			t.Errorf("the sweeper did something for %d runs, want 1", n)
		}
		w.is("7", orchestrator.StatusFailed)
		diff(t, "notifications", w.notes(), []string{"orchestrator_failed/1"})
	})
}

func TestASweepGoesOnWhereTheLastOneStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, f := withFlaky(t, setup{})
		f.before = errDead
		for _, id := range []string{"a", "b", "c", "d", "e"} {
			_, _ = w.dispatcher.Create(t.Context(), orchestrator.NewRun{RunID: id, Requirement: "build a thing"})
		}
		f.before = nil
		time.Sleep(31 * time.Second)
		s, err := orchestrator.NewSweeper(w.dispatcher, orchestrator.WithBatch(2))
		w.must(err)
		for i, want := range []int{2, 2, 1, 0} {
			if n, err := s.Sweep(t.Context()); n != want || err != nil {
				t.Errorf("sweep %d: %d, %v; want %d", i, n, err, want)
			}
		}
		// One row in the way keeps no other from its turn.
		w.must(w.db.Exec("UPDATE onceq_runs SET updated_at = 0").Error)
		w.mini.FlushAll()
		bad := w.runs.Key("b")
		w.rdb.Set(t.Context(), "onceq:{"+bad+"}:run", "not a hash", 0)
		acted := 0
		for range 5 {
			n, _ := s.Sweep(t.Context())
			acted += n
		}
		if acted != 4 {
			t.Errorf("the sweeper did something for %d runs, want the 4 that have no damaged record", acted)
		}
		w.mini.Close()
		time.Sleep(31 * time.Second)
		if _, err := s.Sweep(t.Context()); !errors.Is(err, idempotent.ErrUnavailable) {
			t.Errorf("without Redis: %v", err)
		}
	})
}

// A worker took the task and died before it asked for the lease.
func TestDiesBeforeBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.create("7")
		id := w.rdb.LMove(t.Context(), "asynq:{default}:pending", "asynq:{default}:active", "RIGHT", "LEFT").Val()
		w.must(w.rdb.HSet(t.Context(), "asynq:{default}:t:"+id, "state", "active").Err())
		time.Sleep(31 * time.Second)
		if n := w.sweep(); n != 1 {
			t.Errorf("the sweeper did something for %d runs, want 1", n)
		}
		w.serve()
		time.Sleep(5 * time.Second)
		w.is("7", orchestrator.StatusSuccess)
	})
}

// Nobody may shorten the wait that was chosen for a retry, even if its task is gone.
func TestARunThatWaitsForItsRetryIsNotRedelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, f := withFlaky(t, setup{})
		w.create("7")
		w.team.hook = failing("context", 1, idempotent.RateLimited(errBoom, 10*time.Minute))
		_ = w.deliver("7", "1")
		w.rdb.Del(t.Context(), "asynq:{default}:pending", "asynq:{default}:t:"+w.runs.Key("7"))
		time.Sleep(5 * time.Minute)
		var dup *idempotent.DuplicateError
		if err := w.dispatcher.Redeliver(t.Context(), "7"); !errors.As(err, &dup) || dup.State != idempotent.StateRetrying {
			t.Errorf("Redeliver = %v, want a duplicate that is retrying", err)
		}
		if n := w.sweep(); n != 0 || f.calls != 1 {
			t.Errorf("the sweeper did something for %d runs, %d enqueues; want 0 and that of Create", n, f.calls)
		}
		time.Sleep(10 * time.Minute)
		if n := w.sweep(); n != 1 {
			t.Errorf("long overdue, the sweeper did something for %d runs, want 1", n)
		}
	})
}
