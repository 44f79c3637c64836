package llmcache

import (
	"log/slog"
	"time"

	"github.com/nexuscore/onceq/internal/runkey"
	"github.com/nexuscore/onceq/internal/setting"
)

// Option sets one thing of a Cache.
type Option func(*config)

type config struct {
	prefix   string
	ttl      time.Duration
	runTTL   time.Duration
	totalTTL time.Duration
	leaseTTL time.Duration
	timeout  time.Duration
	maxWait  time.Duration
	maxValue int
	compress int
	memory   int
	sealer   Sealer
	sealing  bool
	prices   Prices
	budget   Budget
	refuse   bool
	refusals bool
	logger   *slog.Logger
	store    Store
	storing  bool
}

func defaults() config {
	return config{
		prefix:   "onceq",
		ttl:      24 * time.Hour,
		runTTL:   7 * 24 * time.Hour,
		totalTTL: 90 * 24 * time.Hour,
		leaseTTL: 30 * time.Second,
		timeout:  time.Second,
		maxWait:  10 * time.Minute,
		maxValue: 8 << 20,
		compress: 4 << 10,
		logger:   slog.Default(),
	}
}

// WithPrefix sets what the Redis keys start with outside runs; inside a run the
// run's own prefix counts. Default "onceq". Two prefixes never meet. Give it the
// prefix of the guard: outside the run, Ledger.Of looks for a run under the cache's
// prefix, and finds nothing under another one.
func WithPrefix(prefix string) Option { return func(c *config) { c.prefix = prefix } }

// WithTTL sets how long an answer that runs share lives. Default 24 h, from 1 ms
// to a year.
func WithTTL(d time.Duration) Option { return func(c *config) { c.ttl = d } }

// WithRunTTL sets how long a run's own answers and its ledger live; each use
// starts it anew. Default 7 days, from 1 ms to a year. It should not be shorter than
// a run can wait for its next attempt.
func WithRunTTL(d time.Duration) Option { return func(c *config) { c.runTTL = d } }

// WithLeaseTTL sets how long a call's lease outlives its process: for so long
// others wait for a dead one. It is renewed while the call runs, however long.
// Default 30 s, from 10 ms to 1 h.
func WithLeaseTTL(d time.Duration) Option { return func(c *config) { c.leaseTTL = d } }

// WithTimeout bounds each question to Redis. Default 1 s, from 1 ms to
// 1 min.
func WithTimeout(d time.Duration) Option { return func(c *config) { c.timeout = d } }

// WithMaxWait bounds how long a caller waits for another that makes the same
// call; then it calls itself. A caller with a deadline waits three quarters of
// what is left of it at most. Default 10 min, from 1 ms to 24 h.
func WithMaxWait(d time.Duration) Option { return func(c *config) { c.maxWait = d } }

// WithMaxValue sets the largest answer that is stored, in bytes before
// compression; larger ones pass. It also bounds the memory that one call may
// take. Default 8 MiB, at least 1, at most 256 MiB.
func WithMaxValue(bytes int) Option { return func(c *config) { c.maxValue = bytes } }

// WithCompressAbove sets the size from which answers are compressed, in bytes.
// Default 4 KiB; 0 compresses all, a negative number none.
func WithCompressAbove(bytes int) Option { return func(c *config) { c.compress = bytes } }

// WithMemory keeps up to so many bytes of answers in the process too, so that
// repeated hits need no Redis. Default 0: none; no upper limit. An answer that another process
// replaces (see Refresh) is noticed here only when it leaves the memory; entries
// live no longer than in Redis.
func WithMemory(bytes int) Option { return func(c *config) { c.memory = bytes } }

// WithSealer encrypts answers before they leave the process. What was stored in
// plain text before counts as absent.
func WithSealer(s Sealer) Option { return func(c *config) { c.sealer, c.sealing = s, true } }

// WithPrices sets what tokens cost, for the ledger and for budgets of cost.
// Without it, tokens are counted and cost is 0.
func WithPrices(p Prices) Option { return func(c *config) { c.prices = p } }

// WithBudget limits what each run may spend; the call that would exceed it fails
// with a *BudgetError. [Limit] sets another one for a context. Calls outside
// runs have no budget.
func WithBudget(b Budget) Option { return func(c *config) { c.budget = b } }

// WithRefuseMaybePaid lets a call fail with a *MaybePaidError when an earlier
// attempt began it and its process died: the provider may have been paid.
// Default is to make it again and count the earlier one as wasted.
func WithRefuseMaybePaid() Option { return func(c *config) { c.refuse = true } }

// WithRefusals stores answers by which the model or a filter declined. Default
// is not to: the same question may be answered another time.
func WithRefusals() Option { return func(c *config) { c.refusals = true } }

// WithLogger sets the logger. Default slog.Default(). Answers, prompts and
// credentials are never logged.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.logger = l } }

// WithStore replaces Redis; New's client may then be nil.
func WithStore(s Store) Option { return func(c *config) { c.store, c.storing = s, true } }

// longest is the longest that anything is kept: a year.
const longest = 365 * 24 * time.Hour

func (c *config) validate() error {
	if err := runkey.ValidatePrefix(c.prefix); err != nil {
		return setting.Invalidf("WithPrefix: %w", err)
	}
	for _, d := range []struct {
		name               string
		value, least, most time.Duration
	}{
		{"WithTTL", c.ttl, time.Millisecond, longest},
		{"WithRunTTL", c.runTTL, time.Millisecond, longest},
		{"WithLeaseTTL", c.leaseTTL, 10 * time.Millisecond, time.Hour},
		{"WithTimeout", c.timeout, time.Millisecond, time.Minute},
		{"WithMaxWait", c.maxWait, time.Millisecond, 24 * time.Hour},
	} {
		if d.value < d.least || d.value > d.most {
			return setting.Invalidf("%s: %v, from %v to %v are allowed", d.name, d.value, d.least, d.most)
		}
	}
	switch {
	case c.maxValue < 1 || c.maxValue > 256<<20:
		return setting.Invalidf("WithMaxValue: %d bytes, from 1 to %d are allowed", c.maxValue, 256<<20)
	case c.memory < 0:
		return setting.Invalidf("WithMemory: %d bytes, at least 0 are allowed", c.memory)
	case c.logger == nil:
		return setting.Invalidf("WithLogger: nil, a logger is needed; slog.DiscardHandler makes a silent one")
	case c.sealing && setting.IsNil(c.sealer):
		return setting.Invalidf("WithSealer: the sealer is nil; what is stored would be plain text")
	case c.storing && setting.IsNil(c.store):
		return setting.Invalidf("WithStore: the store is nil")
	}
	if name, n := c.budget.negative(); n < 0 {
		return setting.Invalidf("WithBudget: %s is %d, at least 0 is allowed (0 is no limit)", name, n)
	}
	return c.prices.validate()
}
