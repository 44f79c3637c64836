package idempotent_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/lease"
)

// L1: the one that is turned away leaves the holder's lease alone.
func TestContendedDeliveryLeavesTheLeaseAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		runs := 0
		err := direct(t.Context(), w.guard, "k", func(ctx context.Context, _ *asynq.Task) error {
			runs++
			for range 2 { // B, then C
				err := direct(ctx, w.newGuard(), "k", func(context.Context, *asynq.Task) error { runs++; return nil })
				var held *idempotent.ContendedError
				if !errors.As(err, &held) || !errors.Is(err, idempotent.ErrContended) {
					t.Errorf("second delivery: %v, want ContendedError", err)
				} else if held.Holder != w.guard.Process() || held.RetryAfter != 30*time.Second || held.Key != "k" {
					t.Errorf("contended: %+v, want holder %s for 30s", held, w.guard.Process())
				}
			}
			return idempotent.MustFromContext(ctx).Err()
		})
		if err != nil || runs != 1 {
			t.Fatalf("err %v, runs %d; want nil, 1", err, runs)
		}
	})
}

// L2, L4: the lease outlives many TTLs while the handler works, with no deadline.
func TestLeaseIsHeldWhileTheHandlerWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		err := direct(t.Context(), w.guard, "k", func(ctx context.Context, _ *asynq.Task) error {
			for range 900 {
				time.Sleep(100 * time.Millisecond) // 3 × TTL in all
				if left := w.lookup("k").LeaseLeft; left < 15*time.Second {
					t.Fatalf("lease has %v left", left)
				}
			}
			return ctx.Err()
		})
		if err != nil {
			t.Fatal(err)
		}
		if r := w.lookup("k"); r.State != idempotent.StateSucceeded || r.LeaseLeft != 0 || r.Attempt != 1 {
			t.Fatalf("%+v, want succeeded, released, attempt 1", r)
		}
	})
}

// L6: nothing to return is a success like any other.
func TestEmptyResultsRunOnce(t *testing.T) {
	for name, h := range map[string]asynq.HandlerFunc{
		"nil":   nop,
		"empty": func(ctx context.Context, _ *asynq.Task) error { return idempotent.MustFromContext(ctx).SetResult(nil) },
		"false": func(ctx context.Context, _ *asynq.Task) error {
			return idempotent.MustFromContext(ctx).SetResult([]byte("false"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				n := 0
				for range 3 {
					err := direct(t.Context(), w.guard, "k", func(ctx context.Context, tk *asynq.Task) error { n++; return h(ctx, tk) })
					if err != nil {
						t.Fatal(err)
					}
				}
				if n != 1 {
					t.Fatalf("ran %d times, want 1", n)
				}
			})
		})
	}
}

// L7: two failed extensions in a row do not lose the lease; the deadline does.
func TestOutageShorterThanTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		err := direct(t.Context(), w.guard, "k", func(ctx context.Context, _ *asynq.Task) error {
			time.Sleep(5 * time.Second)
			w.mini.SetError("LOADING Redis is loading the dataset in memory")
			time.Sleep(10 * time.Second) // beats at 10 s and 13 s fail
			w.mini.SetError("")
			time.Sleep(30 * time.Second)
			return ctx.Err()
		})
		if err != nil {
			t.Fatalf("lost the lease: %v", err)
		}
	})
}

func TestOutageLongerThanTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		start := time.Now()
		err := direct(t.Context(), w.guard, "k", func(ctx context.Context, _ *asynq.Task) error {
			w.mini.SetError("LOADING Redis is loading the dataset in memory")
			<-ctx.Done()
			// Three seconds, the margin, before Redis would give it to another.
			if got := time.Since(start); got != 27*time.Second {
				t.Errorf("context ended after %v, want 27s", got)
			}
			w.mini.SetError("")
			return context.Cause(ctx)
		})
		if !errors.Is(err, idempotent.ErrLeaseLost) {
			t.Fatalf("err = %v, want ErrLeaseLost", err)
		}
		if r := w.lookup("k"); r.State != idempotent.StateRunning {
			t.Fatalf("state %v: an attempt without its lease wrote an outcome", r.State)
		}
	})
}

// A success that comes after the lease is gone must not be recorded.
func TestSuccessAfterLossIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		err := direct(t.Context(), w.guard, "k", func(ctx context.Context, _ *asynq.Task) error {
			w.mini.Del("onceq:{k}:lock") // evicted: L14
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), idempotent.ErrLeaseLost) {
				t.Errorf("cause = %v, want ErrLeaseLost", context.Cause(ctx))
			}
			return nil
		})
		if !errors.Is(err, idempotent.ErrLeaseLost) {
			t.Fatalf("err = %v, want ErrLeaseLost", err)
		}
		if r := w.lookup("k"); r.State == idempotent.StateSucceeded {
			t.Fatal("an attempt without its lease recorded a success")
		}
	})
}

// L8: the lease is released although the handler's context has ended.
func TestReleaseAfterCancellation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ctx, cancel := context.WithCancel(t.Context())
		_ = direct(ctx, w.guard, "k", func(ctx context.Context, _ *asynq.Task) error {
			cancel()
			return ctx.Err()
		})
		if r := w.lookup("k"); r.LeaseLeft != 0 || r.State != idempotent.StateRetrying {
			t.Fatalf("%v with %v left, want retrying and released", r.State, r.LeaseLeft)
		}
		ctx, cancel = context.WithCancel(t.Context())
		err := direct(ctx, w.guard, "k", func(context.Context, *asynq.Task) error { cancel(); return nil })
		if r := w.lookup("k"); err != nil || r.State != idempotent.StateSucceeded {
			t.Fatalf("err %v, %v; want nil and succeeded: the work was done", err, r.State)
		}
	})
}

// L9: nothing is left behind, and nobody is told a lease is lost that is not.
func TestThousandCycles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for i := range 1000 {
			err := direct(t.Context(), w.guard, fmt.Sprint("k", i), func(ctx context.Context, _ *asynq.Task) error {
				return context.Cause(ctx)
			})
			if err != nil {
				t.Fatalf("cycle %d: %v", i, err)
			}
		}
	}) // the bubble fails when a goroutine is left; goleak looks too
}

// L12: a handler that hangs keeps its run for the grace and not longer, and can
// then change nothing.
func TestHungHandlerLosesItsRunAfterTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, idempotent.WithGrace(5*time.Second))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		release, hung := make(chan struct{}), make(chan error, 1)
		began := make(chan *idempotent.Attempt, 1)
		go func() {
			hung <- direct(ctx, w.guard, "k", func(ctx context.Context, _ *asynq.Task) error {
				began <- idempotent.MustFromContext(ctx)
				<-release // ignores its context
				return nil
			})
		}()
		first := <-began
		time.Sleep(64 * time.Second)
		if left := w.lookup("k").LeaseLeft; left == 0 {
			t.Fatal("the lease ended within the grace")
		}
		time.Sleep(2 * time.Second)
		err := direct(t.Context(), w.newGuard(), "k", func(ctx context.Context, _ *asynq.Task) error {
			second := idempotent.MustFromContext(ctx)
			if second.Token() <= first.Token() {
				t.Errorf("token %d after %d, want a larger one", second.Token(), first.Token())
			}
			if second.Crashes() != 0 {
				t.Errorf("%d crashes, want 0: the lease was given up", second.Crashes())
			}
			close(release)
			if err := <-hung; !errors.Is(err, idempotent.ErrLeaseLost) {
				t.Errorf("the hung one got %v, want ErrLeaseLost", err)
			}
			return second.Err()
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

func TestProgressKeepsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, idempotent.WithProgressTimeout(time.Minute))
		start := time.Now()
		err := direct(t.Context(), w.guard, "k", func(ctx context.Context, _ *asynq.Task) error {
			for range 4 {
				time.Sleep(50 * time.Second)
				idempotent.Progress(ctx)
			}
			<-ctx.Done() // no more of it
			return context.Cause(ctx)
		})
		if !errors.Is(err, idempotent.ErrLeaseLost) {
			t.Fatalf("err = %v, want ErrLeaseLost", err)
		}
		if got := time.Since(start); got < 260*time.Second || got > 275*time.Second {
			t.Fatalf("lost after %v, want within a beat after 260s", got)
		}
	})
}

// A panic passes through as it is and leaves the run to its next attempt.
func TestPanicPassesThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		func() {
			defer func() {
				if v := recover(); v != "boom" {
					t.Errorf("recovered %v, want boom", v)
				}
			}()
			_ = w.guard.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { panic("boom") })).
				ProcessTask(t.Context(), asynq.NewTaskWithHeaders(taskType, nil, map[string]string{"onceq-key": "k"}))
		}()
		if r := w.lookup("k"); r.LeaseLeft != 0 {
			t.Fatalf("lease has %v left after a panic", r.LeaseLeft)
		}
	})
}

// L15: a token never goes backwards, also when Redis lost the counter.
func TestTokensOnlyGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var last int64
		for i := range 20 {
			if i%5 == 4 {
				w.mini.FlushAll()
			}
			_ = direct(t.Context(), w.guard, "k", func(ctx context.Context, _ *asynq.Task) error {
				a := idempotent.MustFromContext(ctx)
				if a.Token() <= last {
					t.Errorf("attempt %d: token %d after %d", i, a.Token(), last)
				}
				last = a.Token()
				return errors.New("again")
			})
			time.Sleep(time.Millisecond)
			w.mini.HSet("onceq:{k}:run", "state", "retrying") // the unit test has no retries
		}
		// Redis' clock goes back an hour: the record still knows.
		w.mini.SetTime(time.Now().Add(-time.Hour))
		_ = direct(t.Context(), w.guard, "k", func(ctx context.Context, _ *asynq.Task) error {
			if got := idempotent.MustFromContext(ctx).Token(); got != last+1 {
				t.Errorf("token %d after %d with the clock behind, want one more", got, last)
			}
			return nil
		})
	})
}

// Many at once, in one process and in many: one runs.
func TestOneOfManyRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var runs, contended counter
		var wg sync.WaitGroup
		release := make(chan struct{})
		for i := range 50 {
			g := w.guard
			if i%2 == 0 {
				g = w.newGuard()
			}
			wg.Go(func() {
				err := direct(t.Context(), g, "k", func(context.Context, *asynq.Task) error {
					runs.add()
					<-release
					return nil
				})
				if errors.Is(err, idempotent.ErrContended) && contended.add() == 49 {
					close(release)
				}
			})
		}
		wg.Wait()
		if runs.get() != 1 || contended.get() != 49 {
			t.Fatalf("%d ran, %d contended; want 1 and 49", runs.get(), contended.get())
		}
	})
}

func TestPoisonPill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failures []idempotent.Failure
		w := newWorld(t, idempotent.WithMaxCrashes(3), idempotent.WithOnFailed(func(_ context.Context, f idempotent.Failure) {
			failures = append(failures, f)
		}))
		for i := range 3 { // a worker that dies: its lease is gone, its outcome never written
			err := direct(t.Context(), w.guard, "k", func(ctx context.Context, _ *asynq.Task) error {
				if got := idempotent.MustFromContext(ctx).Crashes(); got != i {
					t.Errorf("attempt %d knows of %d crashes", i+1, got)
				}
				w.mini.Del("onceq:{k}:lock")
				<-ctx.Done()
				return ctx.Err()
			})
			if !errors.Is(err, idempotent.ErrLeaseLost) {
				t.Fatalf("attempt %d: %v", i+1, err)
			}
		}
		err := direct(t.Context(), w.guard, "k", func(context.Context, *asynq.Task) error {
			t.Error("a poison pill ran a fourth time")
			return nil
		})
		if !errors.Is(err, idempotent.ErrPoisoned) || !errors.Is(err, asynq.SkipRetry) {
			t.Fatalf("err = %v, want ErrPoisoned and SkipRetry", err)
		}
		if len(failures) != 1 || failures[0].Key != "k" || !errors.Is(failures[0].Err, idempotent.ErrPoisoned) {
			t.Fatalf("OnFailed got %+v, want one poisoned k", failures)
		}
		if r := w.lookup("k"); r.State != idempotent.StateFailed || r.Reason != "crashed 3 times" {
			t.Fatalf("%v %q, want failed, crashed 3 times", r.State, r.Reason)
		}
		err = direct(t.Context(), w.guard, "k", nop)
		if !errors.Is(err, idempotent.ErrAlreadyFailed) || !errors.Is(err, asynq.SkipRetry) {
			t.Fatalf("the next delivery: %v, want ErrAlreadyFailed and SkipRetry", err)
		}
	})
}

// What must wait for the next attempt is told how long that may take: the longest
// Retry-After that is honoured, an hour, and its jitter.
func TestAttemptsKnowHowLongARunMayRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_ = direct(t.Context(), w.guard, "k", func(ctx context.Context, _ *asynq.Task) error {
			l, _ := lease.FromContext(ctx)
			if want := 66*time.Minute + 2*time.Second; l.Rest != want {
				t.Errorf("Rest = %v, want %v", l.Rest, want)
			}
			return nil
		})
	})
}

func TestEveryKeyHasATTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		check := func(when string) {
			for _, k := range w.mini.Keys() {
				if w.mini.TTL(k) <= 0 {
					t.Errorf("%s: key %s has no TTL", when, k)
				}
			}
		}
		_ = direct(t.Context(), w.guard, "k", func(context.Context, *asynq.Task) error { check("in an attempt"); return nil })
		check("after it")
		time.Sleep(8 * 24 * time.Hour)
		if keys := w.mini.Keys(); len(keys) != 0 {
			t.Errorf("left after the retention: %v", keys)
		}
	})
}
