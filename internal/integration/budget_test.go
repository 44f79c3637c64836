package integration

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/checkpoint"
	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/redistest"
)

// counted is a guard and a store on a real Redis whose commands are counted, by the
// client and by the server.
type counted struct {
	*redistest.Counter
	rdb   *redis.Client
	guard *idempotent.Guard
	store *checkpoint.RedisStore
}

func newCounted(t *testing.T, opts ...idempotent.Option) *counted {
	t.Helper()
	srv := redistest.Real(t)
	for _, pkg := range []string{"idempotent", "checkpoint"} {
		all, err := scripts(pkg)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range all {
			if err := srv.Client().ScriptLoad(t.Context(), text).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	c := &counted{Counter: &redistest.Counter{}, rdb: srv.Client()}
	c.rdb.AddHook(c.Counter)
	var err error
	if c.guard, err = idempotent.New(c.rdb, opts...); err != nil {
		t.Fatal(err)
	}
	if c.store, err = checkpoint.NewRedisStore(c.rdb); err != nil {
		t.Fatal(err)
	}
	return c
}

// scriptCalls is how many scripts the server ran, by its own count.
func (c *counted) scriptCalls(t *testing.T) (n int) {
	t.Helper()
	info, err := c.rdb.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(info) {
		name, rest, _ := strings.Cut(line, ":calls=")
		if name == "cmdstat_eval" || name == "cmdstat_evalsha" {
			calls, _, _ := strings.Cut(rest, ",")
			k, _ := strconv.Atoi(calls)
			n += k
		}
	}
	return n
}

// run is one delivery of a run of seven phases, without a server.
func (c *counted) run(ctx context.Context, key string, during func()) error {
	h := asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		var list []checkpoint.Phase[state]
		for _, name := range phases {
			list = append(list, checkpoint.Phase[state]{Name: name, Run: func(_ context.Context, s *state) error {
				s.Done = append(s.Done, name)
				return nil
			}})
		}
		if during != nil {
			during()
		}
		_, err := checkpoint.Run(ctx, c.store, list, state{})
		return err
	})
	return c.guard.Middleware(h).ProcessTask(ctx, asynq.NewTaskWithHeaders("t", nil, map[string]string{"onceq-key": key}))
}

// The budget of round trips: P + 2 for a run of P phases, 1 for a duplicate that is
// skipped, 1 for a producer besides asynq's own.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	c := newCounted(t)
	check := func(what string, commands, trips int64, do func() error) {
		t.Helper()
		before := c.scriptCalls(t)
		c.Reset()
		if err := do(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if got, n := c.Commands(), c.RoundTrips(); got != commands || n != trips {
			t.Errorf("%s: %d commands in %d round trips, want %d in %d", what, got, n, commands, trips)
		}
		if got := c.scriptCalls(t) - before; got != int(commands) {
			t.Errorf("%s: the server ran %d scripts, want %d", what, got, commands)
		}
	}
	check("a run of 7 phases", 9, 9, func() error { return c.run(t.Context(), "k", nil) })
	check("a skipped duplicate", 1, 1, func() error { return c.run(t.Context(), "k", nil) })

	// asynq on a client of its own: what is counted is ours.
	producer, err := idempotent.NewProducer(c.guard, asynq.NewClientFromRedisClient(redistest.Client(t, c.rdb.Options().Addr)))
	if err != nil {
		t.Fatal(err)
	}
	c.Reset()
	if _, err := producer.Enqueue(t.Context(), "new", asynq.NewTask("t", nil), asynq.Timeout(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if got, n := c.Commands(), c.RoundTrips(); got != 1 || n != 1 {
		t.Errorf("an enqueue: %d commands in %d round trips besides asynq's, want 1 in 1", got, n)
	}
}

// The heartbeats of all runs of a process are one pipelined call every TTL/3.
func TestHeartbeatsAreOneCall(t *testing.T) {
	t.Parallel()
	const runs, ttl = 50, 3 * time.Second
	c := newCounted(t, idempotent.WithTTL(ttl))
	beats := &pipelines{script: hashOf(t, "idempotent", "extend")}
	c.rdb.AddHook(beats)
	var begun, done sync.WaitGroup
	begun.Add(runs)
	release := make(chan struct{})
	for i := range runs {
		done.Go(func() {
			if err := c.run(context.Background(), fmt.Sprint("k", i), func() { begun.Done(); <-release }); err != nil {
				t.Error(err)
			}
		})
	}
	begun.Wait()
	beats.reset()
	time.Sleep(2*ttl/3 + ttl/6)
	sizes := beats.reset()
	close(release)
	done.Wait()
	if !slices.Equal(sizes, []int{runs, runs}) {
		t.Errorf("extensions in calls of %v, want two of %d in two and a half thirds of the TTL", sizes, runs)
	}
}

func hashOf(t *testing.T, pkg, name string) string {
	t.Helper()
	all, err := scripts(pkg)
	if err != nil || all[name] == "" {
		t.Fatalf("no script %s/%s: %v", pkg, name, err)
	}
	return hash(all[name])
}

// pipelines records how many calls of a script each round trip carried.
type pipelines struct {
	script string

	mu    sync.Mutex // guards sizes
	sizes []int
}

func (p *pipelines) reset() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.sizes
	p.sizes = nil
	return s
}

func (p *pipelines) add(cmds ...redis.Cmder) {
	n := 0
	for _, c := range cmds {
		if a := c.Args(); len(a) > 1 && a[1] == p.script {
			n++
		}
	}
	if n > 0 {
		p.mu.Lock()
		p.sizes = append(p.sizes, n)
		p.mu.Unlock()
	}
}

func (p *pipelines) DialHook(next redis.DialHook) redis.DialHook { return next }

func (p *pipelines) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { p.add(cmd); return next(ctx, cmd) }
}

func (p *pipelines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { p.add(cmds...); return next(ctx, cmds) }
}
