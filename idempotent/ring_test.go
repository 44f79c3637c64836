package idempotent_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/redistest"
)

// On a Ring a run, its queue and the index of leases may be on different servers, and no
// script can span them.
func TestRunsOnARing(t *testing.T) {
	addrs := map[string]string{}
	for _, name := range []string{"a", "b"} {
		m, _ := redistest.Mini(t)
		addrs[name] = m.Addr()
	}
	ring := redis.NewRing(&redis.RingOptions{Addrs: addrs, Protocol: 2, DisableIdentity: true})
	t.Cleanup(func() { _ = ring.Close() })
	g := newGuardOn(t, ring, "p", idempotent.WithTTL(time.Second))
	rec, err := idempotent.NewRecoverer(g, idempotent.WithInterval(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	if err := rec.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(rec.Shutdown)
	client := asynq.NewClientFromRedisClient(ring)
	p, err := idempotent.NewProducer(g, client)
	if err != nil {
		t.Fatal(err)
	}
	const runs = 30
	var mu sync.Mutex
	attempts, done := map[string]int{}, make(chan string, runs)
	h := func(ctx context.Context, _ *asynq.Task) error {
		a := idempotent.MustFromContext(ctx)
		mu.Lock()
		defer mu.Unlock()
		attempts[a.Key()]++
		done <- a.Key()
		return nil
	}
	for i := range runs {
		key := fmt.Sprint("run-", i)
		if i%3 == 0 { // its worker died, and nobody extends its lease
			died(t, ring, key)
			continue
		}
		if _, err := p.Enqueue(t.Context(), key, task("x"), asynq.Timeout(time.Hour)); err != nil {
			t.Errorf("run %s: %v", key, err)
		}
		if _, err := p.Enqueue(t.Context(), key, task("x"), asynq.Timeout(time.Hour)); !errors.Is(err, idempotent.ErrDuplicate) {
			t.Errorf("run %s again: %v, want ErrDuplicate", key, err)
		}
	}
	srv := asynq.NewServerFromRedisClient(ring, g.ServerConfig(asynq.Config{Concurrency: 4, LogLevel: asynq.FatalLevel, TaskCheckInterval: 20 * time.Millisecond}))
	mux := asynq.NewServeMux()
	mux.Use(g.Middleware)
	mux.HandleFunc(taskType, h)
	if err := srv.Start(mux); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	for range runs {
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			t.Fatalf("not all runs came: %v", attempts)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for i := range runs {
		if key := fmt.Sprint("run-", i); attempts[key] != 1 {
			t.Errorf("run %s was executed %d times, want once", key, attempts[key])
		}
	}
}
