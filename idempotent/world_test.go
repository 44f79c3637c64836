package idempotent_test

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

const taskType = "orchestrator:run"

// world is a Redis in virtual time with a guard, a producer and as many asynq
// servers as the test starts. It must be made inside a synctest bubble.
type world struct {
	t        *testing.T
	mini     *miniredis.Miniredis
	rdb      *redis.Client
	guard    *idempotent.Guard
	producer *idempotent.Producer
	client   *asynq.Client
	insp     *asynq.Inspector
}

func newWorld(t *testing.T, opts ...idempotent.Option) *world {
	t.Helper()
	mini, rdb := redistest.Bubble(t)
	w := &world{t: t, mini: mini, rdb: rdb}
	w.guard = w.newGuard(opts...)
	w.client = asynq.NewClientFromRedisClient(rdb)
	w.insp = asynq.NewInspectorFromRedisClient(rdb)
	var err error
	if w.producer, err = idempotent.NewProducer(w.guard, w.client); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) newGuard(opts ...idempotent.Option) *idempotent.Guard {
	w.t.Helper()
	g, err := idempotent.New(w.rdb, append([]idempotent.Option{idempotent.WithLogger(quiet)}, opts...)...)
	if err != nil {
		w.t.Fatal(err)
	}
	return g
}

// serve starts a worker; it is shut down before the test ends.
func (w *world) serve(g *idempotent.Guard, h asynq.HandlerFunc) *asynq.Server {
	w.t.Helper()
	srv := asynq.NewServerFromRedisClient(w.rdb, g.ServerConfig(asynq.Config{
		Concurrency: 10, LogLevel: asynq.FatalLevel, ShutdownTimeout: time.Second,
		TaskCheckInterval: 200 * time.Millisecond,
	}))
	mux := asynq.NewServeMux()
	mux.Use(g.Middleware)
	mux.HandleFunc(taskType, h)
	if err := srv.Start(mux); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(srv.Shutdown)
	return srv
}

func task(payload string) *asynq.Task { return asynq.NewTask(taskType, []byte(payload)) }

// direct runs a delivery of the run through the guard without a server.
func direct(ctx context.Context, g *idempotent.Guard, key string, h asynq.HandlerFunc) error {
	t := asynq.NewTaskWithHeaders(taskType, []byte("{}"), map[string]string{"onceq-key": key})
	return g.Middleware(h).ProcessTask(ctx, t)
}

func (w *world) enqueue(key, payload string, opts ...asynq.Option) error {
	w.t.Helper()
	_, err := w.producer.Enqueue(w.t.Context(), key, task(payload), append([]asynq.Option{asynq.Timeout(time.Hour)}, opts...)...)
	return err
}

func (w *world) lookup(key string) idempotent.Run {
	w.t.Helper()
	r, err := w.guard.Lookup(w.t.Context(), key)
	if err != nil {
		w.t.Fatalf("Lookup: %v", err)
	}
	return r
}

// counter counts calls of a handler.
type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) add() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return c.n
}

func (c *counter) get() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

func nop(context.Context, *asynq.Task) error { return nil }
