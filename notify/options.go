package notify

import (
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nexuscore/onceq/internal/setting"
)

// Policy says what becomes of a message that may have been sent when its
// destination cannot tell: a webhook that timed out, for example.
type Policy int

const (
	// PolicyHold keeps it for a person to decide, see [Outbox.Resolve]. The default.
	PolicyHold Policy = iota
	// PolicyResend sends it again: people may be told twice. Right for destinations
	// that recognise a repeated message by its ID.
	PolicyResend
	// PolicyDrop gives it up: people may not be told. The row becomes failed.
	PolicyDrop
)

// String names the policy.
func (p Policy) String() string {
	switch p {
	case PolicyHold:
		return "hold"
	case PolicyResend:
		return "resend"
	case PolicyDrop:
		return "drop"
	}
	return fmt.Sprintf("Policy(%d)", int(p))
}

// Option changes a setting of [New].
type Option func(*config)

type config struct {
	table       string
	logger      *slog.Logger
	policies    map[string]Policy
	concurrency int
	poll        time.Duration
	sendTimeout time.Duration
	lease       time.Duration
	grace       time.Duration
	backoffBase time.Duration
	backoffCap  time.Duration
	maxAttempts int
	maxChecks   int
	maxPayload  int
	now         func() time.Time // tests; nil for the database's clock
}

func defaults() config {
	return config{
		table:       "notification_logs",
		logger:      slog.Default(),
		policies:    map[string]Policy{},
		concurrency: 4,
		poll:        time.Second,
		sendTimeout: 10 * time.Second,
		lease:       30 * time.Second,
		grace:       10 * time.Second,
		backoffBase: time.Second,
		backoffCap:  5 * time.Minute,
		maxAttempts: 30,
		maxChecks:   30,
		maxPayload:  256 << 10,
	}
}

// WithTable names the table; default "notification_logs". Lower-case letters,
// digits and underscores, at most 48 bytes, for names of indexes are made of it,
// and no word that one of the supported databases reserves.
func WithTable(name string) Option { return func(c *config) { c.table = name } }

// WithLogger sets where transitions are logged; default slog.Default().
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.logger = l } }

// WithPolicy sets the policy of one destination; default [PolicyHold], or what a
// [PolicyAdviser] advises.
func WithPolicy(destination string, p Policy) Option {
	return func(c *config) { c.policies[destination] = p }
}

// WithConcurrency bounds how many messages one process sends to one destination
// at a time; default 4, at most 1,000. Each destination has workers of its own.
func WithConcurrency(n int) Option { return func(c *config) { c.concurrency = n } }

// WithPollInterval sets how often the table is read when nothing happens;
// default 1 s, from 1 ms to 1 h. It bounds how late this process sees what others
// enqueue.
func WithPollInterval(d time.Duration) Option { return func(c *config) { c.poll = d } }

// WithSendTimeout bounds one attempt to send and one question to a destination;
// default 10 s, from 1 ms to 1 h. It also bounds how long a shutdown takes.
func WithSendTimeout(d time.Duration) Option { return func(c *config) { c.sendTimeout = d } }

// WithLeaseTTL sets how long a worker keeps a row to itself; default 30 s, at least
// twice the send timeout, at most 24 h. What a killed worker had in hand is noticed
// after that.
func WithLeaseTTL(d time.Duration) Option { return func(c *config) { c.lease = d } }

// WithReconcileGrace sets how long after an attempt ended a destination may
// still not show what it took; default 10 s, from 0 to 24 h. Before that, "not
// there" is not believed.
func WithReconcileGrace(d time.Duration) Option { return func(c *config) { c.grace = d } }

// WithBackoff sets the pause after the first failed attempt and its limit as it
// doubles; default 1 s and 5 min, from 1 ms to 24 h. The pause is a random part of
// that. A destination's own RetryAfter, up to an hour, is honoured where it is longer.
func WithBackoff(base, limit time.Duration) Option {
	return func(c *config) { c.backoffBase, c.backoffCap = base, limit }
}

// WithMaxAttempts sets how many attempts a message has before it is failed, or
// held if the last may have sent it; default 30, which is about an hour and a
// half; at most 10,000. Attempts that the destination turned away by rate limit do
// not count.
func WithMaxAttempts(n int) Option { return func(c *config) { c.maxAttempts = n } }

// WithMaxChecks sets how often a destination is asked about one message without
// being able to tell before the policy applies; default 30, at most 10,000.
func WithMaxChecks(n int) Option { return func(c *config) { c.maxChecks = n } }

// WithMaxPayload bounds Payload and Content of an event together, in bytes of
// JSON; default 256 KiB, from 1 byte to 8 MiB.
func WithMaxPayload(n int) Option { return func(c *config) { c.maxPayload = n } }

var tableName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,47}$`)

func (c *config) check() error {
	switch {
	case !tableName.MatchString(c.table):
		return setting.Invalidf("WithTable: %q, lower-case letters, digits and _ are allowed, at most 48 bytes, no digit first", c.table)
	case slices.Contains(reserved, c.table), strings.HasPrefix(c.table, "sqlite_"):
		return setting.Invalidf("WithTable: %q is a reserved word of SQL", c.table)
	case c.logger == nil:
		return setting.Invalidf("WithLogger: nil, a logger is needed; slog.DiscardHandler makes a silent one")
	}
	for _, d := range []struct {
		name               string
		value, least, most time.Duration
	}{
		{"WithPollInterval", c.poll, time.Millisecond, time.Hour},
		{"WithSendTimeout", c.sendTimeout, time.Millisecond, time.Hour},
		{"WithLeaseTTL", c.lease, 2 * c.sendTimeout, 24 * time.Hour},
		{"WithReconcileGrace", c.grace, 0, 24 * time.Hour},
		{"WithBackoff, base", c.backoffBase, time.Millisecond, 24 * time.Hour},
		{"WithBackoff, limit", c.backoffCap, c.backoffBase, 24 * time.Hour},
	} {
		if d.value < d.least || d.value > d.most {
			return setting.Invalidf("%s: %v, from %v to %v are allowed", d.name, d.value, d.least, d.most)
		}
	}
	for _, n := range []struct {
		name        string
		value, most int
	}{
		{"WithConcurrency", c.concurrency, 1000},
		{"WithMaxAttempts", c.maxAttempts, 10_000},
		{"WithMaxChecks", c.maxChecks, 10_000},
		{"WithMaxPayload", c.maxPayload, 8 << 20},
	} {
		if n.value < 1 || n.value > n.most {
			return setting.Invalidf("%s: %d, from 1 to %d are allowed", n.name, n.value, n.most)
		}
	}
	for name, p := range c.policies {
		if p < PolicyHold || p > PolicyDrop {
			return setting.Invalidf("WithPolicy: %v for %q, PolicyHold, PolicyResend and PolicyDrop are allowed", p, name)
		}
	}
	return nil
}
