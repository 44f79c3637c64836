// Package bench measures whole runs of seven phases over 2 KB of state on a real
// Redis: asynq alone, a naive handler (SET NX, 7 × SET, DEL) and onceq, in turn
// within each round, so that a slow moment of the machine meets all three.
package bench

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/checkpoint"
	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/redistest"
)

const phases = 7

type state struct {
	Goal string
	Done int
	Text []byte
}

var (
	quiet   = slog.New(slog.DiscardHandler)
	payload = []byte(`{"goal":"a word counter"}`)
	text    = bytes.Repeat([]byte("0123456789abcdef"), 96) // 2 KB as base64
)

// contender is one way to do the work.
type contender struct {
	name    string
	rdb     *redis.Client
	count   *redistest.Counter
	cfg     func(asynq.Config) asynq.Config
	handler asynq.Handler
}

func newClient(b *testing.B, addr string) (*redis.Client, *redistest.Counter) {
	rdb := redis.NewClient(&redis.Options{Addr: addr, PoolSize: 64, ContextTimeoutEnabled: true})
	b.Cleanup(func() { _ = rdb.Close() })
	n := new(redistest.Counter)
	rdb.AddHook(n)
	return rdb, n
}

func bare(b *testing.B, addr string) *contender {
	rdb, n := newClient(b, addr)
	return &contender{
		name: "bare", rdb: rdb, count: n,
		cfg:     func(c asynq.Config) asynq.Config { return c },
		handler: asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }),
	}
}

// naive is what people write first: it cannot tell its own lock from another's,
// does not extend it, and lets anybody write after it was lost.
func naive(b *testing.B, addr string) *contender {
	c := bare(b, addr)
	c.name = "naive"
	c.handler = asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		if ok, err := c.rdb.SetNX(ctx, "naive:lock:"+id, id, 10*time.Minute).Result(); err != nil || !ok {
			return fmt.Errorf("held: %v, %w", ok, err)
		}
		value := make([]byte, 2048)
		for range phases {
			if err := c.rdb.Set(ctx, "naive:ckpt:"+id, value, 24*time.Hour).Err(); err != nil {
				return err
			}
		}
		return c.rdb.Del(ctx, "naive:lock:"+id).Err()
	})
	return c
}

func onceq(b *testing.B, addr string) *contender {
	c := bare(b, addr)
	c.name = "onceq"
	guard, err := idempotent.New(c.rdb, idempotent.WithLogger(quiet))
	if err != nil {
		b.Fatal(err)
	}
	store, err := checkpoint.NewRedisStore(c.rdb, checkpoint.WithLogger(quiet))
	if err != nil {
		b.Fatal(err)
	}
	list := make([]checkpoint.Phase[state], phases)
	for i := range list {
		list[i] = checkpoint.Phase[state]{Name: fmt.Sprint("phase-", i), Run: func(_ context.Context, s *state) error {
			s.Done = i
			return nil
		}}
	}
	c.cfg = guard.ServerConfig
	c.handler = guard.Middleware(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		_, err := checkpoint.Run(ctx, store, list, state{Goal: string(t.Payload()), Text: text}, checkpoint.WithLogger(quiet))
		return err
	}))
	return c
}

// round processes n runs that are queued before the clock starts.
func (c *contender) round(b *testing.B, concurrency, n int) (took time.Duration, trips, commands int64) {
	b.Helper()
	client := asynq.NewClientFromRedisClient(c.rdb)
	for i := range n {
		id := fmt.Sprintf("%s-%d-%d-%d", c.name, concurrency, time.Now().UnixNano(), i)
		if _, err := client.Enqueue(asynq.NewTask("bench", payload), asynq.TaskID(id), asynq.Timeout(time.Hour)); err != nil {
			b.Fatal(err)
		}
	}
	left, done := atomic.Int64{}, make(chan struct{})
	left.Store(int64(n))
	srv := asynq.NewServerFromRedisClient(c.rdb, c.cfg(asynq.Config{
		Concurrency: concurrency, LogLevel: asynq.FatalLevel, ShutdownTimeout: 10 * time.Second,
	}))
	c.count.Reset()
	start := time.Now()
	err := srv.Start(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		err := c.handler.ProcessTask(ctx, t)
		if err != nil {
			b.Errorf("%s: %v", c.name, err)
		}
		if left.Add(-1) == 0 {
			close(done)
		}
		return err
	}))
	if err != nil {
		b.Fatal(err)
	}
	<-done
	took = time.Since(start)
	trips, commands = c.count.RoundTrips(), c.count.Commands()
	srv.Shutdown()
	return took, trips, commands
}

// cpu is what this process and Redis have used so far.
func cpu(b *testing.B, rdb *redis.Client) (client, server time.Duration) {
	b.Helper()
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
		b.Fatal(err)
	}
	info, err := rdb.InfoMap(b.Context(), "cpu").Result()
	if err != nil {
		b.Fatal(err)
	}
	seconds := 0.0
	for _, field := range []string{"used_cpu_sys", "used_cpu_user"} {
		n, err := strconv.ParseFloat(info["CPU"][field], 64)
		if err != nil {
			b.Fatal(err)
		}
		seconds += n
	}
	return time.Duration(self.Utime.Nano() + self.Stime.Nano()), time.Duration(seconds * float64(time.Second))
}

func BenchmarkSevenPhaseRun(b *testing.B) {
	addr := redistest.Real(b).Addr
	for _, concurrency := range []int{1, 10, 100} {
		b.Run(fmt.Sprint("concurrency=", concurrency), func(b *testing.B) {
			const runs = 400
			cs := []*contender{bare(b, addr), naive(b, addr), onceq(b, addr)}
			rate := map[string][]float64{}
			trips, commands := map[string]float64{}, map[string]float64{}
			client, server, jobs := map[string]time.Duration{}, map[string]time.Duration{}, 0
			for _, c := range cs {
				c.round(b, concurrency, 50) // warm
			}
			for b.Loop() {
				jobs += runs
				for _, c := range cs {
					ours, theirs := cpu(b, c.rdb)
					took, t, n := c.round(b, concurrency, runs)
					ours2, theirs2 := cpu(b, c.rdb)
					client[c.name] += ours2 - ours
					server[c.name] += theirs2 - theirs
					rate[c.name] = append(rate[c.name], runs/took.Seconds())
					trips[c.name], commands[c.name] = float64(t)/runs, float64(n)/runs
				}
			}
			for _, c := range cs {
				b.ReportMetric(median(rate[c.name]), c.name+"-jobs/s")
				b.ReportMetric(trips[c.name], c.name+"-trips/job")
				b.ReportMetric(float64(client[c.name].Microseconds())/float64(jobs), c.name+"-client-µs/job") // its enqueue included
				b.ReportMetric(float64(server[c.name].Microseconds())/float64(jobs), c.name+"-redis-µs/job")
			}
			b.ReportMetric(median(rate["onceq"])/median(rate["naive"]), "onceq/naive")
			b.ReportMetric(median(rate["onceq"])/median(rate["bare"]), "onceq/bare")
			b.ReportMetric(0, "ns/op") // a round of all three: says nothing
		})
	}
}

func median(xs []float64) float64 {
	xs = slices.Sorted(slices.Values(xs))
	return xs[len(xs)/2]
}
