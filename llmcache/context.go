package llmcache

import (
	"context"
	"time"
	"unicode/utf8"

	"github.com/nexuscore/onceq/internal/setting"
)

// Sharing says who sees an answer.
type Sharing int

const (
	// SharedScope answers are seen by all runs of a tenant for a day. It is the
	// default outside runs.
	SharedScope Sharing = iota + 1
	// RunScope answers belong to one run: the nth identical call in a phase and
	// step gets the nth answer again when the run resumes there, and no other run
	// sees it. It is the default inside runs; outside it is no caching.
	RunScope
)

// CallOption changes how the calls under a context are cached.
type CallOption func(*settings)

type settings struct {
	sharing Sharing
	ttl     time.Duration
	bypass  bool
	refresh bool
	tenant  string
	label   string
	limit   *Budget
	refusal
}

// refusal keeps the first thing that options got wrong.
type refusal struct{ err error }

func (r *refusal) refuse(format string, args ...any) {
	if r.err == nil {
		r.err = setting.Invalidf(format, args...)
	}
}

type settingsKey struct{}

// With returns a context under which calls are cached as opts say. Options of an
// outer With stay unless they are set again. A value that is not allowed, and an
// option that is nil, make the calls fail, with an error that wraps [ErrInvalid] and
// names it.
func With(ctx context.Context, opts ...CallOption) context.Context {
	s := settingsOf(ctx)
	if err := setting.Apply(&s, opts); err != nil {
		s.refuse("With: %w", err)
	}
	return context.WithValue(ctx, settingsKey{}, s)
}

func settingsOf(ctx context.Context) settings {
	s, _ := ctx.Value(settingsKey{}).(settings)
	return s
}

// Scope chooses who sees the answers.
func Scope(s Sharing) CallOption {
	return func(c *settings) {
		if s != SharedScope && s != RunScope {
			c.refuse("Scope: %d, SharedScope and RunScope are allowed", s)
		}
		c.sharing = s
	}
}

// TTL sets how long the answers live; from 1 ms to a year.
func TTL(d time.Duration) CallOption {
	return func(c *settings) {
		if d < time.Millisecond || d > longest {
			c.refuse("TTL: %v, from 1ms to %v are allowed", d, longest)
		}
		c.ttl = d
	}
}

// Bypass makes calls as if there were no cache; the ledger still counts them.
func Bypass() CallOption { return func(c *settings) { c.bypass = true } }

// Refresh makes calls although there is an answer, and replaces it.
func Refresh() CallOption { return func(c *settings) { c.refresh = true } }

// Tenant keeps the answers of one customer apart from those of others. Up to 128
// bytes of UTF-8.
func Tenant(name string) CallOption {
	return func(c *settings) {
		if len(name) > 128 || !utf8.ValidString(name) {
			c.refuse("Tenant: %.20q... has %d bytes, up to 128 bytes of valid UTF-8 are allowed", name, len(name))
		}
		c.tenant = name
	}
}

// Label names one of several identical calls in a run. Which of them comes first
// decides who gets which answer when a run resumes; in goroutines that is
// chance. A label makes it certain:
//
//	for i := range 3 {
//		g.Go(func() error { return sample(llmcache.With(ctx, llmcache.Label(strconv.Itoa(i)))) })
//	}
//
// Up to 128 bytes of UTF-8. It does nothing in the shared scope, where identical
// calls have one answer.
func Label(name string) CallOption {
	return func(c *settings) {
		if len(name) > 128 || !utf8.ValidString(name) {
			c.refuse("Label: %.20q... has %d bytes, up to 128 bytes of valid UTF-8 are allowed", name, len(name))
		}
		c.label = name
	}
}

// Limit sets the budget of the run that ctx belongs to, in place of WithBudget's.
// All calls of a run should have the same one.
func Limit(b Budget) CallOption {
	return func(c *settings) {
		if name, n := b.negative(); n < 0 {
			c.refuse("Limit: %s is %d, at least 0 is allowed (0 is no limit)", name, n)
		}
		c.limit = &b
	}
}
