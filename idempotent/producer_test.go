package idempotent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/idempotent"
)

func wantDup(t *testing.T, err error, state idempotent.State) *idempotent.DuplicateError {
	t.Helper()
	dup, ok := errors.AsType[*idempotent.DuplicateError](err)
	if !ok || !errors.Is(err, idempotent.ErrDuplicate) || dup.State != state || dup.Key != "k" {
		t.Fatalf("err = %v, want a DuplicateError of k that is %v", err, state)
	}
	return dup
}

// P2, P4, P5, P7: what a second producer hears, through the life of a run.
func TestWhatASecondProducerHears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		again := func(state idempotent.State) *idempotent.DuplicateError {
			t.Helper()
			if err := w.enqueue("k", `{"other":1}`); !errors.Is(err, idempotent.ErrPayloadMismatch) {
				t.Errorf("other payload while %v: %v, want ErrPayloadMismatch", state, err)
			}
			return wantDup(t, w.enqueue("k", `{"a":1}`), state)
		}
		if err := w.enqueue("k", `{"a":1}`); err != nil {
			t.Fatal(err)
		}
		if dup := again(idempotent.StateQueued); dup.RetryAfter <= 0 || dup.RetryAfter > 10*time.Second {
			t.Errorf("queued: ask again in %v, want at most the window", dup.RetryAfter)
		}
		time.Sleep(time.Minute) // the window is over, the task still waits
		again(idempotent.StateQueued)

		fail, done := make(chan error), make(chan struct{}, 1)
		w.serve(w.guard, func(context.Context, *asynq.Task) error {
			done <- struct{}{}
			return <-fail
		})
		<-done
		if dup := again(idempotent.StateRunning); dup.Holder != w.guard.Process() || dup.RetryAfter <= 0 {
			t.Errorf("running: %+v, want the holder and when to ask", dup)
		}
		fail <- errors.New("once")
		time.Sleep(time.Millisecond)
		if dup := again(idempotent.StateRetrying); dup.RetryAfter <= 0 || dup.RetryAfter > time.Second {
			t.Errorf("retrying: ask again in %v, want at most the backoff", dup.RetryAfter)
		}
		<-done
		fail <- nil
		time.Sleep(100 * time.Millisecond)
		if err := w.enqueue("k", `{"a":1}`); !errors.Is(err, idempotent.ErrAlreadySucceeded) {
			t.Errorf("after success: %v, want ErrAlreadySucceeded", err)
		}
		if err := w.enqueue("k", `{"other":1}`); !errors.Is(err, idempotent.ErrPayloadMismatch) {
			t.Errorf("other payload after success: %v, want ErrPayloadMismatch", err)
		}
	})
}

// P1: a failed run is named, and Rerun gives it a full budget in a new generation.
func TestRerun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ok := false
		var attempts []string
		w.serve(w.guard, func(ctx context.Context, _ *asynq.Task) error {
			a := idempotent.MustFromContext(ctx)
			attempts = append(attempts, fmt.Sprintf("g%d #%d", a.Generation(), a.Number()))
			if !ok {
				return errors.New("no")
			}
			return nil
		})
		if err := w.enqueue("k", "{}", asynq.MaxRetry(1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if dup := wantDup(t, w.enqueue("k", "{}"), idempotent.StateFailed); dup.RetryAfter != 0 {
			t.Errorf("failed: ask again in %v, want 0: waiting does not help", dup.RetryAfter)
		}
		rerun := func(how idempotent.RerunOptions, payload string) error {
			_, err := w.producer.Rerun(t.Context(), "k", task(payload), how, asynq.Timeout(time.Hour), asynq.MaxRetry(1))
			return err
		}
		if err := rerun(idempotent.RerunOptions{}, "other"); !errors.Is(err, idempotent.ErrPayloadMismatch) {
			t.Errorf("resume with another payload: %v, want ErrPayloadMismatch", err)
		}
		if err := rerun(idempotent.RerunOptions{}, "{}"); err != nil {
			t.Fatal(err)
		}
		wantDup(t, rerun(idempotent.RerunOptions{}, "{}"), idempotent.StateQueued)
		time.Sleep(time.Minute)
		ok = true
		if err := rerun(idempotent.RerunOptions{FromScratch: true, After: 7}, "other"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if got, want := fmt.Sprint(attempts), "[g1 #1 g1 #2 g2 #1 g2 #2 g8 #1]"; got != want {
			t.Errorf("attempts %s, want %s", got, want)
		}
		if err := rerun(idempotent.RerunOptions{}, "other"); !errors.Is(err, idempotent.ErrAlreadySucceeded) {
			t.Errorf("rerun after success: %v, want ErrAlreadySucceeded", err)
		}
		// A delivery of an older generation that turns up late is skipped.
		old := asynq.NewTaskWithHeaders(taskType, []byte("{}"), map[string]string{"onceq-key": "k", "onceq-generation": "2"})
		err := w.guard.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
			t.Error("an old generation ran")
			return nil
		})).ProcessTask(t.Context(), old)
		if !errors.Is(err, asynq.RevokeTask) {
			t.Errorf("old delivery: %v, want RevokeTask", err)
		}
	})
}

// P1: asynq archived the task while Redis knew no record of ours.
func TestATaskInTheWayIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for _, c := range []struct {
			state   idempotent.State
			prepare func() error
		}{
			{idempotent.StateFailed, func() error { return w.insp.ArchiveTask("default", "k") }},
			{idempotent.StateQueued, func() error { return nil }},
		} {
			if _, err := w.client.Enqueue(task("{}"), asynq.TaskID("k")); err != nil {
				t.Fatal(err)
			}
			if err := c.prepare(); err != nil {
				t.Fatal(err)
			}
			before := len(w.mini.Keys())
			wantDup(t, w.enqueue("k", "{}"), c.state)
			if err := w.enqueue("k", "other"); !errors.Is(err, idempotent.ErrPayloadMismatch) {
				t.Errorf("%v, other payload: %v, want ErrPayloadMismatch", c.state, err)
			}
			// P6: a refused enqueue leaves nothing behind.
			if after := len(w.mini.Keys()); after != before {
				t.Errorf("%v: %d keys, %d before: %v", c.state, after, before, w.mini.Keys())
			}
			if err := w.insp.DeleteTask("default", "k"); err != nil {
				t.Fatal(err)
			}
		}
	})
}

type failing struct {
	err   error
	after bool // the task gets in all the same
	next  idempotent.Enqueuer
}

func (f *failing) EnqueueContext(ctx context.Context, t *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	if f.err == nil {
		return f.next.EnqueueContext(ctx, t, opts...)
	}
	if f.after {
		_, _ = f.next.EnqueueContext(ctx, t, opts...)
	}
	return nil, f.err
}

// An enqueue that fails leaves nothing behind and can be asked again at once; one
// that did not fail is found out.
func TestFailedEnqueueIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &failing{err: errors.New("connection refused"), next: w.client}
		p, err := idempotent.NewProducer(w.guard, f)
		if err != nil {
			t.Fatal(err)
		}
		enqueue := func(payload string) error {
			_, err := p.Enqueue(t.Context(), "k", task(payload), asynq.Timeout(time.Hour))
			return err
		}
		if err := enqueue("a"); !errors.Is(err, idempotent.ErrUnavailable) || !errors.Is(err, f.err) {
			t.Fatalf("err = %v, want ErrUnavailable wrapping the client's", err)
		}
		if keys := w.mini.Keys(); len(keys) != 0 {
			t.Errorf("left behind: %v", keys)
		}
		f.after = true
		if err := enqueue("b"); err != nil {
			t.Fatalf("the task got in all the same: %v, want queued", err)
		}
		f.err = nil
		wantDup(t, enqueue("b"), idempotent.StateQueued)
		if err := enqueue("c"); !errors.Is(err, idempotent.ErrPayloadMismatch) {
			t.Errorf("other payload: %v, want ErrPayloadMismatch", err)
		}
	})
}

// A failed rerun is taken back whole.
func TestFailedRerunIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.serve(w.guard, func(context.Context, *asynq.Task) error { return idempotent.Permanent(errors.New("no")) })
		if err := w.enqueue("k", "{}"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		before := w.lookup("k")
		f := &failing{err: errors.New("connection refused"), next: w.client}
		p, _ := idempotent.NewProducer(w.guard, f)
		if _, err := p.Rerun(t.Context(), "k", task("x"), idempotent.RerunOptions{FromScratch: true}, asynq.Timeout(time.Hour)); !errors.Is(err, idempotent.ErrUnavailable) {
			t.Fatalf("err = %v, want ErrUnavailable", err)
		}
		after := w.lookup("k")
		if after.State != idempotent.StateFailed || after.Generation != before.Generation || after.Attempt != before.Attempt || after.Reason != before.Reason {
			t.Fatalf("after a failed rerun: %+v, want %+v", after, before)
		}
		if _, err := w.producer.Rerun(t.Context(), "k", task("{}"), idempotent.RerunOptions{}, asynq.Timeout(time.Hour)); err != nil {
			t.Fatalf("rerun with the first payload: %v", err)
		}
	})
}

// While a rerun that fails in the end is being enqueued, Recoverers take the run for
// queued and forget it. It is an orphan again then, and found.
func TestFailedRerunOfAnOrphan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		died(t, w.rdb, "k")
		w.rdb.ZAdd(t.Context(), "onceq:{leases}:of:dead-1", redis.Z{Score: 1, Member: "k"})
		slow := enqueuerFunc(func() {
			w.recover(w.newGuard())
			time.Sleep(2500 * time.Millisecond)
		})
		p, err := idempotent.NewProducer(w.guard, slow)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Rerun(t.Context(), "k", task("x"), idempotent.RerunOptions{FromScratch: true}, asynq.Timeout(time.Hour)); err == nil {
			t.Fatal("the rerun was enqueued")
		}
		if r := w.lookup("k"); r.State != idempotent.StateRunning || r.Generation != 1 {
			t.Fatalf("%+v, want what it was", r)
		}
		time.Sleep(15 * time.Second)
		if got := w.tasks(); !slices.Equal(got, []string{"k~r1700000000000000 pending"}) {
			t.Errorf("tasks %v, want a new delivery of the run", got)
		}
	})
}

// A producer that died between its reservation and asynq does not block the run.
func TestDeadProducerDoesNotBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		block := make(chan struct{})
		p, _ := idempotent.NewProducer(w.guard, enqueuerFunc(func() { <-block }))
		go func() {
			_, _ = p.Enqueue(t.Context(), "k", task("{}"), asynq.Timeout(time.Hour))
		}()
		synctest.Wait()
		dup := wantDup(t, w.enqueue("k", "{}"), idempotent.StateQueued)
		time.Sleep(dup.RetryAfter)
		if err := w.enqueue("k", "{}"); err != nil {
			t.Fatalf("after the window: %v, want queued", err)
		}
		close(block)
		synctest.Wait()
		if info, err := w.insp.GetTaskInfo("default", "k"); err != nil || info.State != asynq.TaskStatePending {
			t.Fatalf("task %+v, %v; want pending", info, err)
		}
		wantDup(t, w.enqueue("k", "{}"), idempotent.StateQueued)
	})
}

type enqueuerFunc func()

func (f enqueuerFunc) EnqueueContext(context.Context, *asynq.Task, ...asynq.Option) (*asynq.TaskInfo, error) {
	f()
	return nil, errors.New("came too late")
}

// One of two clicks wins, whoever they are.
func TestConcurrentProducers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		results := make(chan error)
		for range 40 {
			p, _ := idempotent.NewProducer(w.newGuard(), w.client)
			go func() {
				_, err := p.Enqueue(t.Context(), "k", task("{}"), asynq.Timeout(time.Hour))
				results <- err
			}()
		}
		queued := 0
		for range 40 {
			if err := <-results; err == nil {
				queued++
			} else {
				wantDup(t, err, idempotent.StateQueued)
			}
		}
		if queued != 1 {
			t.Fatalf("%d queued, want 1", queued)
		}
	})
}

func TestRedeliver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		redeliver := func() error {
			_, err := w.producer.Redeliver(t.Context(), "k", task("{}"), asynq.Timeout(time.Hour))
			return err
		}
		err := direct(t.Context(), w.guard, "k", func(ctx context.Context, _ *asynq.Task) error {
			if dup := wantDup(t, redeliver(), idempotent.StateRunning); dup.Holder != w.guard.Process() {
				t.Errorf("holder %q", dup.Holder)
			}
			w.mini.Del("onceq:{k}:lock")
			<-ctx.Done()
			return nil
		})
		if !errors.Is(err, idempotent.ErrLeaseLost) {
			t.Fatal(err)
		}
		if err := redeliver(); err != nil {
			t.Fatalf("redelivery of an orphan: %v", err)
		}
		wantDup(t, redeliver(), idempotent.StateQueued) // one winner
		w.serve(w.guard, nop)
		time.Sleep(2 * time.Second)
		if err := redeliver(); !errors.Is(err, idempotent.ErrAlreadySucceeded) {
			t.Errorf("redelivery of a success: %v, want ErrAlreadySucceeded", err)
		}
	})
}

// P8 and others: what would make a run unsafe is refused, with its reason, and
// leaves nothing behind.
func TestRefusedEnqueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		hour := asynq.Timeout(time.Hour)
		for name, c := range map[string]struct {
			key  string
			task *asynq.Task
			opts []asynq.Option
			want string
		}{
			"no timeout":     {"k", task(""), nil, "30 minutes"},
			"timeout 0":      {"k", task(""), []asynq.Option{asynq.Timeout(0)}, "Timeout(0s)"},
			"timeout 999ms":  {"k", task(""), []asynq.Option{asynq.Timeout(999 * time.Millisecond)}, "less than 1s"},
			"past deadline":  {"k", task(""), []asynq.Option{asynq.Deadline(time.Now())}, "has passed"},
			"no retries":     {"k", task(""), []asynq.Option{hour, asynq.MaxRetry(0)}, "MaxRetry(0)"},
			"task ID":        {"k", task(""), []asynq.Option{hour, asynq.TaskID("x")}, "TaskID"},
			"unique":         {"k", task(""), []asynq.Option{hour, asynq.Unique(time.Hour)}, "Unique"},
			"group":          {"k", task(""), []asynq.Option{hour, asynq.Group("g")}, "Group"},
			"blank queue":    {"k", task(""), []asynq.Option{hour, asynq.Queue(" ")}, "Queue"},
			"no key":         {"", task(""), []asynq.Option{hour}, "empty"},
			"long key":       {strings.Repeat("x", 513), task(""), []asynq.Option{hour}, "513 bytes, at most 512"},
			"no task":        {"k", nil, []asynq.Option{hour}, "nil"},
			"no type":        {"k", asynq.NewTask(" ", nil), []asynq.Option{hour}, "no type"},
			"odd type":       {"k", asynq.NewTask("\xff", nil), []asynq.Option{hour}, "UTF-8"},
			"odd queue":      {"k", task(""), []asynq.Option{hour, asynq.Queue("\xff")}, "UTF-8"},
			"odd header":     {"k", asynq.NewTaskWithHeaders("t", nil, map[string]string{"a": "\xff"}), []asynq.Option{hour}, "UTF-8"},
			"hidden options": {"k", asynq.NewTask("t", nil, asynq.MaxRetry(3)), []asynq.Option{hour}, "give them to this call"},
		} {
			_, err := w.producer.Enqueue(t.Context(), c.key, c.task, c.opts...)
			if !errors.Is(err, idempotent.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want ErrInvalid saying %q", name, err, c.want)
			}
			if status, _ := idempotent.HTTPStatus(err); status != 400 {
				t.Errorf("%s: HTTP %d, want 400", name, status)
			}
		}
		if keys := w.mini.Keys(); len(keys) != 0 {
			t.Errorf("left behind: %v", keys)
		}
	})
}

// Fail closed: Redis cannot answer, so nothing is enqueued.
func TestProducerFailsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.mini.SetError("LOADING Redis is loading the dataset in memory")
		err := w.enqueue("k", "{}")
		if !errors.Is(err, idempotent.ErrUnavailable) || errors.Is(err, idempotent.ErrDuplicate) {
			t.Fatalf("err = %v, want ErrUnavailable alone", err)
		}
		w.mini.SetError("")
		if keys := w.mini.Keys(); len(keys) != 0 {
			t.Errorf("left behind: %v", keys)
		}
	})
}
