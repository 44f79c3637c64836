package notify

import (
	"fmt"
	"log/slog"
	"regexp"
	"time"
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
// digits and underscores, no reserved word, at most 48 bytes, for names of indexes
// are made of it.
func WithTable(name string) Option { return func(c *config) { c.table = name } }

// WithLogger sets where transitions are logged; default slog.Default().
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.logger = l } }

// WithPolicy sets the policy of one destination; default [PolicyHold], or what a
// [PolicyAdviser] advises.
func WithPolicy(destination string, p Policy) Option {
	return func(c *config) { c.policies[destination] = p }
}

// WithConcurrency bounds how many messages one process sends to one destination
// at a time; default 4. Each destination has workers of its own.
func WithConcurrency(n int) Option { return func(c *config) { c.concurrency = n } }

// WithPollInterval sets how often the table is read when nothing happens;
// default 1 s, at least 1 ms. It bounds how late this process sees what others enqueue.
func WithPollInterval(d time.Duration) Option { return func(c *config) { c.poll = d } }

// WithSendTimeout bounds one attempt to send and one question to a destination;
// default 10 s, at least 1 ms. It also bounds how long a shutdown takes.
func WithSendTimeout(d time.Duration) Option { return func(c *config) { c.sendTimeout = d } }

// WithLeaseTTL sets how long a worker keeps a row to itself; default 30 s, at least
// twice the send timeout. What a killed worker had in hand is noticed after that.
func WithLeaseTTL(d time.Duration) Option { return func(c *config) { c.lease = d } }

// WithReconcileGrace sets how long after an attempt ended a destination may
// still not show what it took; default 10 s. Before that, "not there" is not believed.
func WithReconcileGrace(d time.Duration) Option { return func(c *config) { c.grace = d } }

// WithBackoff sets the pause after the first failed attempt and its limit as it
// doubles; default 1 s and 5 min. The pause is a random part of that. A
// destination's own RetryAfter, up to an hour, is honoured where it is longer.
func WithBackoff(base, limit time.Duration) Option {
	return func(c *config) { c.backoffBase, c.backoffCap = base, limit }
}

// WithMaxAttempts sets how many attempts a message has before it is failed, or
// held if the last may have sent it; default 30, which is about an hour and a
// half. Attempts that the destination turned away by rate limit do not count.
func WithMaxAttempts(n int) Option { return func(c *config) { c.maxAttempts = n } }

// WithMaxChecks sets how often a destination is asked about one message without
// being able to tell before the policy applies; default 30.
func WithMaxChecks(n int) Option { return func(c *config) { c.maxChecks = n } }

// WithMaxPayload bounds Payload and Content of an event together, in bytes of
// JSON; default 256 KiB, at most 8 MiB.
func WithMaxPayload(n int) Option { return func(c *config) { c.maxPayload = n } }

var tableName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,47}$`)

func (c *config) check() error {
	switch {
	case !tableName.MatchString(c.table):
		return fmt.Errorf("notify: WithTable(%q): allowed are lower-case letters, digits and _, at most 48 bytes, no digit first", c.table)
	case c.logger == nil:
		return fmt.Errorf("notify: WithLogger(nil): a logger is required")
	case c.lease < 2*c.sendTimeout:
		return fmt.Errorf("notify: WithLeaseTTL(%v): at least twice the send timeout of %v", c.lease, c.sendTimeout)
	case c.backoffCap < c.backoffBase:
		return fmt.Errorf("notify: WithBackoff(%v, %v): the limit is shorter than the base", c.backoffBase, c.backoffCap)
	case c.maxPayload > 8<<20:
		return fmt.Errorf("notify: WithMaxPayload(%d): at most %d", c.maxPayload, 8<<20)
	case c.grace < 0:
		return fmt.Errorf("notify: WithReconcileGrace(%v): not negative", c.grace)
	}
	for name, d := range map[string]time.Duration{
		"WithPollInterval": c.poll, "WithSendTimeout": c.sendTimeout, "WithBackoff": c.backoffBase,
	} {
		if d < time.Millisecond {
			return fmt.Errorf("notify: %s(%v): at least 1ms", name, d)
		}
	}
	for name, n := range map[string]int{
		"WithConcurrency": c.concurrency, "WithMaxAttempts": c.maxAttempts,
		"WithMaxChecks": c.maxChecks, "WithMaxPayload": c.maxPayload,
	} {
		if n < 1 {
			return fmt.Errorf("notify: %s(%d): at least 1", name, n)
		}
	}
	for name, p := range c.policies {
		if p < PolicyHold || p > PolicyDrop {
			return fmt.Errorf("notify: WithPolicy(%q, %v): allowed are PolicyHold, PolicyResend and PolicyDrop", name, p)
		}
	}
	return nil
}
