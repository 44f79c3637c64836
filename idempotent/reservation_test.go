package idempotent_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/idempotent"
)

func (w *world) rerun(payload string, how idempotent.RerunOptions) (*asynq.TaskInfo, error) {
	w.t.Helper()
	return w.producer.Rerun(w.t.Context(), "k", task(payload), how, asynq.Timeout(time.Hour))
}

func (w *world) in(state idempotent.State, generation int) {
	w.t.Helper()
	if r := w.lookup("k"); r.State != state || r.Generation != generation {
		w.t.Errorf("run %+v, want %v in generation %d", r, state, generation)
	}
}

// waits makes run k wait a minute for its retry; later attempts succeed and are
// counted by the generation they are in.
func (w *world) waits() (succeeded *[]int) {
	w.t.Helper()
	if err := w.enqueue("k", "x"); err != nil {
		w.t.Fatal(err)
	}
	succeeded, first := new([]int), true
	w.serve(w.guard, func(ctx context.Context, _ *asynq.Task) error {
		if first {
			first = false
			return idempotent.RateLimited(errors.New("later"), time.Minute)
		}
		*succeeded = append(*succeeded, idempotent.MustFromContext(ctx).Generation())
		return nil
	})
	time.Sleep(15 * time.Second) // the window is over
	w.in(idempotent.StateRetrying, 1)
	return succeeded
}

// A reply is lost, the client repeats the command, and asynq finds that the task is
// there: it is ours.
func TestConflictWithOurOwnTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.withFaults()
		f.lose(func(c redis.Cmder) bool { return enqueues(c, "k") }, again)
		info, err := w.producer.Enqueue(t.Context(), "k", task("x"), asynq.Timeout(time.Hour))
		if err != nil || info.ID != "k" || info.State != asynq.TaskStatePending {
			t.Fatalf("Enqueue: %+v, %v; want the pending task k", info, err)
		}
		if err := w.enqueue("k", "y", asynq.Queue("other")); !errors.Is(err, idempotent.ErrPayloadMismatch) {
			t.Errorf("other payload in another queue: %v, want ErrPayloadMismatch", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.withFaults()
		succeeded := w.waits()
		f.lose(func(c redis.Cmder) bool { return enqueues(c, "k~g2") }, again)
		info, err := w.rerun("x", idempotent.RerunOptions{})
		if err != nil || info.ID != "k~g2" {
			t.Fatalf("Rerun: %+v, %v; want the task k~g2", info, err)
		}
		time.Sleep(2 * time.Minute)
		w.in(idempotent.StateSucceeded, 2)
		if !slices.Equal(*succeeded, []int{2}) {
			t.Errorf("succeeded in generations %v, want 2 alone", *succeeded)
		}
	})
}

// The reply to a Rerun's enqueue is lost for good. Its task may be there, so the old
// generation does not come back; asking again ends with one execution.
func TestRerunWithoutAnAnswer(t *testing.T) {
	for name, sent := range map[string]bool{"sent": true, "not sent": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				f := w.withFaults()
				succeeded := w.waits()
				f.on(func(cmd redis.Cmder, send func() error) error {
					if !enqueues(cmd, "k~g2") {
						return send()
					}
					if sent {
						if err := send(); err != nil {
							return err // it does not know the script yet
						}
					}
					return io.EOF
				})
				if _, err := w.rerun("x", idempotent.RerunOptions{}); !errors.Is(err, idempotent.ErrUnavailable) {
					t.Fatalf("Rerun: %v, want ErrUnavailable", err)
				}
				if r := w.lookup("k"); r.Generation != 2 {
					t.Fatalf("generation %d, want 2: a task of it may be there", r.Generation)
				}
				f.off()
				_, err := w.rerun("x", idempotent.RerunOptions{})
				if err != nil && !errors.Is(err, idempotent.ErrAlreadySucceeded) && !errors.Is(err, idempotent.ErrDuplicate) {
					t.Errorf("asked again: %v", err)
				}
				time.Sleep(2 * time.Minute)
				if len(*succeeded) != 1 || (*succeeded)[0] < 2 {
					t.Errorf("succeeded in generations %v, want once in a new one", *succeeded)
				}
				if r := w.lookup("k"); r.State != idempotent.StateSucceeded {
					t.Errorf("%+v, want succeeded", r)
				}
			})
		})
	}
}

// As long as it is not known whether an enqueue took effect, its key is not free.
func TestEnqueueWithoutAnAnswer(t *testing.T) {
	for name, sent := range map[string]bool{"sent": true, "not sent": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				f := w.withFaults()
				f.on(func(cmd redis.Cmder, send func() error) error {
					if !enqueues(cmd, "k") {
						return send()
					}
					if sent {
						if err := send(); err != nil {
							return err
						}
					}
					return io.EOF
				})
				if err := w.enqueue("k", "x"); !errors.Is(err, idempotent.ErrUnavailable) {
					t.Fatalf("err = %v, want ErrUnavailable", err)
				}
				f.off()
				if err := w.enqueue("k", "y", asynq.Queue("other")); !errors.Is(err, idempotent.ErrPayloadMismatch) {
					t.Errorf("other payload in another queue: %v, want ErrPayloadMismatch", err)
				}
				switch err := w.enqueue("k", "x"); {
				case sent:
					wantDup(t, err, idempotent.StateQueued)
				case err != nil:
					t.Errorf("asked again at once: %v, want queued", err)
				}
				var n counter
				w.serve(w.guard, func(context.Context, *asynq.Task) error { n.add(); return nil })
				time.Sleep(5 * time.Second)
				w.in(idempotent.StateSucceeded, 1)
				if n.get() != 1 {
					t.Errorf("executed %d times, want once", n.get())
				}
			})
		})
	}
}

// asynq has a task with the ID and nobody can say whose it is.
func TestConflictThatCannotBeLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.withFaults()
		f.lose(func(c redis.Cmder) bool { return enqueues(c, "k") }, func(send func() error) error {
			f.on(func(cmd redis.Cmder, send func() error) error {
				if cmd.Name() == "sismember" { // the inspector's
					return io.EOF
				}
				return send()
			})
			return send()
		})
		if err := w.enqueue("k", "x"); !errors.Is(err, idempotent.ErrUnavailable) || errors.Is(err, idempotent.ErrDuplicate) {
			t.Errorf("err = %v, want ErrUnavailable alone", err)
		}
		f.off()
		w.in(idempotent.StateQueued, 1)
	})
}

// What was in the way may be gone when it is looked at.
func TestConflictThatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		if _, err := w.client.Enqueue(task("x"), asynq.TaskID("k")); err != nil {
			t.Fatal(err)
		}
		f := w.withFaults()
		f.on(func(cmd redis.Cmder, send func() error) error {
			if cmd.Name() == "sismember" {
				f.off()
				if err := w.insp.DeleteTask("default", "k"); err != nil {
					t.Error(err)
				}
			}
			return send()
		})
		if err := w.enqueue("k", "x"); err != nil {
			t.Errorf("err = %v, want queued", err)
		}
	})
}

// The caller of Rerun goes away while the new generation is being written.
func TestRerunOutlivesItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.withFaults()
		succeeded := w.waits()
		ctx, cancel := context.WithCancel(t.Context())
		_, rerun := script(t, "rerun.lua")
		f.on(func(cmd redis.Cmder, send func() error) error {
			if rerun(cmd) {
				cancel()
				time.Sleep(time.Millisecond)
			}
			return send()
		})
		info, err := w.producer.Rerun(ctx, "k", task("x"), idempotent.RerunOptions{}, asynq.Timeout(time.Hour))
		if err != nil || info.ID != "k~g2" {
			t.Fatalf("Rerun: %+v, %v; want the task k~g2", info, err)
		}
		if _, err := w.producer.Rerun(ctx, "l", task("x"), idempotent.RerunOptions{}, asynq.Timeout(time.Hour)); !errors.Is(err, idempotent.ErrUnavailable) || !errors.Is(err, context.Canceled) {
			t.Errorf("Rerun by a caller who is gone: %v, want ErrUnavailable and context.Canceled", err)
		}
		if w.mini.Exists("onceq:{l}:run") {
			t.Error("a caller who is gone began a run")
		}
		time.Sleep(2 * time.Minute)
		if !slices.Equal(*succeeded, []int{2}) {
			t.Errorf("succeeded in generations %v, want 2 alone", *succeeded)
		}
	})
}

// A reservation that is not answered is taken back, whenever its script runs: nothing
// is queued, so nobody is told that something is.
func TestReservationWithoutAnAnswer(t *testing.T) {
	for name, late := range map[string]bool{"reply lost": false, "arrives late": true} {
		for _, file := range []string{"reserve.lua", "rerun.lua"} {
			t.Run(name+" "+file, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					ask := func() error { return w.enqueue("k", "x") }
					before := idempotent.Run{Key: "k"}
					if file == "rerun.lua" {
						ask = func() error { _, err := w.rerun("x", idempotent.RerunOptions{FromScratch: true}); return err }
						if err := direct(t.Context(), w.guard, "k", func(context.Context, *asynq.Task) error {
							return idempotent.Permanent(errors.New("no"))
						}); err == nil {
							t.Fatal("it did not fail")
						}
						before = w.lookup("k")
					}
					f := w.withFaults()
					var args []any
					src, is := script(t, file)
					f.on(func(cmd redis.Cmder, send func() error) error {
						if !is(cmd) {
							return send()
						}
						args = cmd.Args()
						if late {
							return io.EOF
						}
						if err := send(); err != nil {
							return err
						}
						return io.EOF
					})
					if err := ask(); !errors.Is(err, idempotent.ErrUnavailable) {
						t.Fatalf("err = %v, want ErrUnavailable", err)
					}
					f.off()
					if late {
						if err := w.rdb.Do(t.Context(), append([]any{"eval", src}, args[2:]...)...).Err(); err != nil {
							t.Fatal(err)
						}
					}
					if r := w.lookup("k"); r.State != before.State || r.Generation != before.Generation || r.Reason != before.Reason || r.Attempt != before.Attempt {
						t.Errorf("run %+v, want %+v", r, before)
					}
					if err := ask(); err != nil {
						t.Errorf("asked again at once: %v, want queued", err)
					}
				})
			})
		}
	}
}

// A queued run is queued in whatever queue it was put; asynq's task IDs are not.
func TestEnqueueInAnotherQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.withFaults()
		if err := w.enqueue("k", "x", asynq.Queue("a")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // the window is over
		wantDup(t, w.enqueue("k", "x", asynq.Queue("b")), idempotent.StateQueued)
		if err := w.enqueue("k", "y", asynq.Queue("b")); !errors.Is(err, idempotent.ErrPayloadMismatch) {
			t.Errorf("other payload: %v, want ErrPayloadMismatch", err)
		}
		wantDup(t, w.enqueue("k", "x", asynq.Queue("a")), idempotent.StateQueued)
		f.on(func(cmd redis.Cmder, send func() error) error {
			if cmd.Name() == "sismember" {
				return io.EOF
			}
			return send()
		})
		if err := w.enqueue("k", "x", asynq.Queue("b")); !errors.Is(err, idempotent.ErrUnavailable) {
			t.Errorf("the other queue cannot be looked at: %v, want ErrUnavailable", err)
		}
		f.off()
		if err := w.insp.DeleteTask("a", "k"); err != nil {
			t.Fatal(err)
		}
		if err := w.enqueue("k", "x", asynq.Queue("b")); err != nil {
			t.Errorf("its task is lost: %v, want queued in the other queue", err)
		}
		time.Sleep(time.Minute)
		wantDup(t, w.enqueue("k", "x", asynq.Queue("a")), idempotent.StateQueued)
	})
}

// A delivery of another payload would run it under the key.
func TestRedeliverOtherPayload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		refused := func(state idempotent.State) {
			t.Helper()
			_, err := w.producer.Redeliver(t.Context(), "k", task("y"), asynq.Timeout(time.Hour))
			m, ok := errors.AsType[*idempotent.PayloadMismatchError](err)
			if !ok || m.Key != "k" || m.State != state {
				t.Errorf("%v, want a PayloadMismatchError of k that is %v", err, state)
			}
		}
		if err := w.enqueue("k", "x"); err != nil {
			t.Fatal(err)
		}
		refused(idempotent.StateQueued)
		if _, err := w.producer.Redeliver(t.Context(), "k", task("x"), asynq.Timeout(time.Hour)); err != nil {
			t.Errorf("its own payload: %v, want queued", err)
		}
		var n counter
		w.serve(w.guard, func(context.Context, *asynq.Task) error { n.add(); return nil })
		time.Sleep(5 * time.Second)
		refused(idempotent.StateSucceeded)
		if n.get() != 1 {
			t.Errorf("executed %d times, want once", n.get())
		}
	})
}

// Another call has put the generation into the queue: a Rerun that meets its task
// leaves the record in that generation. A client that says no of its own accord puts
// nothing there.
func TestRerunInTheWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		succeeded := w.waits()
		p, err := idempotent.NewProducer(w.guard, &failing{err: asynq.ErrDuplicateTask})
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.Rerun(t.Context(), "k", task("x"), idempotent.RerunOptions{}, asynq.Timeout(time.Hour))
		wantDup(t, err, idempotent.StateQueued)
		w.in(idempotent.StateRetrying, 1)

		other := asynq.NewTaskWithHeaders(taskType, []byte("x"), map[string]string{"onceq-key": "k", "onceq-generation": "2"})
		if _, err := w.client.Enqueue(other, asynq.TaskID("k~g2"), asynq.ProcessIn(2*time.Minute)); err != nil {
			t.Fatal(err)
		}
		_, err = w.rerun("x", idempotent.RerunOptions{})
		wantDup(t, err, idempotent.StateQueued)
		w.in(idempotent.StateQueued, 2)
		time.Sleep(4 * time.Minute)
		if !slices.Equal(*succeeded, []int{2}) {
			t.Errorf("succeeded in generations %v, want 2 alone", *succeeded)
		}
	})
}

// A caller who goes away before the task was sent leaves nothing behind.
func TestEnqueueEndsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.withFaults()
		_, reserve := script(t, "reserve.lua")
		ctx, cancel := context.WithCancel(t.Context())
		f.on(func(cmd redis.Cmder, send func() error) error {
			err := send()
			if reserve(cmd) && err == nil {
				cancel()
				synctest.Wait()
			}
			return err
		})
		_, err := w.producer.Enqueue(ctx, "k", task("x"), asynq.Timeout(time.Hour))
		if !errors.Is(err, idempotent.ErrUnavailable) || !errors.Is(err, context.Canceled) {
			t.Errorf("err = %v, want ErrUnavailable and context.Canceled", err)
		}
		if w.mini.Exists("onceq:{k}:run") || w.mini.Exists("onceq:{k}:enq") {
			t.Errorf("left behind: %v", w.mini.Keys())
		}
		f.off()
		if err := w.enqueue("k", "y"); err != nil {
			t.Errorf("another payload: %v, want queued", err)
		}
	})
}
