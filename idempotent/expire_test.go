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

// A run whose deadline passes while it waits in the queue is ended by asynq before
// any middleware is asked. It has failed all the same, and somebody hears of it once.
func TestDeadlinePassesInTheQueue(t *testing.T) {
	for _, retries := range []int{1, 3} {
		t.Run(fmt.Sprint(retries, " retries"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				failed := make(chan idempotent.Failure, 10)
				w := newWorld(t, failures(failed))
				if err := w.enqueue("k", "x", asynq.Deadline(time.Now().Add(time.Minute)), asynq.MaxRetry(retries)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Minute) // nobody works
				var n counter
				w.serve(w.guard, func(context.Context, *asynq.Task) error { n.add(); return nil })
				time.Sleep(time.Second)
				f := <-failed
				if f.Key != "k" || f.Generation != 1 || f.Token != 0 || f.Attempt != 0 || f.Task.Type() != taskType ||
					!errors.Is(f.Err, idempotent.ErrOrphaned) {
					t.Errorf("failure %+v, want that of run k, which never began", f)
				}
				if r := w.lookup("k"); r.State != idempotent.StateFailed || r.Reason != "its task ended in the queue, before it began: context deadline exceeded" {
					t.Errorf("%+v, want failed with the reason", r)
				}
				time.Sleep(15 * time.Minute) // asynq goes on until its retries are spent
				if n.get() != 0 || len(failed) != 0 {
					t.Errorf("the handler ran %d times, the hook was called %d times more", n.get(), len(failed))
				}
				if got := w.tasks(); !slices.Equal(got, []string{"k archived"}) {
					t.Errorf("tasks %v, want k archived", got)
				}
				dup, ok := errors.AsType[*idempotent.DuplicateError](w.enqueue("k", "x"))
				if !ok || dup.State != idempotent.StateFailed {
					t.Errorf("enqueued again: %v, want ErrDuplicate in state failed", dup)
				}
				if _, err := w.producer.Rerun(t.Context(), "k", task("x"), idempotent.RerunOptions{}, asynq.Timeout(time.Hour)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(5 * time.Second)
				if r := w.lookup("k"); r.State != idempotent.StateSucceeded || n.get() != 1 {
					t.Errorf("%v after %d executions of the rerun, want succeeded after 1", r.State, n.get())
				}
			})
		})
	}
}

// The record of a run may be gone while its task is not: its header says that it is ours.
func TestDeadlinePassesInTheQueueWithoutARecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := make(chan idempotent.Failure, 10)
		w := newWorld(t, failures(failed))
		if err := w.enqueue("k", "x", asynq.Deadline(time.Now().Add(time.Minute)), asynq.MaxRetry(1)); err != nil {
			t.Fatal(err)
		}
		if _, err := w.client.Enqueue(asynq.NewTask("mail", nil), asynq.TaskID("foreign"), asynq.Deadline(time.Now().Add(time.Minute)), asynq.MaxRetry(1)); err != nil {
			t.Fatal(err)
		}
		if err := w.rdb.Del(t.Context(), "onceq:{k}:run", "onceq:{k}:enq").Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		w.serve(w.guard, nop)
		time.Sleep(10 * time.Minute)
		if len(failed) != 1 || (<-failed).Key != "k" || w.lookup("k").State != idempotent.StateFailed {
			t.Errorf("%+v, %d failures more, want one and the run failed", w.lookup("k"), len(failed))
		}
		// A task of the host's own that no guard has seen is no run.
		if r := w.lookup("foreign"); r.State != idempotent.StateUnknown {
			t.Errorf("a foreign task became a run: %+v", r)
		}
	})
}

// The task of an attempt that overruns its last try is archived at once; the run is the
// attempt's to end, for as long as the grace lasts.
func TestTimeoutOfTheLastTryIsTheAttemptsToAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := make(chan idempotent.Failure, 10)
		w := newWorld(t, failures(failed))
		var n counter
		w.serve(w.guard, func(ctx context.Context, _ *asynq.Task) error {
			if n.add() == 1 {
				return errors.New("uses the only retry")
			}
			<-ctx.Done()
			time.Sleep(time.Second) // asynq has archived the task by then
			return nil
		})
		if err := w.enqueue("k", "x", asynq.Timeout(10*time.Second), asynq.MaxRetry(1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Minute)
		if r := w.lookup("k"); r.State != idempotent.StateSucceeded || n.get() != 2 || len(failed) != 0 {
			t.Fatalf("%+v after %d attempts and %d failures, want succeeded after 2 and 0", r, n.get(), len(failed))
		}
	})
}

// The end of an older generation's delivery says nothing of the newer.
func TestDeadlineOfAnOlderGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := make(chan idempotent.Failure, 10)
		w := newWorld(t, failures(failed))
		if err := w.enqueue("k", "x", asynq.Deadline(time.Now().Add(time.Minute)), asynq.MaxRetry(1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		if _, err := w.producer.Rerun(t.Context(), "k", task("x"), idempotent.RerunOptions{}, asynq.Timeout(time.Hour), asynq.ProcessIn(20*time.Minute)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		w.serve(w.guard, nop)
		time.Sleep(10 * time.Minute)
		if r := w.lookup("k"); r.State != idempotent.StateQueued || r.Generation != 2 || len(failed) != 0 {
			t.Fatalf("%+v and %d failures, want generation 2 queued and none", r, len(failed))
		}
		time.Sleep(11 * time.Minute)
		if r := w.lookup("k"); r.State != idempotent.StateSucceeded || r.Generation != 2 {
			t.Fatalf("%+v, want generation 2 succeeded", r)
		}
	})
}

// A run that was given a second delivery fails only when neither can begin.
func TestDeadlineBesideAnotherDelivery(t *testing.T) {
	for _, c := range []struct {
		name  string
		other asynq.Option
		soon  idempotent.State // while the other one waits
		want  idempotent.State
		hooks int
	}{
		{"that can begin", asynq.Timeout(time.Hour), idempotent.StateQueued, idempotent.StateSucceeded, 0},
		{"that cannot either", asynq.Deadline(time.Date(2000, 1, 1, 0, 1, 0, 0, time.UTC)), idempotent.StateFailed, idempotent.StateFailed, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				failed := make(chan idempotent.Failure, 10)
				w := newWorld(t, failures(failed))
				if err := w.enqueue("k", "x", asynq.Deadline(time.Now().Add(time.Minute)), asynq.MaxRetry(1)); err != nil {
					t.Fatal(err)
				}
				if _, err := w.producer.Redeliver(t.Context(), "k", task("x"), c.other, asynq.MaxRetry(1), asynq.ProcessIn(15*time.Minute)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Minute)
				w.serve(w.guard, nop)
				time.Sleep(10 * time.Minute)
				if r := w.lookup("k"); r.State != c.soon || len(failed) != c.hooks {
					t.Fatalf("%v and %d failures while a delivery waits, want %v and %d", r.State, len(failed), c.soon, c.hooks)
				}
				time.Sleep(20 * time.Minute)
				if r := w.lookup("k"); r.State != c.want || len(failed) != c.hooks {
					t.Errorf("%v and %d failures, want %v and %d; tasks %v", r.State, len(failed), c.want, c.hooks, w.tasks())
				}
			})
		})
	}
}

// Whether the run has another delivery cannot be told: then it is not failed.
func TestDeadlineWhenTheOtherDeliveryCannotBeSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := make(chan idempotent.Failure, 10)
		w := newWorld(t, failures(failed))
		f := w.withFaults()
		if err := w.enqueue("k", "x", asynq.Deadline(time.Now().Add(time.Minute)), asynq.MaxRetry(1)); err != nil {
			t.Fatal(err)
		}
		if _, err := w.producer.Redeliver(t.Context(), "k", task("x"), asynq.Timeout(time.Hour), asynq.ProcessIn(30*time.Minute)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		f.on(func(cmd redis.Cmder, send func() error) error {
			if a := cmd.Args(); len(a) > 3 && strings.HasSuffix(fmt.Sprint(a[3]), "k~r0") {
				return errCut
			}
			return send()
		})
		w.serve(w.guard, nop)
		time.Sleep(15 * time.Minute)
		if r := w.lookup("k"); r.State != idempotent.StateQueued || len(failed) != 0 {
			t.Fatalf("%v and %d failures, want queued and none", r.State, len(failed))
		}
		f.off()
		time.Sleep(20 * time.Minute)
		if r := w.lookup("k"); r.State != idempotent.StateSucceeded {
			t.Errorf("%v, want succeeded by the other delivery", r.State)
		}
	})
}

// Redis lost what Rerun wrote, and the attempt of the generation before is at work.
func TestDeadlinePassesBesideALiveAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := make(chan idempotent.Failure, 10)
		w := newWorld(t, failures(failed))
		header := map[string]string{"onceq-key": "k", "onceq-generation": "2"}
		_, err := w.client.Enqueue(asynq.NewTaskWithHeaders(taskType, []byte("x"), header),
			asynq.Deadline(time.Now().Add(time.Minute)), asynq.MaxRetry(1))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		done := make(chan error, 1)
		go func() {
			done <- direct(t.Context(), w.guard, "k", func(context.Context, *asynq.Task) error {
				w.serve(w.guard, nop)
				time.Sleep(10 * time.Minute)
				return nil
			})
		}()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if r := w.lookup("k"); r.State != idempotent.StateSucceeded || len(failed) != 0 {
			t.Errorf("%+v and %d failures, want the attempt's success", r, len(failed))
		}
	})
}

// The host's own ErrorHandler goes on hearing of everything.
func TestHostsErrorHandlerIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		heard := make(chan error, 10)
		cfg := w.guard.ServerConfig(asynq.Config{
			LogLevel: asynq.FatalLevel, ShutdownTimeout: time.Second,
			ErrorHandler: asynq.ErrorHandlerFunc(func(_ context.Context, t *asynq.Task, err error) { heard <- err }),
		})
		srv := asynq.NewServerFromRedisClient(w.rdb, cfg)
		boom := errors.New("boom")
		if err := srv.Start(w.guard.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return boom }))); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(srv.Shutdown)
		if err := w.enqueue("k", "x", asynq.MaxRetry(1)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := <-heard; !errors.Is(err, boom) {
				t.Errorf("heard %v, want boom", err)
			}
		}
	})
}
