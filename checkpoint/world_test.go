package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/internal/lease"
	"github.com/nexuscore/onceq/internal/redistest"
	"github.com/nexuscore/onceq/internal/runkey"
)

// state is the S of most tests.
type state struct {
	Trail []string
	Notes map[string]int
}

var errBoom = errors.New("boom")

// trail records which phases ran.
type trail struct {
	mu  sync.Mutex
	ran []string
}

func (tr *trail) add(name string) {
	tr.mu.Lock()
	tr.ran = append(tr.ran, name)
	tr.mu.Unlock()
}

func (tr *trail) String() string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return strings.Join(tr.ran, " ")
}

func (tr *trail) reset() {
	tr.mu.Lock()
	tr.ran = nil
	tr.mu.Unlock()
}

// phases returns phases that leave their names in the state and the trail.
func (tr *trail) phases(names ...string) []Phase[state] {
	var list []Phase[state]
	for _, name := range names {
		list = append(list, Phase[state]{Name: name, Run: func(_ context.Context, s *state) error {
			tr.add(name)
			s.Trail = append(s.Trail, name)
			return nil
		}})
	}
	return list
}

// failing makes the phase called name fail after it has done its work.
func failing(list []Phase[state], name string) []Phase[state] {
	list = append([]Phase[state](nil), list...)
	for i, p := range list {
		if p.Name == name {
			list[i].Run = func(ctx context.Context, s *state) error {
				return errors.Join(p.Run(ctx, s), errBoom)
			}
		}
	}
	return list
}

// attempt is a lease as package idempotent's begin hands it out.
type attempt struct {
	ctx context.Context
	*lease.Lease
}

var attempts struct {
	sync.Mutex
	n int64
}

// begin takes the lease of a run, from whoever has it.
func begin(t testing.TB, rdb redis.UniversalClient, key string, mod ...func(*lease.Config)) attempt {
	t.Helper()
	attempts.Lock()
	attempts.n++
	n := attempts.n
	attempts.Unlock()
	c := lease.Config{
		Prefix: "onceq", Key: key, Base: runkey.Base("onceq", key), Owner: fmt.Sprintf("owner-%d", n),
		Token: n, Attempt: 1, Generation: 1, Fingerprint: "f", Stamp: "s",
		TTL: 30 * time.Second, Margin: 3 * time.Second,
	}
	sent := time.Now()
	ctx := context.WithoutCancel(t.Context())
	if b, err := rdb.Get(ctx, runkey.Checkpoint(c.Base)).Bytes(); err == nil {
		c.Snapshot = b
	}
	for _, m := range mod {
		m(&c)
	}
	if err := rdb.Set(ctx, runkey.Lock(c.Base), c.Owner, c.TTL).Err(); err != nil {
		t.Fatal(err)
	}
	ctx, l := lease.New(t.Context(), c, sent)
	t.Cleanup(func() { l.End() })
	return attempt{ctx, l}
}

// again is the config of an attempt after the first.
func again(c *lease.Config) { c.Attempt = 2 }

var quiet = WithLogger(slog.New(slog.DiscardHandler))

func newStore(t testing.TB, rdb redis.UniversalClient, opts ...Option) *RedisStore {
	t.Helper()
	s, err := NewRedisStore(rdb, append([]Option{quiet}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mini(t testing.TB, opts ...Option) (*redis.Client, *RedisStore) {
	t.Helper()
	_, rdb := redistest.Mini(t)
	return rdb, newStore(t, rdb, opts...)
}

func keys(t *testing.T, rdb *redis.Client) string {
	t.Helper()
	all, err := rdb.Keys(context.WithoutCancel(t.Context()), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, " ")
}
