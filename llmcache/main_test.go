package llmcache

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/internal/lease"
	"github.com/nexuscore/onceq/internal/runkey"
	"github.com/nexuscore/onceq/internal/scope"

	"github.com/nexuscore/onceq/internal/redistest"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child()
		return
	}
	redistest.Main(m)
}

func open(t testing.TB, rdb redis.UniversalClient, opts ...Option) *Cache {
	t.Helper()
	c, err := New(rdb, opts...)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	t.Cleanup(func() { _ = c.Flush(context.Background()) })
	return c
}

// attempt is the context of a new attempt of a run, in a phase.
func attempt(t testing.TB, ctx context.Context, key, phase string) (context.Context, *lease.Lease) {
	t.Helper()
	ctx, l := lease.New(ctx, lease.Config{
		Prefix: "onceq", Key: key, Base: runkey.Base("onceq", key), Owner: "o", Generation: 1, Attempt: 1,
		TTL: time.Hour, Margin: time.Second,
	}, time.Now())
	t.Cleanup(func() { l.End() })
	return scope.New(ctx, phase, ""), l
}

// model answers calls and counts them.
type model struct {
	calls atomic.Int64
	usage Usage
}

func (m *model) ask(context.Context) (Answer[string], error) {
	return Answer[string]{Value: fmt.Sprintf("answer %d", m.calls.Add(1)), Usage: m.usage}, nil
}

func prompt(s string) Request { return Request{Provider: "p", Model: "m", System: s} }

// do makes a call that must succeed.
func do(t testing.TB, ctx context.Context, c *Cache, m *model, prompts ...string) string {
	t.Helper()
	p := "prompt"
	if len(prompts) > 0 {
		p = prompts[0]
	}
	v, err := Do(ctx, c, prompt(p), m.ask)
	if err != nil {
		t.Fatalf("Do: %v", err)
	}
	return v
}

func runtimeGoexit() { runtime.Goexit() }
