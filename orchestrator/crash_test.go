package orchestrator_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"gorm.io/gorm"

	"github.com/nexuscore/onceq/checkpoint"
	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/notify"
	"github.com/nexuscore/onceq/orchestrator"
)

// kicked is an outbox that calls a function after the commit of a run's end.
type kicked struct {
	orchestrator.Outbox
	then func()
}

func (k *kicked) Kick() { k.then() }

// afterLease is when the lease of a dead process is over.
const afterLease = 31 * time.Second

// TestTheWorkerDies has the lines of the crash table that need no asynq server: at
// some point nothing that the first process does arrives any more.
func TestTheWorkerDies(t *testing.T) {
	for _, c := range []struct {
		name  string
		die   func(p *process)
		first map[string]int // phases that the first process ran to their end
		then  map[string]int // phases that the second ran
		was   orchestrator.Status
	}{
		{
			name:  "inside phase 5",
			die:   func(p *process) { p.team.hook = p.dieIn("implementation") },
			first: map[string]int{"context": 1, "requirements": 1, "planning": 1, "architecture": 1, "implementation": 1},
			then:  map[string]int{"implementation": 1, "testing": 1, "review": 1},
			was:   orchestrator.StatusRunning,
		},
		{
			name: "after the last save, before the row says SUCCESS",
			die:  func(p *process) { p.atEnd = p.die },
			first: map[string]int{"context": 1, "requirements": 1, "planning": 1, "architecture": 1, "implementation": 1,
				"testing": 1, "review": 1},
			then: nil,
			was:  orchestrator.StatusRunning,
		},
		{
			name: "after SUCCESS, before finish",
			die:  nil, // see below: the outbox's Kick kills it
			first: map[string]int{"context": 1, "requirements": 1, "planning": 1, "architecture": 1, "implementation": 1,
				"testing": 1, "review": 1},
			then: nil,
			was:  orchestrator.StatusSuccess,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setup{})
				w.create("7")
				var p *process
				p = w.newProcess(setup{outbox: &kicked{w.outbox, func() {
					if c.die == nil {
						p.die()
					}
				}}})
				if c.die != nil {
					c.die(p)
				}
				_ = p.deliver("7", "1")
				diff(t, "phases of the first process", p.team.calls, c.first)
				w.is("7", c.was)
				if err := w.deliver("7", "1"); !errors.Is(err, idempotent.ErrContended) {
					t.Fatalf("while the dead process holds the lease: %v", err)
				}
				time.Sleep(afterLease)
				if err := w.deliver("7", "1"); err != nil {
					t.Fatalf("second process: %v", err)
				}
				diff(t, "phases of the second process", w.team.calls, c.then)
				run := w.status("7")
				if run.Status != orchestrator.StatusSuccess || run.Result != `{"phases":7}` {
					t.Errorf("run: %+v", run)
				}
				diff(t, "notifications", w.notes(), []string{"orchestrator_complete/1"})
				seen, err := w.guard.Lookup(t.Context(), w.runs.Key("7"))
				if err != nil || seen.State != idempotent.StateSucceeded || string(seen.Result) != `{"phases":7}` {
					t.Errorf("Lookup = %+v, %v", seen, err)
				}
				// After finish, before the ack: asynq delivers again.
				if err := w.deliver("7", "1"); err != nil {
					t.Errorf("a third delivery: %v", err)
				}
				if w.status("7").Revision != run.Revision {
					t.Error("a skipped delivery wrote to the row")
				}
			})
		})
	}
}

func TestDiesAfterAPhaseBeforeItsSave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.create("7")
		p := w.newProcess(setup{})
		p.handler = p.with(func(o *orchestrator.Orchestration[state]) {
			run := o.Phases[3].Run
			o.Phases[3].Run = func(ctx context.Context, s *state) error {
				err := run(ctx, s)
				p.die()
				return err
			}
			o.Phases[4].Run = func(ctx context.Context, _ *state) error { <-ctx.Done(); return ctx.Err() }
		})
		_ = p.deliver("7", "1")
		time.Sleep(afterLease)
		if err := w.deliver("7", "1"); err != nil {
			t.Fatal(err)
		}
		diff(t, "phases of the second process", w.team.calls,
			map[string]int{"architecture": 1, "implementation": 1, "testing": 1, "review": 1})
	})
}

// with is w's handler with something changed.
func (w *world) with(change func(*orchestrator.Orchestration[state])) *orchestrator.Handler[state] {
	w.t.Helper()
	o := w.orchestration()
	change(&o)
	h, err := orchestrator.NewHandler(w.runs, w.store, o)
	w.must(err)
	return h
}

func TestSuccessInTheTableSkipsEvenIfRedisLostEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.create("7")
		if err := w.deliver("7", "1"); err != nil {
			t.Fatal(err)
		}
		w.is("7", orchestrator.StatusSuccess)
		before := w.status("7")
		w.mini.FlushAll()
		if err := w.deliver("7", "1"); err != nil {
			t.Fatalf("after FLUSHALL: %v", err)
		}
		if n := w.team.total(); n != 7 {
			t.Errorf("%d phases were run, want 7", n)
		}
		diff(t, "row", w.status("7"), before)
		seen, err := w.guard.Lookup(t.Context(), w.runs.Key("7"))
		if err != nil || seen.State != idempotent.StateSucceeded || string(seen.Result) != `{"phases":7}` {
			t.Errorf("Lookup = %+v, %v: Redis has it again", seen, err)
		}
		// And a client that asks again gets the same answer.
		_, err = w.dispatcher.Create(t.Context(), orchestrator.NewRun{RunID: "7", Requirement: "build a thing"})
		if !errors.Is(err, idempotent.ErrAlreadySucceeded) {
			t.Errorf("Create = %v", err)
		}
	})
}

// A zombie is an attempt that hangs, is overtaken, and goes on.
func TestAZombieWritesNothing(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
	}{{"it succeeds", nil}, {"it fails for good", idempotent.Permanent(errBoom)}, {"it fails", errBoom}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setup{})
				w.create("7")
				zombie := w.newProcess(setup{})
				wake := make(chan struct{})
				zombie.team.hook = func(_ context.Context, phase string, _ int) error {
					if phase == "review" {
						zombie.dead.Store(true) // it is frozen: its heartbeat is too
						<-wake
						zombie.dead.Store(false)
						return c.err
					}
					return nil
				}
				ended := make(chan error)
				go func() { ended <- zombie.deliver("7", "1") }()
				time.Sleep(afterLease)
				if err := w.deliver("7", "1"); err != nil {
					t.Fatal(err)
				}
				after := w.status("7")
				history := w.kinds("7")
				close(wake)
				if err := <-ended; !errors.Is(err, idempotent.ErrLeaseLost) {
					t.Errorf("the zombie was told %v, want ErrLeaseLost", err)
				}
				diff(t, "row", w.status("7"), after)
				diff(t, "history", w.kinds("7"), history)
				diff(t, "notifications", w.notes(), []string{"orchestrator_complete/1"})
			})
		})
	}
}

// The lease in the process says nothing here: only the table tells that the attempt is stale.
func TestTheTableRefusesAStaleToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.create("7")
		w.team.hook = func(_ context.Context, phase string, _ int) error {
			if phase == "planning" { // a later attempt, as another Redis would give it
				w.must(w.db.Exec("UPDATE onceq_runs SET token = token + 1, revision = revision + 1").Error)
			}
			return nil
		}
		err := w.deliver("7", "1")
		var stale *orchestrator.StaleError
		if !errors.Is(err, idempotent.ErrLeaseLost) || !errors.As(err, &stale) || stale.Has.Token != stale.Token+1 {
			t.Fatalf("err = %v, want a *StaleError", err)
		}
		if n := w.team.total(); n != 3 {
			t.Errorf("%d phases were run, want 3: a stale attempt starts no further one", n)
		}
		w.is("7", orchestrator.StatusRunning)
		diff(t, "notifications", w.notes(), []string{})
	})
}

// brokenOutbox fails as a test says.
type brokenOutbox struct {
	orchestrator.Outbox
	err   error
	calls int
}

func (b *brokenOutbox) Enqueue(ctx context.Context, tx *gorm.DB, e notify.Event) error {
	b.calls++
	if b.err != nil {
		return b.err
	}
	return b.Outbox.Enqueue(ctx, tx, e)
}

func TestANotificationThatCannotBeStoredChangesNoOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := &brokenOutbox{err: errors.New("no such table")}
		w := newWorld(t, setup{outbox: broken})
		broken.Outbox = w.outbox
		w.create("7")
		if err := w.deliver("7", "1"); err != nil {
			t.Fatal(err)
		}
		run := w.status("7")
		if run.Status != orchestrator.StatusSuccess || run.Settled {
			t.Errorf("run: %+v, want SUCCESS, unsettled", run)
		}
		diff(t, "notifications", w.notes(), []string{})
		broken.err = nil
		time.Sleep(time.Minute)
		for range 2 {
			if _, err := w.sweeper.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		diff(t, "notifications", w.notes(), []string{"orchestrator_complete/1"})
		if !w.status("7").Settled {
			t.Error("the run is not settled")
		}
	})
}

func TestAMessageOfTheHostsThatIsInvalidIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{runs: []orchestrator.Option{
			orchestrator.WithReport(func(_ context.Context, r orchestrator.Run, rep *notify.Report) error {
				if r.RunID == "panics" {
					panic("report")
				}
				rep.Link = "https://example.com/" + r.RunID
				return nil
			}),
			orchestrator.WithBuilders(func(r notify.Report) (notify.Content, error) {
				switch r.RunID {
				case "fails":
					return notify.Content{}, errBoom
				case "invalid":
					return notify.Content{Text: "x", Blocks: []byte("no JSON")}, nil
				}
				return notify.Content{Text: "mine: " + r.Link}, nil
			}, notify.RunFailed),
		}})
		for _, id := range []string{"fails", "invalid", "panics", "fine"} {
			w.create(id)
			if err := w.deliver(id, "1"); err != nil {
				t.Fatal(err)
			}
			w.is(id, orchestrator.StatusSuccess)
		}
		var contents []string
		w.must(w.db.Table("notification_logs").Order("id").Pluck("content", &contents).Error)
		if len(contents) != 4 || contents[1] != `{"text":"Run invalid: SUCCESS"}` || contents[3] != `{"text":"mine: https://example.com/fine"}` {
			t.Errorf("contents: %q", contents)
		}
	})
}

func TestADatabaseThatIsAwayDelaysARun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		p := w.newProcess(setup{})
		w.create("7")
		p.deadStore.Store(true)
		if err := p.deliver("7", "1"); !errors.Is(err, idempotent.ErrUnavailable) {
			t.Errorf("without a database: %v, want ErrUnavailable", err)
		}
		if n := p.team.total(); n != 0 {
			t.Errorf("%d phases were run without a row that says RUNNING", n)
		}
		p.deadStore.Store(false)
		p.team.hook = func(_ context.Context, phase string, _ int) error { // away in the middle
			p.deadStore.Store(phase >= "p" && phase <= "rev")
			return nil
		}
		p.atEnd = func() { p.deadStore.Store(true) } // and at the end
		if err := p.deliver("7", "1"); !errors.Is(err, idempotent.ErrUnavailable) {
			t.Errorf("SUCCESS not written: %v, want ErrUnavailable", err)
		}
		w.is("7", orchestrator.StatusRunning)
		p.deadStore.Store(false)
		p.atEnd = nil
		if err := p.deliver("7", "1"); err != nil {
			t.Fatal(err)
		}
		w.is("7", orchestrator.StatusSuccess)
		if n := p.team.total(); n != 7 {
			t.Errorf("%d phases were run, want 7", n)
		}
		diff(t, "notifications", w.notes(), []string{"orchestrator_complete/1"})
	})
}

func TestAFailureThatOnlyTheHookCouldWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		p := w.newProcess(setup{})
		w.create("7")
		p.team.hook = func(_ context.Context, phase string, _ int) error {
			if phase != "planning" {
				return nil
			}
			p.deadStore.Store(true)
			time.AfterFunc(350*time.Millisecond, func() { p.deadStore.Store(false) }) // handler's tries are over by then
			return idempotent.Permanent(errBoom)
		}
		if err := p.deliver("7", "1"); !errors.Is(err, errBoom) {
			t.Errorf("err = %v", err)
		}
		w.is("7", orchestrator.StatusFailed)
		diff(t, "notifications", w.notes(), []string{"orchestrator_failed/1"})
	})
}

func TestStoreMustFit(t *testing.T) {
	if _, err := orchestrator.NewHandler(nil, checkpoint.Store(nil), orchestrator.Orchestration[state]{}); !errors.Is(err, idempotent.ErrInvalid) {
		t.Errorf("err = %v", err)
	}
}

func TestDiesAfterFailedBeforeFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.create("7")
		var p *process
		p = w.newProcess(setup{outbox: &kicked{w.outbox, func() { p.die() }}})
		p.team.hook = failing("planning", 1, idempotent.Permanent(errBoom))
		_ = p.deliver("7", "1")
		w.is("7", orchestrator.StatusFailed)
		before := w.status("7")
		time.Sleep(afterLease)
		if err := w.deliver("7", "1"); !errors.Is(err, idempotent.ErrAlreadyFailed) || !errors.Is(err, asynq.SkipRetry) {
			t.Errorf("the next delivery: %v, want ErrAlreadyFailed", err)
		}
		if n := w.team.total(); n != 0 {
			t.Errorf("%d phases were run after FAILED", n)
		}
		diff(t, "row", w.status("7"), before)
		diff(t, "notifications", w.notes(), []string{"orchestrator_failed/1"})
		if seen, err := w.guard.Lookup(t.Context(), w.runs.Key("7")); err != nil || seen.State != idempotent.StateFailed {
			t.Errorf("Lookup = %+v, %v; want failed", seen, err)
		}
		if _, err := w.dispatcher.Rerun(t.Context(), "7", false); err != nil {
			t.Errorf("Rerun = %v", err)
		}
	})
}
