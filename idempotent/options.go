package idempotent

import (
	"context"
	"log/slog"
	"time"
	"unicode/utf8"

	"github.com/hibiken/asynq"

	"github.com/nexuscore/onceq/internal/runkey"
	"github.com/nexuscore/onceq/internal/setting"
)

// Option sets up a Guard. New validates all of them.
type Option func(*config)

type config struct {
	prefix       string
	ttl          time.Duration
	grace        time.Duration
	progress     time.Duration
	retention    time.Duration
	opTimeout    time.Duration
	maxCrashes   int
	maxResult    int
	maxPayload   int
	keyFunc      func(*asynq.Task) string
	classifiers  []Classifier
	onFailed     func(context.Context, Failure)
	policy       policy
	logger       *slog.Logger
	processLabel string
	nils         []string // options that were given nil where that means nothing
}

const defaultPrefix = "onceq"

func defaults() config {
	return config{
		prefix:     defaultPrefix,
		ttl:        30 * time.Second,
		grace:      10 * time.Second,
		retention:  7 * 24 * time.Hour,
		opTimeout:  3 * time.Second,
		maxCrashes: 5,
		maxResult:  512 << 10,
		maxPayload: 64 << 10,
		policy:     defaultPolicy(),
		logger:     slog.Default(),
	}
}

// WithPrefix sets the key prefix, which keeps tenants apart: guards with different
// prefixes never meet, in Redis keys or task IDs. Give tenants queues of their own: a
// worker that takes a task of another prefix can only put it back. Letters, digits,
// '-', '_', '.' and '/', at most 64 bytes. Defaults to "onceq".
func WithPrefix(prefix string) Option { return func(c *config) { c.prefix = prefix } }

// WithTTL sets how long a lease lives without an extension; the heartbeat extends
// it every third of that. It bounds how long a run rests when its machine is
// lost, and how long an outage of Redis an attempt survives (nine tenths of it).
// At least 1 s, at most 1 h. Defaults to 30 s.
func WithTTL(ttl time.Duration) Option { return func(c *config) { c.ttl = ttl } }

// WithGrace sets for how long the lease is still extended after asynq ended the
// handler's context (timeout, shutdown, cancellation), so that a handler that
// winds up keeps its run, and one that hangs does not. At most 1 h; zero ends the
// lease at once. Defaults to 10 s.
func WithGrace(grace time.Duration) Option { return func(c *config) { c.grace = grace } }

// WithProgressTimeout ends the lease of an attempt that reported no progress for
// so long: a finished phase, a finished step or a call of [Progress]. Zero, the
// default, means never. Otherwise at least the TTL.
func WithProgressTimeout(d time.Duration) Option { return func(c *config) { c.progress = d } }

// WithRetention sets how long the record of a run is kept after its last change:
// its outcome, result and fencing token. After that the run is forgotten and its
// key is new. At least 1 min and at least ten TTLs. Defaults to 7 days.
func WithRetention(d time.Duration) Option { return func(c *config) { c.retention = d } }

// WithMaxCrashes sets how many attempts of a run may die without an outcome, and
// without a phase saved in between, before it is failed as a poison pill. A run that
// shared a process with one dies with it and counts a crash as well. 1 to 1000.
// Defaults to 5.
func WithMaxCrashes(n int) Option { return func(c *config) { c.maxCrashes = n } }

// WithMaxResult sets the largest result in bytes that SetResult accepts. 0 to
// 16 MiB. Defaults to 512 KiB.
func WithMaxResult(bytes int) Option { return func(c *config) { c.maxResult = bytes } }

// WithKeyFunc names the run of a task. Without it the key is the one the
// Producer put into the task's headers, else the asynq task ID. An empty result
// means the same as no KeyFunc. It goes before the Producer's key, so for tasks of a
// Producer the two must agree: what the Producer calls queued would stay so.
func WithKeyFunc(f func(*asynq.Task) string) Option {
	return func(c *config) { c.keyFunc = f; c.refuse("WithKeyFunc", f == nil) }
}

// WithClassifier adds a classification of errors that goes before the built-in
// one; see [Classifier]. The first that answers wins.
func WithClassifier(f Classifier) Option {
	return func(c *config) { c.classifiers = append(c.classifiers, f); c.refuse("WithClassifier", f == nil) }
}

// WithRetryBudget sets how many retries a Producer gives a run unless its caller
// says otherwise. 1 to 1000. Defaults to 5.
func WithRetryBudget(n int) Option { return func(c *config) { c.policy.maxRetry = n } }

// WithBackoff sets the retry delay for transient errors: full jitter over
// base × 2^n, at least base/2 and at most limit. Base at least 1 ms, limit at least base and at most 1 h.
// Defaults to 1 s and 120 s.
func WithBackoff(base, limit time.Duration) Option {
	return func(c *config) { c.policy.base, c.policy.limit = base, limit }
}

// WithOnFailed sets a function that is called once a run has failed for good: its
// handler said so, it crashed too often, nothing could deliver it any more, or its
// deadline passed in the queue. It runs in the worker that
// found out, after the outcome was written, under a context that its task's end
// does not cancel; a panic in it is logged. It is called once per failure, with two
// exceptions: never, if the worker dies between the write and the call; twice, if Redis
// does not answer in between.
func WithOnFailed(f func(context.Context, Failure)) Option {
	return func(c *config) { c.onFailed = f; c.refuse("WithOnFailed", f == nil) }
}

// WithLogger sets the logger. Defaults to slog.Default().
func WithLogger(l *slog.Logger) Option {
	return func(c *config) { c.logger = l; c.refuse("WithLogger", l == nil) }
}

// WithProcess sets how this process is called in answers and logs ("held by
// ..."), at most 128 bytes. Defaults to the host name and process ID. A random part
// is always added.
func WithProcess(label string) Option { return func(c *config) { c.processLabel = label } }

func (c *config) refuse(option string, isNil bool) {
	if isNil {
		c.nils = append(c.nils, option)
	}
}

func (c *config) validate() error {
	if err := runkey.ValidatePrefix(c.prefix); err != nil {
		return setting.Invalidf("WithPrefix: %w", err)
	}
	switch {
	case c.ttl < time.Second || c.ttl > time.Hour:
		return setting.Invalidf("WithTTL: %v is not between 1s and 1h", c.ttl)
	case c.grace < 0 || c.grace > time.Hour:
		return setting.Invalidf("WithGrace: %v is not between 0 and 1h", c.grace)
	case c.progress != 0 && c.progress < c.ttl:
		return setting.Invalidf("WithProgressTimeout: %v is shorter than the TTL %v", c.progress, c.ttl)
	case c.retention < time.Minute || c.retention < 10*c.ttl:
		return setting.Invalidf("WithRetention: %v is shorter than 1m or than ten TTLs (%v)", c.retention, 10*c.ttl)
	case c.maxCrashes < 1 || c.maxCrashes > 1000:
		return setting.Invalidf("WithMaxCrashes: %d is not between 1 and 1000", c.maxCrashes)
	case c.maxResult < 0 || c.maxResult > 16<<20:
		return setting.Invalidf("WithMaxResult: %d is not between 0 and %d", c.maxResult, 16<<20)
	case len(c.processLabel) > 128:
		return setting.Invalidf("WithProcess: %d bytes, at most 128 are allowed", len(c.processLabel))
	case !utf8.ValidString(c.processLabel):
		return setting.Invalidf("WithProcess: %q is not valid UTF-8", c.processLabel)
	case len(c.nils) > 0:
		return setting.Invalidf("%s: nil", c.nils[0])
	}
	return c.policy.validate()
}
