package idempotent_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/logtest"
	"github.com/nexuscore/onceq/internal/redistest"
)

// pair is two processes that see each other: the first has a run, the second
// recovers and would take it over.
type pair struct {
	*world
	first, second *idempotent.Guard
	rec           *idempotent.Recoverer // of the first
	begun         chan *idempotent.Attempt
	release       chan struct{} // lets the first attempt return
}

func newPair(w *world) *pair {
	w.t.Helper()
	p := &pair{world: w, second: w.guard, begun: make(chan *idempotent.Attempt, 10), release: make(chan struct{})}
	// It has one slot, which the handler keeps: it takes no second delivery.
	p.first = w.machine(func(ctx context.Context, _ *asynq.Task) error {
		p.begun <- idempotent.MustFromContext(ctx)
		<-p.release // ignores ctx
		return nil
	}).guard
	p.rec = w.recover(p.first)
	if err := w.enqueue("k", "x"); err != nil {
		w.t.Fatal(err)
	}
	return p
}

// A process whose subscription is cut, and that works on: its lease is broken, and
// from then on it can write nothing. What the other does, counts.
func TestFalselyJudgedProcessIsFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := newPair(w)
		a := <-p.begun
		time.Sleep(2 * time.Second) // it is seen
		w.recover(w.newGuard())
		time.Sleep(20 * time.Second)
		if r := w.lookup("k"); r.Holder != p.first.Process() {
			t.Fatalf("held by %q, want the first, which is present", r.Holder)
		}
		w.serve(p.second, func(ctx context.Context, _ *asynq.Task) error {
			b := idempotent.MustFromContext(ctx)
			if b.Token() <= a.Token() || b.Crashes() != 1 {
				t.Errorf("token %d after %d, %d crashes; want a larger one and one crash", b.Token(), a.Token(), b.Crashes())
			}
			close(p.release) // the first ends now, in the middle of the second
			time.Sleep(5 * time.Second)
			return b.SetResult([]byte("second"))
		})
		p.rec.Sever()
		cut := time.Now()
		for w.lookup("k").Attempt == 1 {
			time.Sleep(100 * time.Millisecond)
		}
		if d := time.Since(cut); d < 2*time.Second || d > 4500*time.Millisecond {
			t.Errorf("taken over after %v, want 2s to 4.5s", d)
		}
		time.Sleep(20 * time.Second)
		if err := a.Err(); !errors.Is(err, idempotent.ErrLeaseLost) {
			t.Errorf("the first attempt's lease: %v, want ErrLeaseLost", err)
		}
		if r := w.lookup("k"); r.State != idempotent.StateSucceeded || r.Attempt != 2 || string(r.Result) != "second" {
			t.Fatalf("%+v, want the second attempt's success", r)
		}
	})
}

// A process that was taken for gone and begins an attempt all the same is alive: that
// one is left alone, else it would use up its run's crashes in seconds.
func TestFalselyJudgedProcessThatWorksOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		g := w.newGuard()
		release := make(chan struct{})
		w.serve(g, func(context.Context, *asynq.Task) error { <-release; return nil })
		t.Cleanup(func() { close(release) })
		rec := w.recover(g)
		if err := w.enqueue("k", "x"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		w.recover(w.guard)
		rec.Sever()
		time.Sleep(2 * time.Minute)
		if r := w.lookup("k"); r.Holder != g.Process() || r.Attempt != 2 || r.Crashes != 1 {
			t.Fatalf("%+v, want the second attempt at work on the same process", r)
		}
	})
}

// A subscription that is cut is made again: nobody is judged for it.
func TestCutSubscriptionIsRestored(t *testing.T) {
	srv := redistest.Real(t)
	rdb := srv.Client()
	first, second := newGuardOn(t, rdb, "first"), newGuardOn(t, rdb, "second")
	for _, g := range []*idempotent.Guard{first, second} {
		startRecoverer(t, g)
	}
	subscribers := func() int64 {
		var n int64
		for _, g := range []*idempotent.Guard{first, second} {
			ch := "onceq:{leases}:alive:" + g.Process()
			n += rdb.PubSubNumSub(t.Context(), ch).Val()[ch]
		}
		return n
	}
	err := direct(t.Context(), first, "k", func(ctx context.Context, _ *asynq.Task) error {
		for range 3 {
			waitFor(t, "both are subscribed", func() bool { return subscribers() == 2 })
			if err := rdb.Do(ctx, "CLIENT", "KILL", "TYPE", "pubsub").Err(); err != nil {
				t.Error(err)
			}
			waitFor(t, "both are subscribed again", func() bool { return subscribers() == 2 })
		}
		// Longer than anybody who is gone is waited for.
		for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if err := idempotent.MustFromContext(ctx).Err(); err != nil || rdb.Exists(ctx, "onceq:{k}:lock").Val() == 0 {
				t.Fatalf("the lease was broken: %v", err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A process that was never seen subscribed, and one that said goodbye, are not judged.
func TestOnlyWhoWasSeenIsJudged(t *testing.T) {
	for name, absent := range map[string]func(w *world, p *pair){
		"never seen": nil,
		"signed off": func(_ *world, p *pair) { p.rec.Shutdown() },
		"without it": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				g := w.newGuard()
				w.recover(w.guard)
				switch {
				case absent != nil:
					p := newPair(w)
					<-p.begun
					time.Sleep(5 * time.Second)
					absent(w, p)
					defer close(p.release)
				default:
					if name == "without it" {
						w.recover(g, idempotent.WithoutPresence())
					}
					ctx, cancel := context.WithCancel(t.Context())
					done := make(chan error)
					go func() {
						done <- direct(ctx, g, "k", func(ctx context.Context, _ *asynq.Task) error {
							<-ctx.Done()
							return context.Cause(ctx)
						})
					}()
					defer func() { cancel(); <-done }()
				}
				time.Sleep(25 * time.Second)
				if !w.mini.Exists("onceq:{k}:lock") {
					t.Fatal("its lease was broken")
				}
			})
		})
	}
}

// A Redis that refuses what presence needs: off, said once, and the TTL decides.
func TestPresenceRefused(t *testing.T) {
	for name, rule := range map[string][]any{
		"PUBSUB":    {"+@all", "-pubsub", "allchannels"},
		"SUBSCRIBE": {"+@all", "-subscribe", "allchannels"},
		"channels":  {"+@all", "resetchannels"},
	} {
		t.Run(name, func(t *testing.T) {
			srv := redistest.Real(t)
			admin := srv.Client()
			if err := admin.Do(t.Context(), append([]any{"ACL", "SETUSER", "worker", "on", ">secret", "~*"}, rule...)...).Err(); err != nil {
				t.Fatal(err)
			}
			rdb := redis.NewClient(&redis.Options{Addr: srv.Addr, Username: "worker", Password: "secret", DisableIdentity: true})
			t.Cleanup(func() { _ = rdb.Close() })
			var log logtest.Log
			g, err := idempotent.New(rdb, idempotent.WithLogger(log.Logger()), idempotent.WithTTL(2*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			rec, err := idempotent.NewRecoverer(g, idempotent.WithInterval(50*time.Millisecond))
			if err != nil {
				t.Fatal(err)
			}
			if err := rec.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(rec.Shutdown)
			waitFor(t, "it is said", func() bool { return strings.Contains(log.String(), "presence is off") })

			// A run that died is found by its lease all the same.
			died(t, admin, "k")
			insp := asynq.NewInspectorFromRedisClient(admin)
			waitFor(t, "it is delivered again", func() bool {
				tasks, _ := insp.ListPendingTasks("default")
				return slices.ContainsFunc(tasks, func(i *asynq.TaskInfo) bool { return strings.HasPrefix(i.ID, "k~r") })
			})
			if n := strings.Count(log.String(), "presence is off"); n != 1 {
				t.Errorf("said %d times, want once:\n%s", n, log.String())
			}
		})
	}
}

// died leaves a run as begin does and a process that dies after it.
func died(t *testing.T, rdb redis.UniversalClient, key string) {
	t.Helper()
	record := []any{
		"state", "running", "token", 1700000000000000, "gen", 1, "attempt", 1, "process", "dead-1", "owner", "o", "fp", "f",
		"delivery", key, "queue", "default", "type", taskType, "max_retry", 5, "retried", 0, "timeout", 3600000, "payload", "",
	}
	_, err := rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		p.HSet(t.Context(), "onceq:{"+key+"}:run", record...)
		p.ZAdd(t.Context(), "onceq:{leases}:of:dead-1", redis.Z{Score: 1700000000000, Member: key})
		p.ZAdd(t.Context(), "onceq:{leases}:processes", redis.Z{Score: 1700000000000, Member: "dead-1"})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func newGuardOn(t *testing.T, rdb redis.UniversalClient, process string, opts ...idempotent.Option) *idempotent.Guard {
	t.Helper()
	g, err := idempotent.New(rdb, append([]idempotent.Option{idempotent.WithLogger(quiet), idempotent.WithProcess(process)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func startRecoverer(t *testing.T, g *idempotent.Guard, opts ...idempotent.RecovererOption) {
	t.Helper()
	r, err := idempotent.NewRecoverer(g, opts...)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Shutdown)
}

// waitFor waits for a state of a real Redis, which sends no event.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// A process that lives and may no longer subscribe takes itself off the list: that
// it looks at all proves that it lives.
func TestProcessThatCannotSubscribeAnyMoreIsNotJudged(t *testing.T) {
	srv := redistest.Real(t)
	admin := srv.Client()
	setUser := func(rule ...any) {
		if err := admin.Do(t.Context(), append([]any{"ACL", "SETUSER", "worker", "on", ">secret", "~*", "allchannels", "+@all"}, rule...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	setUser()
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr, Username: "worker", Password: "secret", DisableIdentity: true})
	t.Cleanup(func() { _ = rdb.Close() })
	first := newGuardOn(t, rdb, "first")
	startRecoverer(t, first)
	startRecoverer(t, newGuardOn(t, admin, "second"))
	present := func() bool {
		return admin.ZScore(t.Context(), "onceq:{leases}:present", first.Process()).Err() == nil
	}
	err := direct(t.Context(), first, "k", func(ctx context.Context, _ *asynq.Task) error {
		waitFor(t, "the first is present", present)
		setUser("-subscribe")
		admin.Do(ctx, "CLIENT", "KILL", "TYPE", "pubsub", "USER", "worker")
		waitFor(t, "the first is off the list", func() bool { return !present() })
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if admin.Exists(ctx, "onceq:{k}:lock").Val() == 0 {
				t.Fatal("its lease was broken")
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// What an index says of a run is a hint: nothing is done to a run that needs nothing,
// and the hint goes where it belongs.
func TestStaleIndexEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := newPair(w)
		a := <-p.begun
		if err := direct(t.Context(), w.guard, "done", nop); err != nil {
			t.Fatal(err)
		}
		w.recover(w.guard)
		time.Sleep(2 * time.Second)
		// A process that was judged dead long ago, as a node that lost some writes may have it.
		past := float64(time.Now().Add(-time.Minute).UnixMilli())
		for _, key := range []string{"k", "done", "never", "%zz"} {
			_, _ = w.mini.ZAdd("onceq:{leases}:of:dead-1", past, key)
			_, _ = w.mini.ZAdd("onceq:{leases}:waiting", past, key)
		}
		_, _ = w.mini.ZAdd("onceq:{leases}:processes", past, "dead-1")
		_, _ = w.mini.ZAdd("onceq:{leases}:present", -past, "dead-1")
		_, _ = w.mini.ZRem("onceq:{leases}:of:"+p.first.Process(), "k") // and lost the one that is right
		time.Sleep(3 * time.Second)
		if err := a.Err(); err != nil || !w.mini.Exists("onceq:{k}:lock") {
			t.Fatalf("the lease of a living process was broken: %v", err)
		}
		if w.mini.Exists("onceq:{leases}:of:dead-1") || w.mini.Exists("onceq:{leases}:waiting") {
			t.Errorf("stale entries are left: %v", w.mini.Keys())
		}
		if s, err := w.mini.ZScore("onceq:{leases}:of:"+p.first.Process(), "k"); err != nil || s <= past {
			t.Errorf("the live run is at %v (%v), want it where it belongs", s, err)
		}
		if got, _ := w.mini.ZMembers("onceq:{leases}:processes"); slices.Contains(got, "dead-1") || !slices.Contains(got, p.first.Process()) {
			t.Errorf("processes %v, want the first and not the dead one", got)
		}
		if got := w.tasks(); !slices.Equal(got, []string{"k active"}) {
			t.Errorf("tasks %v, want no new one", got)
		}
		close(p.release)
		time.Sleep(time.Minute)
		w.checkIndexEmpty()
	})
}
