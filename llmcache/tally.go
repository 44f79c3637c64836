package llmcache

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/nexuscore/onceq/internal/breaker"
)

const (
	tallyDelay = 200 * time.Millisecond
	tallyRetry = 5 * time.Second
	// tallyKeys bounds the ledgers that wait while Redis is away.
	tallyKeys = 4096
	// onceTTL is how long the store remembers what it counted; see count.lua.
	onceTTL = time.Minute
)

// tally adds to ledgers that cannot be written together with an answer, since on
// a cluster they live elsewhere: the total, and the runs' sums of shared answers.
// They trail by tallyDelay. A killed process loses what it had not written.
type tally struct {
	cache *Cache

	mu      sync.Mutex // guards the fields below
	pending map[string]Account
	sent    []batch // whose reply is unknown
	timer   *time.Timer
}

// batch is one addition on its way; its id makes it count once.
type batch struct {
	key, id string
	Account
	tried bool // it was sent, and no reply came
	until time.Time
}

func (t *tally) init(c *Cache) { t.cache, t.pending = c, map[string]Account{} }

func (t *tally) add(key string, a Account) {
	if key == "" || a.zero() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	old, known := t.pending[key]
	if !known && len(t.pending) >= tallyKeys {
		return
	}
	t.pending[key] = old.plus(a)
	t.scheduleLocked(tallyDelay)
}

func (t *tally) scheduleLocked(d time.Duration) {
	if t.timer == nil {
		t.timer = time.AfterFunc(d, func() {
			t.mu.Lock()
			t.timer = nil // what comes from now on may miss this flush
			t.mu.Unlock()
			_ = t.flush(context.Background(), "") // nobody's context: it adds up the calls of many
		})
	}
}

// flush writes what is pending for a ledger, "" for all: who reads one needs nothing of
// the servers that have others. What it cannot write stays.
func (t *tally) flush(ctx context.Context, only string) (failed error) {
	for _, s := range t.servers(only) {
		if err := t.flushTo(ctx, s, only); err != nil {
			failed = err
		}
	}
	return failed
}

// flushTo returns when another flush to the server has ended too: what that one took
// is not pending any more, and a reader would miss it.
func (t *tally) flushTo(ctx context.Context, s *server, only string) (failed error) {
	select {
	case s.writing <- struct{}{}:
		defer func() { <-s.writing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, b := range t.take(s, only) {
		err := t.cache.ask(ctx, b.key, func(ctx context.Context) error {
			return t.cache.store.Count(ctx, b.key, b.id, b.Account, t.ttl(b.key))
		})
		if err != nil {
			failed = err
			t.back(b, err)
		}
	}
	return failed
}

// servers are those that have a ledger, or all for which something is pending.
func (t *tally) servers(only string) []*server {
	if only != "" {
		return []*server{t.cache.servers.of(only)}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []*server
	see := func(key string) {
		if s := t.cache.servers.of(key); !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	for _, b := range t.sent {
		see(b.key)
	}
	for key := range t.pending {
		see(key)
	}
	return all
}

func (t *tally) ttl(key string) time.Duration {
	if key == totalKey(t.cache.prefix) {
		return t.cache.totalTTL
	}
	return t.cache.runTTL
}

func (t *tally) take(from *server, only string) []batch {
	t.mu.Lock()
	defer t.mu.Unlock()
	meant := func(key string) bool { return (only == "" || key == only) && t.cache.servers.of(key) == from }
	var batches, others []batch
	for _, b := range t.sent {
		if meant(b.key) {
			batches = append(batches, b)
		} else {
			others = append(others, b)
		}
	}
	t.sent = others
	for key, a := range t.pending {
		if meant(key) {
			batches = append(batches, batch{key: key, id: rand.Text(), Account: a, until: time.Now().Add(onceTTL / 2)})
			delete(t.pending, key)
		}
	}
	if t.timer != nil && len(t.sent)+len(t.pending) == 0 {
		t.timer.Stop()
		t.timer = nil
	}
	return batches
}

// back keeps a batch for a later flush: merged with what comes when it certainly
// was not counted, else as it is and no longer than the store would remember it.
func (t *tally) back(b batch, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.scheduleLocked(tallyRetry)
	if errors.Is(err, breaker.ErrOpen) && !b.tried {
		if old, known := t.pending[b.key]; known || len(t.pending) < tallyKeys {
			t.pending[b.key] = old.plus(b.Account)
		}
		return
	}
	b.tried = true
	if time.Now().Before(b.until) && len(t.sent) < tallyKeys {
		t.sent = append(t.sent, b)
	}
}
