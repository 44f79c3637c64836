package llmcache

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/internal/lease"
	"github.com/nexuscore/onceq/internal/logtest"
	"github.com/nexuscore/onceq/internal/redistest"
)

// slow is a model whose calls last until they are released or cancelled.
type slow struct {
	started   chan struct{} // one for each call
	release   chan struct{}
	calls     atomic.Int64
	cancelled atomic.Int64
}

func newSlow() *slow { return &slow{started: make(chan struct{}, 1000), release: make(chan struct{})} }

func (s *slow) ask(ctx context.Context) (Answer[string], error) {
	n := s.calls.Add(1)
	s.started <- struct{}{}
	select {
	case <-s.release:
		return Answer[string]{Value: fmt.Sprintf("answer %d", n), Usage: Usage{InputTokens: 10, OutputTokens: 5}}, nil
	case <-ctx.Done():
		s.cancelled.Add(1)
		return Answer[string]{}, ctx.Err()
	}
}

// M10, on one real Redis, two caches with their own clients standing for processes.
func TestColdCrowdMakesOneCall(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	m := newSlow()
	var wg sync.WaitGroup
	for range 2 {
		c := open(t, server.Client())
		for range 50 {
			wg.Go(func() {
				got, err := Do(t.Context(), c, prompt("x"), m.ask)
				if err != nil || got != "answer 1" {
					t.Errorf("Do = %q, %v; want answer 1", got, err)
				}
			})
		}
	}
	<-m.started
	time.AfterFunc(300*time.Millisecond, func() { close(m.release) }) // let the other cache find the lease
	wg.Wait()
	if n := m.calls.Load(); n != 1 {
		t.Errorf("%d calls, want 1", n)
	}
}

// M11: the leader goes, the call stays for those who joined.
func TestFollowersSurviveTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Bubble(t)
		c := open(t, rdb)
		m := newSlow()
		leading, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := Do(leading, c, prompt("x"), m.ask); !errors.Is(err, context.Canceled) {
				t.Errorf("leader: %v, want its own cancellation", err)
			}
		})
		<-m.started
		for range 10 {
			wg.Go(func() {
				if got, err := Do(t.Context(), c, prompt("x"), m.ask); err != nil || got != "answer 1" {
					t.Errorf("follower: %q, %v", got, err)
				}
			})
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		close(m.release)
		wg.Wait()
		if n := m.calls.Load(); n != 1 {
			t.Errorf("%d calls, want 1", n)
		}
		if got := c.Stats().Joined; got != 10 {
			t.Errorf("Joined = %d, want 10", got)
		}
	})
}

func TestCallEndsWhenNobodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Bubble(t)
		c := open(t, rdb)
		m := newSlow()
		ctx, l := attempt(t, t.Context(), "run", "p")
		ctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = Do(ctx, c, prompt("x"), m.ask) })
		<-m.started
		cancel()
		wg.Wait()
		synctest.Wait()
		if m.cancelled.Load() != 1 {
			t.Error("the call went on for nobody")
		}
		account, err := c.Ledger().Of(t.Context(), "run")
		if err != nil || account.Wasted.Calls != 1 || account.Paid.Calls != 0 || len(account.Open) != 0 {
			t.Errorf("account %+v, %v; want one wasted call", account, err)
		}
		// The place is free, for this attempt's retry too.
		close(m.release)
		again, _ := attempt(t, t.Context(), "run", "p")
		if got, err := Do(again, c, prompt("x"), m.ask); err != nil || got != "answer 2" {
			t.Errorf("again: %q, %v", got, err)
		}
		l.End()
	})
}

// A follower whose leader's own context ended makes the call itself.
func TestLeadersOwnDeadlineIsNotTheFollowers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Bubble(t)
		c := open(t, rdb)
		var calls atomic.Int64
		bad, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _ = Do(t.Context(), c, prompt("x"), func(context.Context) (Answer[string], error) {
				calls.Add(1)
				<-bad.Done() // a closure that uses another context than it is given
				return Answer[string]{}, bad.Err()
			})
		})
		synctest.Wait()
		wg.Go(func() {
			got, err := Do(t.Context(), c, prompt("x"), func(context.Context) (Answer[string], error) {
				calls.Add(1)
				return Answer[string]{Value: "good"}, nil
			})
			if err != nil || got != "good" {
				t.Errorf("follower: %q, %v", got, err)
			}
		})
		synctest.Wait()
		cancel()
		wg.Wait()
		if calls.Load() != 2 {
			t.Errorf("%d calls, want 2", calls.Load())
		}
	})
}

// Those who joined a call that fails get its error, and do not fail one by one.
func TestFollowersShareAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Bubble(t)
		c := open(t, rdb)
		var calls atomic.Int64
		down := errors.New("503")
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				_, err := Do(t.Context(), c, prompt("x"), func(context.Context) (Answer[string], error) {
					calls.Add(1)
					time.Sleep(time.Second)
					return Answer[string]{}, down
				})
				if err != down {
					t.Errorf("Do = %v, want the error", err)
				}
			})
		}
		wg.Wait()
		if calls.Load() != 1 {
			t.Errorf("%d calls, want 1", calls.Load())
		}
	})
}

// M12: a call that outlives its lease many times over keeps it.
func TestLeaseIsRenewedWhileTheCallRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Bubble(t)
		a, b := open(t, rdb), open(t, rdb)
		m := newSlow()
		var wg sync.WaitGroup
		ask := func(c *Cache) {
			if got, err := Do(t.Context(), c, prompt("x"), m.ask); err != nil || got != "answer 1" {
				t.Errorf("%q, %v", got, err)
			}
		}
		wg.Go(func() { ask(a) })
		<-m.started
		wg.Go(func() { ask(b) })
		time.Sleep(5 * time.Minute)
		close(m.release)
		begin := time.Now()
		wg.Wait()
		if waited := time.Since(begin); waited > time.Second {
			t.Errorf("the waiter noticed the answer after %v", waited)
		}
		if m.calls.Load() != 1 {
			t.Errorf("%d calls, want 1", m.calls.Load())
		}
	})
}

// M12: the holder dies; exactly one of those who wait takes over.
func TestOneWaiterTakesOverFromTheDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Bubble(t)
		dead := newRedisStore(rdb)
		hash, _ := prompt("x").hash()
		slot := sharedSlot("onceq", "", hash)
		if b, err := dead.Begin(t.Context(), slot, Claim{Owner: "dead", Lease: 30 * time.Second, Keep: time.Hour}); err != nil || b.State != StateMine {
			t.Fatalf("Begin = %+v, %v", b, err)
		}
		m := newSlow()
		begin := time.Now()
		var wg sync.WaitGroup
		for range 4 {
			c := open(t, rdb)
			for range 3 {
				wg.Go(func() {
					if got, err := Do(t.Context(), c, prompt("x"), m.ask); err != nil || got != "answer 1" {
						t.Errorf("%q, %v", got, err)
					}
				})
			}
		}
		<-m.started
		if took := time.Since(begin); took < 30*time.Second || took > 31*time.Second {
			t.Errorf("taken over after %v, want the lease's 30 s", took)
		}
		time.Sleep(time.Minute)
		close(m.release)
		wg.Wait()
		if m.calls.Load() != 1 {
			t.Errorf("%d calls, want 1", m.calls.Load())
		}
	})
}

// Waiting never outlasts the caller's deadline, and is no error.
func TestWaiterCallsItselfInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Bubble(t)
		holder := open(t, rdb)
		stuck := newSlow()
		var wg sync.WaitGroup
		holding, stop := context.WithCancel(t.Context())
		wg.Go(func() { _, _ = Do(holding, holder, prompt("x"), stuck.ask) })
		<-stuck.started
		for name, c := range map[string]*Cache{"same process": holder, "another process": open(t, rdb)} {
			ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
			begin := time.Now()
			got, err := Do(ctx, c, prompt("x"), func(ctx context.Context) (Answer[string], error) {
				return Answer[string]{Value: "own"}, ctx.Err()
			})
			if took := time.Since(begin); err != nil || got != "own" || took != 30*time.Second {
				t.Errorf("%s: %q, %v after %v; want its own answer after three quarters of its time", name, got, err, took)
			}
			cancel()
		}
		stop()
		wg.Wait()
	})
}

// M13: Redis is paused. Every call is bounded, the breaker opens, one line says so.
func TestPausedRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	var log logtest.Log
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr, DisableIdentity: true, MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	c := open(t, rdb, WithTimeout(200*time.Millisecond), WithLogger(log.Logger()))
	var m model
	do(t, t.Context(), c, &m, "warm")
	before := c.Stats().Passed
	server.Signal(syscall.SIGSTOP)
	defer server.Signal(syscall.SIGCONT)
	var slowest time.Duration
	for i := range 20 {
		begin := time.Now()
		do(t, t.Context(), c, &m, fmt.Sprint(i))
		slowest = max(slowest, time.Since(begin))
	}
	if slowest > time.Second {
		t.Errorf("the slowest call took %v, want at most two questions of 200 ms", slowest)
	}
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "breaker changed") {
		t.Errorf("%d log lines, want one:\n%s", n, log.String())
	}
	if got := c.Stats().Passed - before; got != 20 {
		t.Errorf("Passed = %d, want 20", got)
	}
}

func TestLostRunPaysNothingMore(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	c := open(t, rdb)
	ctx, l := attempt(t, t.Context(), "run", "p")
	l.Lose(errors.New("taken over"))
	_, err := Do(context.WithoutCancel(ctx), c, prompt("x"), func(context.Context) (Answer[string], error) {
		t.Error("called")
		return Answer[string]{}, nil
	})
	if !errors.Is(err, lease.ErrLost) || !errors.Is(err, ErrLeaseLost) {
		t.Errorf("Do = %v, want ErrLost", err)
	}
}

// A Refresh does not take the answer that others are just finding.
func TestRefreshDoesNotJoinALookup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowBegin{Store: NewMemoryStore()}
		c := open(t, nil, WithStore(store))
		var m model
		do(t, t.Context(), c, &m)
		store.delay = 100 * time.Millisecond
		var wg sync.WaitGroup
		wg.Go(func() {
			if got := do(t, t.Context(), c, &m); got != "answer 1" {
				t.Errorf("lookup: %q", got)
			}
		})
		time.Sleep(50 * time.Millisecond)
		if got := do(t, With(t.Context(), Refresh()), c, &m); got != "answer 2" {
			t.Errorf("refresh: %q, want a new answer", got)
		}
		wg.Wait()
	})
}

type slowBegin struct {
	Store
	delay time.Duration
}

func (s *slowBegin) Begin(ctx context.Context, slot Slot, c Claim) (Begun, error) {
	time.Sleep(s.delay)
	return s.Store.Begin(ctx, slot, c)
}

func TestEndedContextPaysNothing(t *testing.T) {
	t.Parallel()
	c := open(t, nil, WithStore(NewMemoryStore()))
	ctx, l := attempt(t, t.Context(), "run", "p")
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	for range 100 {
		_, err := Do(ctx, c, prompt("x"), func(context.Context) (Answer[string], error) {
			t.Error("called")
			return Answer[string]{}, nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("Do = %v, want Canceled", err)
		}
	}
	l.End()
}
