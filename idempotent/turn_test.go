package idempotent_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/idempotent"
)

// A crash leaves a run with two deliveries: the one it was given and the one that asynq
// recovers later. A wait that was chosen binds both, and each attempt is made once.
func TestAWaitBindsEveryDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var began []time.Time
		w.serve(w.guard, func(context.Context, *asynq.Task) error {
			began = append(began, time.Now())
			return idempotent.RateLimited(errors.New("not now"), time.Minute)
		})
		if err := w.enqueue("k", "x"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		second := asynq.NewTaskWithHeaders(taskType, []byte("x"), map[string]string{"onceq-key": "k"})
		if _, err := w.client.Enqueue(second, asynq.TaskID("second"), asynq.Timeout(time.Hour)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Minute)
		if len(began) < 10 {
			t.Fatalf("%d attempts, want about 14", len(began))
		}
		for i := range began[1:] {
			if d := began[i+1].Sub(began[i]); d < 59*time.Second {
				t.Errorf("attempt %d begins %v after the one before, which asked for a minute", i+2, d)
			}
		}
		if got := w.tasks(); !slices.Equal(got, []string{"k retry", "second retry"}) {
			t.Errorf("tasks %v, want both to wait", got)
		}
	})
}

// The task of an attempt that winds up after its timeout finds the lease held, and
// waits for its TTL. When the attempt gives the lease back it is woken.
func TestALeaseGivenBackWakesWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		began := make(chan time.Time, 10)
		ended := make(chan time.Time, 10)
		w.serve(w.guard, func(ctx context.Context, _ *asynq.Task) error {
			began <- time.Now()
			if idempotent.MustFromContext(ctx).Number() > 1 {
				return nil
			}
			<-ctx.Done()
			time.Sleep(5 * time.Second)
			ended <- time.Now()
			return ctx.Err()
		})
		w.recover(w.guard)
		if err := w.enqueue("k", "x", asynq.Timeout(10*time.Second)); err != nil {
			t.Fatal(err)
		}
		<-began
		if rest := (<-began).Sub(<-ended); rest > 6*time.Second { // retry, look, and what asynq rounds
			t.Errorf("the next attempt began %v after the lease was given back", rest)
		}
	})
}

// The delivery that a dead run would be given is there already, for later: it was made
// for one that waited for the lease.
func TestADeliveryForLaterIsWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		died(t, w.rdb, "k")
		w.rdb.ZAdd(t.Context(), "onceq:{leases}:of:dead-1", redis.Z{Score: 1, Member: "k"})
		header := map[string]string{"onceq-key": "k"}
		_, err := w.client.Enqueue(asynq.NewTaskWithHeaders(taskType, []byte(""), header), asynq.TaskID("k~r1700000000000000"), asynq.ProcessIn(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		w.recover(w.guard)
		time.Sleep(4 * time.Second)
		if got := w.tasks(); !slices.Equal(got, []string{"k~r1700000000000000 pending"}) {
			t.Errorf("tasks %v, want it woken", got)
		}
	})
}

// A run is not forgotten while it waits, however short the retention is.
func TestAWaitLongerThanTheRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, idempotent.WithRetention(time.Minute), idempotent.WithTTL(5*time.Second))
		numbers := make(chan int, 10)
		w.serve(w.guard, func(ctx context.Context, _ *asynq.Task) error {
			a := idempotent.MustFromContext(ctx)
			if a.Key() != "k" {
				return nil
			}
			n := a.Number()
			numbers <- n
			if n == 1 {
				return idempotent.RateLimited(errors.New("not now"), 10*time.Minute)
			}
			return nil
		})
		if err := w.enqueue("k", "x"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		w.recover(w.guard)
		died(t, w.rdb, "other") // what is done for it writes to the index, too
		w.rdb.ZAdd(t.Context(), "onceq:{leases}:of:dead-1", redis.Z{Score: 1, Member: "other"})
		time.Sleep(5 * time.Second)
		if left := w.rdb.PTTL(t.Context(), "onceq:{leases}:waiting").Val(); left < 9*time.Minute {
			t.Errorf("the index of runs that wait is forgotten in %v, before the retry", left)
		}
		time.Sleep(15 * time.Minute)
		if first, second := <-numbers, <-numbers; first != 1 || second != 2 || len(numbers) != 0 {
			t.Errorf("attempts %d, %d and %d more, want 1, 2 and none", first, second, len(numbers))
		}
	})
}

// Redis lost asynq's list of queues, and the run's payload is not in its record: whether
// its task is gone cannot be told, so the run is not failed.
func TestAQueueThatIsNotListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := make(chan idempotent.Failure, 10)
		w := newWorld(t, failures(failed))
		if _, err := w.client.Enqueue(task("large"), asynq.TaskID("k"), asynq.ProcessIn(time.Hour)); err != nil {
			t.Fatal(err)
		}
		died(t, w.rdb, "k")
		w.rdb.ZAdd(t.Context(), "onceq:{leases}:of:dead-1", redis.Z{Score: 1, Member: "k"})
		w.rdb.HDel(t.Context(), "onceq:{k}:run", "payload")
		w.rdb.Del(t.Context(), "asynq:queues")
		w.recover(w.guard)
		time.Sleep(10 * time.Second)
		if r := w.lookup("k"); r.State != idempotent.StateRunning || len(failed) != 0 {
			t.Fatalf("%v and %d failures while nothing is known of its task, want running and none", r.State, len(failed))
		}
		w.rdb.SAdd(t.Context(), "asynq:queues", "default")
		time.Sleep(5 * time.Second)
		if got := w.tasks(); !slices.Equal(got, []string{"k pending"}) {
			t.Errorf("tasks %v, want its own woken", got)
		}
	})
}

// A wait that a policy chose, the host's or asynq's after a timeout, is nobody's to cut
// short: the run's record does not know it.
func TestAChosenWaitIsNotCutShort(t *testing.T) {
	hostDelay := func(int, error, *asynq.Task) time.Duration { return 40 * time.Second }
	for _, c := range []struct {
		name string
		base time.Duration // of the guard's own backoff
		cfg  asynq.Config
		opts []asynq.Option
		work func(ctx context.Context) error
	}{
		{"the host's", time.Second, asynq.Config{RetryDelayFunc: hostDelay}, nil, func(context.Context) error { return errors.New("not now") }},
		{"after a timeout", time.Minute, asynq.Config{}, []asynq.Option{asynq.Timeout(2 * time.Second)}, func(context.Context) error {
			time.Sleep(10 * time.Minute) // deaf to its context
			return nil
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, idempotent.WithBackoff(c.base, 2*time.Minute), idempotent.WithGrace(time.Second))
				cfg := c.cfg
				cfg.Concurrency, cfg.LogLevel, cfg.ShutdownTimeout = 2, asynq.FatalLevel, time.Second
				srv := asynq.NewServerFromRedisClient(w.rdb, w.guard.ServerConfig(cfg))
				began := make(chan time.Time, 10)
				mux := asynq.NewServeMux()
				mux.Use(w.guard.Middleware)
				mux.HandleFunc(taskType, func(ctx context.Context, _ *asynq.Task) error {
					began <- time.Now()
					if idempotent.MustFromContext(ctx).Number() > 1 {
						return nil
					}
					return c.work(ctx)
				})
				if err := srv.Start(mux); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(srv.Shutdown)
				w.recover(w.guard)
				if err := w.enqueue("k", "x", c.opts...); err != nil {
					t.Fatal(err)
				}
				first := <-began
				if rest := (<-began).Sub(first); rest < 30*time.Second {
					t.Errorf("the next attempt began after %v, want what was chosen", rest)
				}
				time.Sleep(15 * time.Minute)
			})
		})
	}
}
