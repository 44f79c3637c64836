package llmcache

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/internal/setting"
)

// EnvSwitch is the environment variable that turns the cache off: with "0", "false"
// or "off" every call goes to its provider, and Redis is not asked. It is read by
// New. A value that is not known turns nothing off and is logged.
const EnvSwitch = "ONCEQ_LLM_CACHE"

// Cache keeps the answers of LLM calls. Make one for each process with New and
// share it; it is safe for concurrent use. A nil *Cache caches nothing.
//
// Most programs use it through a [Transport]; [Do] is for calls that are not HTTP.
type Cache struct {
	config
	store    Store
	servers  servers
	envelope *envelope
	memory   *memory
	tally    tally
	off      bool
	counts   counters
	// sealerFails says that it was logged so.
	sealerFails atomic.Bool

	mu      sync.Mutex
	flights map[string]*flight // guarded by mu
}

// New returns a cache on rdb. Its errors wrap [ErrInvalid] and name the option, its
// value and what is allowed.
func New(rdb redis.UniversalClient, opts ...Option) (*Cache, error) {
	c := &Cache{config: defaults(), flights: map[string]*flight{}}
	if err := setting.Apply(&c.config, opts); err != nil {
		return nil, err
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	if c.store = c.config.store; c.store == nil {
		if setting.IsNil(rdb) {
			return nil, setting.Invalidf("New: the Redis client is nil; WithStore is the only way to do without one")
		}
		c.store = newRedisStore(rdb)
	}
	var err error
	if c.envelope, err = newEnvelope(c.config); err != nil {
		return nil, fmt.Errorf("llmcache: New: %w", err)
	}
	c.initServers(c.store)
	c.memory = newMemory(c.config.memory)
	c.tally.init(c)
	var unknown string
	if c.off, unknown = setting.SwitchedOff(EnvSwitch); c.off {
		c.logger.Warn("llmcache: off", "by", EnvSwitch)
	}
	if unknown != "" {
		c.logger.Warn("llmcache: stays on, its switch has a value that is not known", "by", EnvSwitch, "value", unknown, "allowed", "0, false, off")
	}
	return c, nil
}

// Stats are counts since New.
type Stats struct {
	Hits      int64 // answered from the store or from memory
	Misses    int64 // called, under a lease
	Joined    int64 // answered by a call that another goroutine of this process made
	Stored    int64 // answers stored
	Unstored  int64 // whole answers that were not stored: too large, empty, refused, cut by length, or the store or the sealer failed
	Failed    int64 // calls that brought no whole answer
	Passed    int64 // called without a lease: the store or the sealer was in trouble, waiting took too long, or Bypass
	Discarded int64 // stored bytes that could not be used
}

type counters struct {
	hits, misses, joined, stored, unstored, failed, passed, discarded atomic.Int64
}

// Stats returns the counts so far.
func (c *Cache) Stats() Stats {
	if c == nil {
		return Stats{}
	}
	n := &c.counts
	return Stats{
		n.hits.Load(), n.misses.Load(), n.joined.Load(), n.stored.Load(),
		n.unstored.Load(), n.failed.Load(), n.passed.Load(), n.discarded.Load(),
	}
}

// patience is how long a caller waits for another one's call.
func (c *Cache) patience(ctx context.Context) time.Duration {
	wait := c.maxWait
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)/4*3)
	}
	return max(wait, 0)
}
