package idempotent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/idempotent"
)

// L5, L11: a delivery that finds the run held is neither dropped nor archived,
// whatever is left of its retries.
func TestContentionLosesNothing(t *testing.T) {
	for _, maxRetry := range []int{0, 1, 25} {
		t.Run(fmt.Sprint("max retry ", maxRetry), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				h := func(ctx context.Context, _ *asynq.Task) error {
					return idempotent.MustFromContext(ctx).SetResult([]byte("by asynq"))
				}
				w.serve(w.guard, h)
				// Another process holds the run for four minutes, then fails.
				err := direct(t.Context(), w.newGuard(), "k", func(ctx context.Context, _ *asynq.Task) error {
					tk := asynq.NewTaskWithHeaders(taskType, []byte("{}"), map[string]string{"onceq-key": "k"})
					if _, err := w.client.Enqueue(tk, asynq.TaskID("own"), asynq.MaxRetry(maxRetry), asynq.Timeout(time.Hour)); err != nil {
						t.Fatal(err)
					}
					time.Sleep(4 * time.Minute)
					return errors.New("fails in the end")
				})
				if err == nil {
					t.Fatal("the holder succeeded")
				}
				time.Sleep(40 * time.Second)
				r := w.lookup("k")
				if r.State != idempotent.StateSucceeded || string(r.Result) != "by asynq" {
					t.Fatalf("%v %q, want the delivery to have run after the holder", r.State, r.Result)
				}
				q, err := w.insp.GetQueueInfo("default")
				if err != nil {
					t.Fatal(err)
				}
				if q.Archived+q.Retry+q.Scheduled+q.Pending+q.Active != 0 {
					t.Errorf("left in the queue: %+v", q)
				}
				if q.Failed != 0 {
					t.Errorf("%d failures counted for waiting, want 0", q.Failed)
				}
			})
		})
	}
}

// The number of retries is what the errors used, not what waiting took.
func TestTransientErrorsUseTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failure idempotent.Failure
		w := newWorld(t, idempotent.WithOnFailed(func(_ context.Context, f idempotent.Failure) { failure = f }))
		var n counter
		var finals []bool
		boom := errors.New("connection reset")
		w.serve(w.guard, func(ctx context.Context, _ *asynq.Task) error {
			n.add()
			finals = append(finals, idempotent.MustFromContext(ctx).Final(boom))
			return boom
		})
		if err := w.enqueue("k", "{}", asynq.MaxRetry(3)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		if n.get() != 4 || fmt.Sprint(finals) != "[false false false true]" {
			t.Fatalf("ran %d times, final %v; want 4, only the last final", n.get(), finals)
		}
		r := w.lookup("k")
		if r.State != idempotent.StateFailed || r.Reason != "connection reset" || r.Attempt != 4 {
			t.Fatalf("%+v, want failed for its error at attempt 4", r)
		}
		if !errors.Is(failure.Err, boom) || failure.Key != "k" || failure.Attempt != 4 {
			t.Fatalf("OnFailed got %+v", failure)
		}
	})
}

func TestPermanentErrorsAreNotRetried(t *testing.T) {
	boom := errors.New("no such model")
	for name, err := range map[string]error{
		"marked":    idempotent.Permanent(boom),
		"SkipRetry": fmt.Errorf("%w: %w", boom, asynq.SkipRetry),
		"method":    permanentErr{boom},
		"status":    &statusErr{StatusCode: 401, error: boom},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				var n counter
				w.serve(w.guard, func(context.Context, *asynq.Task) error { n.add(); return err })
				if err := w.enqueue("k", "{}"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(5 * time.Minute)
				if r := w.lookup("k"); n.get() != 1 || r.State != idempotent.StateFailed {
					t.Fatalf("ran %d times, %v; want once, failed", n.get(), r.State)
				}
				if got := direct(t.Context(), w.newGuard(), "other", func(context.Context, *asynq.Task) error { return err }); !errors.Is(got, boom) || !errors.Is(got, asynq.SkipRetry) {
					t.Errorf("middleware returned %v, want it to wrap the error and SkipRetry", got)
				}
			})
		})
	}
}

type permanentErr struct{ error }

func (e permanentErr) Unwrap() error { return e.error }

func (permanentErr) Permanent() bool { return true }

type statusErr struct {
	StatusCode int
	error
}

func (e *statusErr) Unwrap() error { return e.error }

// A 429 waits as long as it says and uses up no retry.
func TestRateLimitWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var at []time.Duration
		start := time.Now()
		w.serve(w.guard, func(context.Context, *asynq.Task) error {
			at = append(at, time.Since(start))
			if len(at) <= 4 {
				return idempotent.RateLimited(errors.New("429"), 30*time.Second)
			}
			return nil
		})
		if err := w.enqueue("k", "{}", asynq.MaxRetry(1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		if r := w.lookup("k"); r.State != idempotent.StateSucceeded || len(at) != 5 {
			t.Fatalf("%v after %v", r.State, at)
		}
		for i := 1; i < len(at); i++ {
			if d := at[i] - at[i-1]; d < 30*time.Second || d > 37*time.Second {
				t.Errorf("wait %d took %v, want 30s and a little", i, d)
			}
		}
	})
}

// L17, and an overrun: the outcome counts, not asynq's ack.
func TestSuccessAfterTheTimeoutRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var n counter
		w.serve(w.guard, func(ctx context.Context, _ *asynq.Task) error {
			n.add()
			time.Sleep(65 * time.Second) // five over its timeout, ignoring the context
			return idempotent.MustFromContext(ctx).SetResult([]byte("late"))
		})
		if err := w.enqueue("k", "{}", asynq.Timeout(time.Minute), asynq.Retention(time.Hour)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		if r := w.lookup("k"); n.get() != 1 || r.State != idempotent.StateSucceeded || string(r.Result) != "late" {
			t.Fatalf("ran %d times, %v %q; want once, succeeded", n.get(), r.State, r.Result)
		}
		// The skipped delivery hands the stored result to asynq.
		info, err := w.insp.GetTaskInfo("default", "k")
		if err != nil || info.State != asynq.TaskStateCompleted || string(info.Result) != "late" {
			t.Fatalf("task: %+v, %v; want completed with its result", info, err)
		}
	})
}

// A hung handler's task is retried by asynq; the run waits for the grace, not for
// ever, and its last timeout is a failure that is told.
func TestTimeoutOnTheLastRetryFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failed counter
		w := newWorld(t, idempotent.WithOnFailed(func(context.Context, idempotent.Failure) { failed.add() }))
		var n counter
		w.serve(w.guard, func(ctx context.Context, _ *asynq.Task) error {
			n.add()
			<-ctx.Done()
			return ctx.Err()
		})
		if err := w.enqueue("k", "{}", asynq.Timeout(10*time.Second), asynq.MaxRetry(1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		if r := w.lookup("k"); n.get() != 2 || r.State != idempotent.StateFailed || failed.get() != 1 {
			t.Fatalf("ran %d times, %v, %d failures told; want 2, failed, 1", n.get(), r.State, failed.get())
		}
	})
}

// L13: a shutdown puts the task back; the next worker runs it, and no retry is used.
func TestShutdownHandsTheRunOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var n counter
		started := make(chan struct{}, 1)
		release := make(chan struct{})
		srv := w.serve(w.guard, func(ctx context.Context, _ *asynq.Task) error {
			n.add()
			started <- struct{}{}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-release:
				return nil
			}
		})
		if err := w.enqueue("k", "{}", asynq.MaxRetry(1)); err != nil {
			t.Fatal(err)
		}
		<-started
		srv.Shutdown()
		time.Sleep(time.Second)
		close(release)
		w.serve(w.newGuard(), func(ctx context.Context, _ *asynq.Task) error {
			n.add()
			if got := idempotent.MustFromContext(ctx).Crashes(); got != 0 {
				t.Errorf("%d crashes after a shutdown, want 0", got)
			}
			if r, _ := asynq.GetRetryCount(ctx); r != 0 {
				t.Errorf("%d retries used by a shutdown, want 0", r)
			}
			return nil
		})
		time.Sleep(2 * time.Minute)
		if r := w.lookup("k"); n.get() != 2 || r.State != idempotent.StateSucceeded {
			t.Fatalf("%d attempts, %v; want 2, succeeded", n.get(), r.State)
		}
	})
}

// Redis away at begin: the delivery is tried again, nothing is decided.
func TestRedisAwayAtBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.mini.SetError("LOADING Redis is loading the dataset in memory")
		err := direct(t.Context(), w.guard, "k", func(context.Context, *asynq.Task) error {
			t.Error("ran without a lease")
			return nil
		})
		if !errors.Is(err, idempotent.ErrUnavailable) || errors.Is(err, idempotent.ErrContended) || errors.Is(err, asynq.SkipRetry) {
			t.Fatalf("err = %v, want ErrUnavailable and nothing else", err)
		}
		w.mini.SetError("")
		if err := direct(t.Context(), w.guard, "k", nop); err != nil {
			t.Fatal(err)
		}
	})
}

// away makes a client fail until it is back.
type away struct{ back atomic.Bool }

func (a *away) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a *away) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if a.back.Load() {
			return next(ctx, cmd)
		}
		cmd.SetErr(io.EOF)
		return io.EOF
	}
}

func (a *away) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if a.back.Load() {
			return next(ctx, cmds)
		}
		for _, c := range cmds {
			c.SetErr(io.EOF)
		}
		return io.EOF
	}
}

// The run's keys are out of reach and asynq's are not, as when one node of a cluster
// is down. That uses up no retry, however long it takes.
func TestOnlyTheRunsKeysAreAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		opt := *w.rdb.Options()
		opt.MaxRetries = -1
		rdb := redis.NewClient(&opt)
		t.Cleanup(func() { _ = rdb.Close() })
		hook := new(away)
		rdb.AddHook(hook)
		g, err := idempotent.New(rdb, idempotent.WithLogger(quiet))
		if err != nil {
			t.Fatal(err)
		}
		w.serve(g, nop)
		if err := w.enqueue("k", "x", asynq.MaxRetry(1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		hook.back.Store(true)
		time.Sleep(10 * time.Second)
		if r := w.lookup("k"); r.State != idempotent.StateSucceeded || r.Attempt != 1 {
			t.Fatalf("%+v, want succeeded in the first attempt; tasks %v", r, w.tasks())
		}
	})
}

// Redis away at finish: the outcome is written as soon as it is back, while the
// lease can be proven.
func TestRedisAwayAtFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := 0
		h := func(context.Context, *asynq.Task) error {
			n++
			w.mini.SetError("LOADING Redis is loading the dataset in memory")
			time.AfterFunc(9*time.Second, func() { w.mini.SetError("") })
			return nil
		}
		for range 2 {
			if err := direct(t.Context(), w.guard, "k", h); err != nil {
				t.Fatal(err)
			}
		}
		if n != 1 {
			t.Fatalf("ran %d times, want 1", n)
		}
	})
}

func TestHostFunctionsAreKept(t *testing.T) {
	g := newWorldGuard(t)
	boom := errors.New("host's")
	cfg := g.ServerConfig(asynq.Config{
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 42 * time.Hour },
		IsFailure:      func(err error) bool { return err != boom },
	})
	if got := cfg.RetryDelayFunc(1, boom, nil); got != 42*time.Hour {
		t.Errorf("delay %v, want the host's 42h", got)
	}
	if cfg.IsFailure(boom) {
		t.Error("IsFailure(host's error) = true, want the host's false")
	}
	if !cfg.IsFailure(errors.New("other")) {
		t.Error("IsFailure(other) = false, want the host's true")
	}
	for _, err := range []error{&idempotent.ContendedError{RetryAfter: time.Second}, asynq.ErrLeaseExpired, idempotent.ErrLeaseLost, idempotent.RateLimited(boom, 0)} {
		if cfg.IsFailure(err) {
			t.Errorf("IsFailure(%v) = true, want false: it must use up no retry", err)
		}
	}
	if d := cfg.RetryDelayFunc(0, &idempotent.ContendedError{RetryAfter: 20 * time.Second}, nil); d < 21*time.Second || d > 23*time.Second {
		t.Errorf("contended delay %v, want 21s to 23s", d)
	}
	if d := cfg.RetryDelayFunc(9, asynq.ErrLeaseExpired, nil); d > time.Second {
		t.Errorf("orphaned delay %v, want at most 1s", d)
	}
	if cfg.DelayedTaskCheckInterval != time.Second {
		t.Errorf("DelayedTaskCheckInterval %v, want 1s", cfg.DelayedTaskCheckInterval)
	}
}

// The chain is rebuilt for each task: the guard must not be.
func TestMiddlewareOnlyCaptures(t *testing.T) {
	g := newWorldGuard(t)
	if n := testing.AllocsPerRun(100, func() { _ = g.Middleware(asynq.HandlerFunc(nop)) }); n > 4 {
		t.Errorf("Middleware allocates %v times per task", n)
	}
}

func TestBackoffStaysWithinItsBounds(t *testing.T) {
	g := newWorldGuard(t)
	cfg := g.ServerConfig(asynq.Config{})
	boom := errors.New("x")
	for n, ceiling := range map[int]time.Duration{0: time.Second, 3: 8 * time.Second, 7: 2 * time.Minute, 1 << 30: 2 * time.Minute} {
		for range 100 {
			if d := cfg.RetryDelayFunc(n, boom, nil); d < 500*time.Millisecond || d > ceiling {
				t.Fatalf("retry %d: %v, want 500ms to %v", n, d, ceiling)
			}
		}
	}
}

// A base that no shift may overflow.
func TestBackoffOfALongBase(t *testing.T) {
	cfg := newWorldGuard(t, idempotent.WithBackoff(time.Minute, time.Hour)).ServerConfig(asynq.Config{})
	for _, n := range []int{28, 29, 62, 63, 64} {
		longest := time.Duration(0)
		for range 100 {
			longest = max(longest, cfg.RetryDelayFunc(n, errors.New("x"), nil))
		}
		if longest < 30*time.Minute || longest > time.Hour {
			t.Errorf("retry %d: at most %v of 100, want up to an hour", n, longest)
		}
	}
}
