package idempotent_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/idempotent"
)

// recover starts a Recoverer; it is shut down before the test ends.
func (w *world) recover(g *idempotent.Guard, opts ...idempotent.RecovererOption) *idempotent.Recoverer {
	w.t.Helper()
	r, err := idempotent.NewRecoverer(g, opts...)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := r.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(r.Shutdown)
	return r
}

// tasks lists what asynq has of the run, in all states.
func (w *world) tasks() []string {
	w.t.Helper()
	var ids []string
	for state, list := range map[string]func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error){
		"active": w.insp.ListActiveTasks, "pending": w.insp.ListPendingTasks, "retry": w.insp.ListRetryTasks,
		"archived": w.insp.ListArchivedTasks, "scheduled": w.insp.ListScheduledTasks,
	} {
		infos, err := list("default")
		if err != nil {
			w.t.Fatal(err)
		}
		for _, i := range infos {
			ids = append(ids, i.ID+" "+state)
		}
	}
	slices.Sort(ids)
	return ids
}

// machine is a worker that can be cut off from Redis: what it was at stays as it is.
type machine struct {
	guard *idempotent.Guard
	cut   atomic.Bool
}

func (w *world) machine(h asynq.HandlerFunc, opts ...idempotent.Option) *machine {
	w.t.Helper()
	m := &machine{}
	rdb := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:6379", Protocol: 2, DisableIdentity: true, MaxRetries: -1,
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			if m.cut.Load() {
				return nil, errCut
			}
			return w.mini.Dial()
		},
	})
	rdb.AddHook(cutter{&m.cut})
	w.t.Cleanup(func() { _ = rdb.Close() })
	var err error
	if m.guard, err = idempotent.New(rdb, append([]idempotent.Option{idempotent.WithLogger(quiet)}, opts...)...); err != nil {
		w.t.Fatal(err)
	}
	srv := asynq.NewServerFromRedisClient(rdb, m.guard.ServerConfig(asynq.Config{
		Concurrency: 1, LogLevel: asynq.FatalLevel, ShutdownTimeout: time.Second,
	}))
	mux := asynq.NewServeMux()
	mux.Use(m.guard.Middleware)
	mux.HandleFunc(taskType, h)
	if err := srv.Start(mux); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		m.cut.Store(false)
		srv.Shutdown()
		time.Sleep(time.Second) // handlers give back what they hold
	})
	return m
}

var errCut = errors.New("the cable is cut")

// cutter fails what passes while it is set, after a while as a network does: asynq
// asks again at once.
type cutter struct{ cut *atomic.Bool }

func (c cutter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c cutter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if c.cut.Load() {
			time.Sleep(time.Second)
			cmd.SetErr(errCut)
			return errCut
		}
		return next(ctx, cmd)
	}
}

func (c cutter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if c.cut.Load() {
			time.Sleep(time.Second)
			for _, cmd := range cmds {
				cmd.SetErr(errCut)
			}
			return errCut
		}
		return next(ctx, cmds)
	}
}

// began tells a test of every attempt.
type began struct {
	process          string
	attempt, crashes int
	at               time.Time
}

// hangFirst blocks in the first attempt of a run until its context ends.
func hangFirst(events chan<- began, process string) asynq.HandlerFunc {
	return func(ctx context.Context, _ *asynq.Task) error {
		a := idempotent.MustFromContext(ctx)
		events <- began{process, a.Number(), a.Crashes(), time.Now()}
		if a.Number() == 1 {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		return nil
	}
}

// A machine that is lost: its connections stay, so only the TTL can tell.
func TestLostMachinesRunGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		events := make(chan began, 10)
		m := w.machine(hangFirst(events, "lost"))
		if err := w.enqueue("k", "x", asynq.MaxRetry(3)); err != nil {
			t.Fatal(err)
		}
		<-events
		w.serve(w.guard, hangFirst(events, "living"))
		w.recover(w.guard)
		time.Sleep(45 * time.Second)
		m.cut.Store(true)
		lost := time.Now()
		second := <-events
		if second.process != "living" || second.attempt != 2 || second.crashes != 1 {
			t.Fatalf("%+v, want attempt 2 on the living worker after one crash", second)
		}
		// TTL + one look + 1 s.
		if d := second.at.Sub(lost); d > 32*time.Second {
			t.Errorf("went on after %v, want at most 32s", d)
		}
		time.Sleep(time.Second)
		if r := w.lookup("k"); r.State != idempotent.StateSucceeded {
			t.Fatalf("%v, want succeeded", r.State)
		}
		time.Sleep(3 * time.Minute) // asynq's own recovery finds it done
		if got := w.tasks(); len(got) != 0 {
			t.Errorf("left in the queue: %v", got)
		}
		w.checkIndexEmpty()
	})
}

// checkIndexEmpty also sees that no key lives for ever.
func (w *world) checkIndexEmpty() {
	w.t.Helper()
	for _, k := range w.mini.Keys() {
		if strings.HasPrefix(k, "onceq:") && w.mini.TTL(k) <= 0 {
			w.t.Errorf("%s has no TTL", k)
		}
		if strings.HasPrefix(k, "onceq:{leases}:") && k != "onceq:{leases}:present" {
			members, _ := w.mini.ZMembers(k)
			w.t.Errorf("%s is left: %v", k, members)
		}
	}
}

// L4: no second delivery while a handler works, and no outcome overwritten.
func TestLiveRunIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		runs := &counter{}
		w.serve(w.guard, func(ctx context.Context, _ *asynq.Task) error {
			runs.add()
			time.Sleep(90 * time.Second)
			return ctx.Err()
		})
		w.recover(w.guard, idempotent.WithInterval(100*time.Millisecond))
		w.recover(w.newGuard(), idempotent.WithInterval(100*time.Millisecond))
		if err := w.enqueue("k", "x"); err != nil {
			t.Fatal(err)
		}
		for range 80 {
			time.Sleep(time.Second)
			if got := w.tasks(); !slices.Equal(got, []string{"k active"}) {
				t.Fatalf("tasks %v, want the one that runs", got)
			}
		}
		time.Sleep(time.Minute)
		if r := w.lookup("k"); r.State != idempotent.StateSucceeded || runs.get() != 1 {
			t.Fatalf("%v after %d runs, want succeeded after 1", r.State, runs.get())
		}
		w.checkIndexEmpty()
	})
}

// Of many recoverers one delivers, and what it delivers has the retries that are left.
func TestOneRecovererDelivers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		events := make(chan began, 10)
		n := &counter{}
		m := w.machine(func(ctx context.Context, task *asynq.Task) error {
			if n.add() == 1 {
				return errors.New("once") // uses up one retry
			}
			return hangAlways(events)(ctx, task)
		}, idempotent.WithBackoff(time.Second, time.Second))
		if err := w.enqueue("k", "payload", asynq.MaxRetry(3), asynq.Timeout(77*time.Minute)); err != nil {
			t.Fatal(err)
		}
		<-events
		for range 5 {
			w.recover(w.newGuard())
		}
		m.cut.Store(true)
		time.Sleep(33 * time.Second)
		token := w.lookup("k").Token
		id := fmt.Sprintf("k~r%d", token)
		if got := w.tasks(); !slices.Equal(got, []string{"k active", id + " pending"}) {
			t.Fatalf("tasks %v, want the dead one and %s", got, id)
		}
		info, err := w.insp.GetTaskInfo("default", id)
		if err != nil {
			t.Fatal(err)
		}
		if info.MaxRetry != 2 || info.Timeout != 77*time.Minute || string(info.Payload) != "payload" || info.Type != taskType {
			t.Fatalf("%+v, want 2 retries left, 77m, the payload", info)
		}
	})
}

func hangAlways(events chan<- began) asynq.HandlerFunc {
	return func(ctx context.Context, _ *asynq.Task) error {
		a := idempotent.MustFromContext(ctx)
		events <- began{"", a.Number(), a.Crashes(), time.Now()}
		<-ctx.Done()
		return context.Cause(ctx)
	}
}

// refusing makes a hook fail commands that match.
type refusing struct {
	mu    sync.Mutex
	match string
	fails int
}

func (f *refusing) hit(cmd redis.Cmder) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.match == "" || !strings.Contains(fmt.Sprintln(cmd.Args()...), f.match) {
		return false
	}
	f.fails++
	return true
}

func (f *refusing) set(match string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.match = match
}

func (f *refusing) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fails
}

func (f *refusing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *refusing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if f.hit(cmd) {
			cmd.SetErr(errCut)
			return errCut
		}
		return next(ctx, cmd)
	}
}

func (f *refusing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// What fails on the way is done at a later look, and not twice.
func TestRecoveryThatFailsOnTheWay(t *testing.T) {
	for name, match := range map[string]string{
		"the task is not enqueued": "default}:pending",
		"the index is not updated": "onceq:{leases}:waiting onceq:{leases}:processes",
		"the look finds no Redis":  "onceq:{leases}:present",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				events := make(chan began, 10)
				m := w.machine(hangAlways(events))
				if err := w.enqueue("k", "x"); err != nil {
					t.Fatal(err)
				}
				<-events
				f := &refusing{match: match}
				w.rdb.AddHook(f)
				w.recover(w.guard)
				m.cut.Store(true)
				time.Sleep(45 * time.Second)
				if f.count() < 3 {
					t.Fatalf("failed %d times, want it tried again and again", f.count())
				}
				f.set("")
				time.Sleep(2 * time.Second)
				if got := w.tasks(); len(got) != 2 || got[0] != "k active" || !strings.HasPrefix(got[1], "k~r") {
					t.Fatalf("tasks %v, want the dead one and one new delivery", got)
				}
			})
		})
	}
}
