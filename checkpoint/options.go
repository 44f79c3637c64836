package checkpoint

import (
	"log/slog"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/nexuscore/onceq/internal/runkey"
	"github.com/nexuscore/onceq/internal/setting"
)

// Option configures a store or a run. Options given to [NewRedisStore] hold for
// every run on that store; options given to [Run] go over them.
type Option func(*config)

type config struct {
	logger      *slog.Logger
	prefix      string
	ttl         time.Duration
	timeout     time.Duration
	maxSize     int
	version     int
	codec       Codec
	sealer      Sealer
	sealing     bool // WithSealer was given: a nil one would mean plain text
	migration   bool
	strict      bool
	runMissing  bool
	fingerprint *string
	observers   []func(Event)
	breaker     *breakerConfig
}

type breakerConfig struct {
	failures int
	open     time.Duration
}

func defaults() config {
	return config{
		logger: slog.Default(), prefix: "onceq", ttl: 24 * time.Hour, timeout: time.Second,
		maxSize: 16 << 20, version: 1, codec: JSON,
	}
}

// WithLogger sets where log lines go; slog.Default() by default. State, step
// results and keys of a sealer are never logged.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.logger = l } }

// WithPrefix sets the tenant prefix under which runs named by [ContextWithKey] are
// kept; "onceq" by default. Under a lease the guard's prefix counts.
func WithPrefix(prefix string) Option { return func(c *config) { c.prefix = prefix } }

// WithTTL sets how long a snapshot and its steps are kept after they were last
// written; 24 h by default, at least 1 ms. Under a guard it is never less than the
// lease's TTL and the longest wait of the guard's retry policy together; where a
// host has a longer delay of its own, it must be longer than that.
func WithTTL(d time.Duration) Option { return func(c *config) { c.ttl = d } }

// WithTimeout bounds each call of the store; 1 s by default, at least 1 ms. A
// call that takes longer is passed through.
func WithTimeout(d time.Duration) Option { return func(c *config) { c.timeout = d } }

// WithMaxSize bounds one snapshot, and one step's result, in bytes before
// compression; 16 MiB by default. A larger one is not stored, see [SizeError];
// one that is met is discarded before it can take more memory than that.
func WithMaxSize(bytes int) Option { return func(c *config) { c.maxSize = bytes } }

// WithVersion sets the version of the state's meaning; 1 by default. Raise it
// with a change that a decoder cannot see, such as another unit. A snapshot of
// another version, older or newer, is discarded.
func WithVersion(v int) Option { return func(c *config) { c.version = v } }

// WithCodec sets how the state and step results become bytes; [JSON] by default.
func WithCodec(codec Codec) Option { return func(c *config) { c.codec = codec } }

// WithSealer encrypts snapshots and step results, see [NewAESGCM]. What is
// stored in plain text is refused from then on, see [WithMigration].
func WithSealer(s Sealer) Option { return func(c *config) { c.sealer, c.sealing = s, true } }

// WithMigration accepts plain text besides what the sealer opens, for as long as
// runs that began without a sealer are under way.
func WithMigration() Option { return func(c *config) { c.migration = true } }

// WithStrict makes a state that cannot be stored, or is too large, fail the run
// instead of letting it go on without a checkpoint. Such an error is permanent.
func WithStrict() Option { return func(c *config) { c.strict = true } }

// WithRunMissing changes what happens when the phases that a snapshot calls
// done are not the first ones of the list any more, because a deploy inserted,
// removed, renamed or reordered phases. By default such a snapshot is
// discarded and the run starts from the beginning; with this option the
// phases that are not done run, in the order of the list, on the state as the
// snapshot has it. It is for phases that can run after later ones.
func WithRunMissing() Option { return func(c *config) { c.runMissing = true } }

// WithFingerprint names the input of the run; a snapshot of another one is
// discarded. The default is the payload's fingerprint under a lease, and that
// of the encoded initial state without one. Set it when the initial state holds
// what changes each time, such as the time. It is UTF-8: write the bytes of a hash
// in hex.
func WithFingerprint(s string) Option { return func(c *config) { c.fingerprint = &s } }

// WithObserver calls fn for each [Event] of a run, in order, on the goroutine
// that called [Run]. It may be given more than once.
func WithObserver(fn func(Event)) Option {
	return func(c *config) { c.observers = append(c.observers[:len(c.observers):len(c.observers)], fn) }
}

// WithBreaker sets after how many failures in a row a Redis server is left alone,
// and for how long; 3 and 60 s by default. Of a cluster each server counts for
// itself. It is an option of [NewRedisStore].
func WithBreaker(failures int, open time.Duration) Option {
	return func(c *config) { c.breaker = &breakerConfig{failures, open} }
}

func (c *config) apply(opts []Option) error {
	if err := setting.Apply(c, opts); err != nil {
		return err
	}
	return c.validate()
}

func (c *config) validate() error {
	switch {
	case c.logger == nil:
		return setting.Invalidf("WithLogger: the logger is nil")
	case c.ttl < time.Millisecond:
		return setting.Invalidf("WithTTL: %v, at least 1ms is allowed", c.ttl)
	case c.timeout < time.Millisecond:
		return setting.Invalidf("WithTimeout: %v, at least 1ms is allowed", c.timeout)
	case c.maxSize < 1 || c.maxSize > 512<<20:
		return setting.Invalidf("WithMaxSize: %d bytes, 1 to 512 MiB are allowed", c.maxSize)
	case c.version < 1:
		return setting.Invalidf("WithVersion: %d, at least 1 is allowed", c.version)
	case setting.IsNil(c.codec):
		return setting.Invalidf("WithCodec: the codec is nil")
	// Both are kept in a JSON object, which would give them back changed.
	case !utf8.ValidString(c.codec.Name()):
		return setting.Invalidf("WithCodec: its name %q is not valid UTF-8", c.codec.Name())
	case c.fingerprint != nil && !utf8.ValidString(*c.fingerprint):
		return setting.Invalidf("WithFingerprint: %.80q is not valid UTF-8; write bytes in hex, for example with hex.EncodeToString", *c.fingerprint)
	case c.sealing && setting.IsNil(c.sealer):
		return setting.Invalidf("WithSealer: the sealer is nil; what is stored would be plain text")
	case c.migration && c.sealer == nil:
		return setting.Invalidf("WithMigration: there is no sealer to migrate to, see WithSealer")
	case c.breaker != nil && (c.breaker.failures < 1 || c.breaker.open < time.Millisecond):
		return setting.Invalidf("WithBreaker: %d failures and %v, at least 1 and 1ms are allowed", c.breaker.failures, c.breaker.open)
	}
	for _, o := range c.observers {
		if o == nil {
			return setting.Invalidf("WithObserver: the function is nil")
		}
	}
	if err := runkey.ValidatePrefix(c.prefix); err != nil {
		return setting.Invalidf("WithPrefix: %v", err)
	}
	return nil
}

// EnvSwitch is the environment variable that turns checkpoints off: with "0",
// "false" or "off" phases and steps run and nothing is read or written. It is
// read at each [Run]. A value that is not known turns nothing off and is logged.
const EnvSwitch = "ONCEQ_CHECKPOINT"

var saidOff, saidUnknown sync.Once

func switchedOff(l *slog.Logger) bool {
	off, unknown := setting.SwitchedOff(EnvSwitch)
	if off {
		saidOff.Do(func() { l.Warn("onceq: checkpoints are switched off", "by", EnvSwitch) })
	}
	if unknown != "" {
		saidUnknown.Do(func() {
			l.Warn("onceq: checkpoints stay on, their switch has a value that is not known", "by", EnvSwitch, "value", unknown, "allowed", "0, false, off")
		})
	}
	return off
}
