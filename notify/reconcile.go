package notify

import (
	"context"
	"errors"
	"fmt"
)

// reconcile asks the destination about a claimed row in doubt.
func (l *lane) reconcile(ctx context.Context, c *claimed) {
	if l.finder == nil { // it was one that can be asked when the doubt arose
		l.decide(ctx, &c.row, errors.New("the destination cannot be asked"), map[string]any{})
		return
	}
	m, err := c.message()
	if err != nil {
		l.settle(ctx, &c.row, StateHeld, err, nil)
		return
	}
	// "Not there" counts if the question was asked this late.
	asked := l.o.store.time()
	settled := fromMillis(c.DoubtAt).Add(l.o.grace)
	found := false
	receipt, err := l.call(ctx, func(ctx context.Context) (r Receipt, err error) {
		r, found, err = l.finder.Find(ctx, m)
		return r, err
	})
	e := classify(err)
	if err == nil || !e.RateLimited {
		l.asking.passed()
	}
	switch {
	case err != nil:
		l.cannotTell(ctx, &c.row, e)
	case found:
		l.sent(ctx, &c.row, receipt)
	case asked.Before(settled):
		l.settle(ctx, &c.row, StateUncertain, nil, map[string]any{"next_at": settled.UnixMilli()})
	case c.Attempts >= l.o.maxAttempts:
		l.settle(ctx, &c.row, StateFailed, fmt.Errorf("%d attempts; the last is not at the destination", c.Attempts), nil)
	default:
		l.settle(ctx, &c.row, StatePending, errors.New("not at the destination"), map[string]any{
			"next_at": l.in(l.wait(c.Attempts, &SendError{})),
		})
	}
}

// cannotTell asks again later, and lets the policy decide when that is useless.
func (l *lane) cannotTell(ctx context.Context, r *row, e *SendError) {
	checks := r.Checks + 1
	switch {
	case e.RateLimited: // says nothing about the row, and does not count
		d := l.asking.refused(e.RetryAfter)
		l.settle(ctx, r, StateUncertain, e, map[string]any{"next_at": l.in(d)})
	case e.Kind == KindPermanent || checks >= l.o.maxChecks:
		l.decide(ctx, r, fmt.Errorf("asked %d times: %w", checks, e), map[string]any{"checks": checks})
	default:
		l.settle(ctx, r, StateUncertain, e, map[string]any{"checks": checks, "next_at": l.in(l.wait(checks, e))})
	}
}
