package idempotent_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/nexuscore/onceq/idempotent"
)

// halfAnError promotes the fields of a response that is not there.
type halfAnError struct {
	*http.Response
	msg string
}

func (e *halfAnError) Error() string { return e.msg }

// mute is an error that cannot even say what it is.
type mute struct{ why error }

func (m *mute) Error() string { return m.why.Error() }

// An error that cannot be looked at is an error all the same, and not a crash.
func TestErrorsThatPanic(t *testing.T) {
	for name, broken := range map[string]error{
		"fields of a nil pointer": &halfAnError{msg: "boom"},
		"no text":                 &mute{},
		"a nil pointer":           (*mute)(nil),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				var n counter
				w.serve(w.guard, func(ctx context.Context, _ *asynq.Task) error {
					if got := idempotent.MustFromContext(ctx).Crashes(); got != 0 {
						t.Errorf("attempt %d counts %d crashes", n.get()+1, got)
					}
					if n.add() == 1 {
						return broken
					}
					return nil
				})
				if err := w.enqueue("k", "x"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Second)
				if r := w.lookup("k"); r.State != idempotent.StateSucceeded || n.get() != 2 {
					t.Errorf("%+v after %d attempts, want succeeded after 2", r, n.get())
				}
				if left := w.rdb.ZRange(t.Context(), "onceq:{leases}:waiting", 0, -1).Val(); len(left) != 0 {
					t.Errorf("the index still has %v", left)
				}
			})
		})
	}
}

func TestClassifierThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, idempotent.WithClassifier(func(error) (idempotent.Class, time.Duration) { panic("host") }))
		var n counter
		w.serve(w.guard, func(context.Context, *asynq.Task) error {
			if n.add() == 1 {
				return errors.New("boom")
			}
			return nil
		})
		if err := w.enqueue("k", "x"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if r := w.lookup("k"); r.State != idempotent.StateSucceeded || r.Crashes != 0 || n.get() != 2 {
			t.Errorf("%+v after %d attempts, want succeeded after 2 without a crash", r, n.get())
		}
	})
}

// asynq drops a task whose error matches SkipRetry or RevokeTask. While the guard wants
// the run delivered again, nothing inside its answer may do so.
func TestLostLeaseWithAnErrorThatAsynqWouldDrop(t *testing.T) {
	for _, sentinel := range []error{asynq.SkipRetry, asynq.RevokeTask} {
		for _, budget := range []int{5, 0} {
			t.Run(fmt.Sprint(sentinel, " budget ", budget), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					var n counter
					w.serve(w.guard, func(ctx context.Context, _ *asynq.Task) error {
						if n.add() == 1 {
							w.mini.Del("onceq:{k}:lock")
							<-ctx.Done()
							return fmt.Errorf("gave up: %w", sentinel)
						}
						return nil
					})
					if _, err := w.client.Enqueue(task("x"), asynq.TaskID("k"), asynq.MaxRetry(budget), asynq.Timeout(time.Hour)); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Minute)
					if r := w.lookup("k"); r.State != idempotent.StateSucceeded || n.get() != 2 {
						t.Errorf("%+v after %d attempts, want succeeded after 2; tasks %v", r, n.get(), w.tasks())
					}
				})
			})
		}
	}
}

// What can be asked of the answer besides that, can be.
func TestAnswerToAsynqKeepsWhatItWraps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		boom := errors.New("boom")
		err := direct(t.Context(), w.guard, "k", func(context.Context, *asynq.Task) error {
			return fmt.Errorf("outer: %w", &mute{why: boom})
		})
		m, ok := errors.AsType[*mute](err)
		if !ok || m.why != boom {
			t.Errorf("errors.AsType of %v found %v, %v", err, m, ok)
		}
	})
}

// The lease that an error says is lost is that of another run.
func TestLostLeaseOfAnotherRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		err := direct(t.Context(), w.guard, "k", func(context.Context, *asynq.Task) error {
			return fmt.Errorf("run l: %w", idempotent.ErrLeaseLost)
		})
		if !errors.Is(err, idempotent.ErrLeaseLost) {
			t.Errorf("%v, want ErrLeaseLost", err)
		}
		if r := w.lookup("k"); r.State != idempotent.StateRetrying || r.LeaseLeft != 0 {
			t.Errorf("%+v, want the lease given back", r)
		}
	})
}

// The handler has returned: neither the grace nor a shutdown takes its success away
// while Redis does not take it.
func TestSuccessThatWaitsForRedisBeyondTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, idempotent.WithGrace(time.Second))
		f := new(refusing)
		w.rdb.AddHook(f)
		ctx, cancel := context.WithCancel(t.Context())
		err := direct(ctx, w.guard, "k", func(context.Context, *asynq.Task) error {
			cancel()
			f.set("succeeded")
			time.AfterFunc(5*time.Second, func() { f.set("") })
			return nil
		})
		if r := w.lookup("k"); err != nil || r.State != idempotent.StateSucceeded || f.count() < 2 {
			t.Errorf("%v, %+v after %d failed calls; want succeeded", err, r, f.count())
		}
	})
}

// A begin that was given up and arrives late takes the lease for nobody.
func TestBeginThatComesLate(t *testing.T) {
	for _, effect := range []bool{true, false} { // the first sending had taken effect, or is the late one
		t.Run(fmt.Sprint(effect), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				r := &recording{match: "onceq:{k}:enq", effect: effect}
				w.rdb.AddHook(r)
				err := direct(t.Context(), w.guard, "k", func(context.Context, *asynq.Task) error {
					t.Error("it ran without an answer")
					return nil
				})
				if !errors.Is(err, idempotent.ErrUnavailable) || len(r.args) == 0 {
					t.Fatalf("%v, want ErrUnavailable of a begin: %v", err, r.args)
				}
				if err := w.rdb.Do(t.Context(), r.args...).Err(); err != nil {
					t.Fatal(err)
				}
				if run := w.lookup("k"); run.LeaseLeft != 0 || run.State == idempotent.StateRunning {
					t.Errorf("%+v, want no lease", run)
				}
				if err := direct(t.Context(), w.guard, "k", func(ctx context.Context, _ *asynq.Task) error {
					if n := idempotent.MustFromContext(ctx).Crashes(); n != 0 {
						t.Errorf("%d crashes", n)
					}
					return nil
				}); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A handler that is wrapped twice is one attempt.
func TestMiddlewareTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var n counter
		err := direct(t.Context(), w.guard, "k", w.guard.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
			n.add()
			return nil
		})).ProcessTask)
		if r := w.lookup("k"); err != nil || n.get() != 1 || r.State != idempotent.StateSucceeded || r.Attempt != 1 {
			t.Errorf("%v, %+v, %d executions; want one attempt that succeeded", err, r, n.get())
		}
	})
}

// A retry that could not be noted is noted when Redis is well again, and is no crash.
func TestReleaseIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := new(refusing)
		w.rdb.AddHook(f)
		_ = direct(t.Context(), w.guard, "k", func(context.Context, *asynq.Task) error {
			f.set("onceq:{leases}:waiting")
			time.AfterFunc(300*time.Millisecond, func() { f.set("") })
			return errors.New("boom")
		})
		if r := w.lookup("k"); r.State != idempotent.StateRetrying || f.count() < 2 {
			t.Errorf("%+v after %d failed calls, want it given back", r, f.count())
		}
	})
}
