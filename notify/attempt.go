package notify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"gorm.io/gorm"

	"github.com/nexuscore/onceq/internal/database"
	"github.com/nexuscore/onceq/internal/panics"
)

// attempt sends a claimed row once and writes what came of it.
func (l *lane) attempt(ctx context.Context, c *claimed) {
	m, err := c.message()
	if err != nil {
		l.settle(ctx, &c.row, StateFailed, err, nil)
		return
	}
	// The last look at the lease before the POST. A process that was frozen since
	// the claim may have lost the row; the send must fit into what is left.
	if ctx.Err() != nil || time.Until(c.until) < l.o.sendTimeout+l.o.lease/10 {
		l.giveBack(ctx, &c.row, errors.New("not begun: shutting down, or too little of the lease was left"))
		return
	}
	receipt, err := l.call(ctx, func(ctx context.Context) (Receipt, error) { return l.dest.Send(ctx, m) })
	if err == nil {
		l.sending.passed()
		l.sent(ctx, &c.row, receipt)
		return
	}
	e := classify(err)
	if !e.RateLimited || e.Kind != KindNotSent {
		l.sending.passed()
	}
	switch e.Kind {
	case KindNotSent:
		l.notSent(ctx, &c.row, e)
	case KindPermanent:
		l.settle(ctx, &c.row, StateFailed, e, nil)
	default:
		l.doubt(ctx, &c.row, e)
	}
}

// call calls a destination within the send timeout. It is not cancelled by a
// shutdown, which would leave a message in doubt that takes a second to finish.
func (l *lane) call(ctx context.Context, f func(context.Context) (Receipt, error)) (r Receipt, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.o.sendTimeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			// It may have been sent, also where the value is an error that says otherwise.
			err = &SendError{Kind: KindUncertain, Err: panics.Error(p)}
		}
	}()
	return f(ctx)
}

func (l *lane) sent(ctx context.Context, r *row, receipt Receipt) {
	l.settle(ctx, r, StateSent, nil, map[string]any{
		"receipt": encodeReceipt(receipt), "sent_at": l.o.store.millis(), "last_error": "",
	})
}

func (l *lane) notSent(ctx context.Context, r *row, e *SendError) {
	if e.RateLimited {
		d := l.sending.refused(e.RetryAfter)
		l.settle(ctx, r, StatePending, e, map[string]any{"next_at": l.in(d), "attempts": lessOne})
		return
	}
	if r.Attempts >= l.o.maxAttempts {
		l.settle(ctx, r, StateFailed, fmt.Errorf("%d attempts: %w", r.Attempts, e), nil)
		return
	}
	l.settle(ctx, r, StatePending, e, map[string]any{"next_at": l.in(l.wait(r.Attempts, e))})
}

// wait is the pause after the nth attempt or question.
func (l *lane) wait(n int, e *SendError) time.Duration {
	return max(backoff(n, l.o.backoffBase, l.o.backoffCap), min(e.RetryAfter, maxRetryAfter))
}

// in is the time d from now as rows have it.
func (l *lane) in(d time.Duration) int64 { return l.o.store.time().Add(d).UnixMilli() }

// giveBack returns a claimed row that was definitely not sent; the attempt does
// not count.
func (l *lane) giveBack(ctx context.Context, r *row, why error) {
	l.settle(ctx, r, StatePending, why, map[string]any{"next_at": l.in(0), "attempts": lessOne})
}

var lessOne = gorm.Expr("attempts - 1")

// doubt records that a row may have been sent. A destination that can be asked
// will be; else the policy decides at once.
func (l *lane) doubt(ctx context.Context, r *row, why error) {
	set := map[string]any{"doubt_at": l.in(0), "checks": 0, "next_at": l.in(0)}
	if l.finder != nil {
		l.settle(ctx, r, StateUncertain, why, set)
		return
	}
	l.decide(ctx, r, why, set)
}

// decide applies the destination's policy to a row of which nobody can tell
// whether it was sent.
func (l *lane) decide(ctx context.Context, r *row, why error, set map[string]any) {
	switch {
	case l.policy == PolicyDrop:
		l.settle(ctx, r, StateFailed, fmt.Errorf("dropped, may have been sent: %w", why), set)
	case l.policy == PolicyResend && r.Attempts < l.o.maxAttempts:
		set["next_at"] = l.in(backoff(r.Attempts, l.o.backoffBase, l.o.backoffCap))
		l.settle(ctx, r, StatePending, why, set)
	default:
		l.settle(ctx, r, StateHeld, why, set)
	}
}

// settle writes what became of a row. What is known is written although ctx has
// ended: it is tried until the database answers, and for a bounded time after a
// shutdown. A row that stays unwritten is uncertain once its lease is over.
func (l *lane) settle(ctx context.Context, r *row, to State, why error, set map[string]any) {
	if set == nil {
		set = map[string]any{}
	}
	if why != nil {
		set["last_error"] = database.Storable(why.Error(), maxLastError)
	}
	l.o.settling.Store(r.ID, nil)
	err := l.write(ctx, r, to, set)
	l.o.settling.Delete(r.ID)
	attrs := []any{
		"row", r.ID, "destination", l.name, "run", r.RunID, "event", r.EventType, "generation", r.Generation,
		"attempt", r.Attempts, "from", string(r.Status), "to", string(to),
	}
	if why != nil {
		attrs = append(attrs, "why", database.Storable(why.Error(), maxLastError))
	}
	switch {
	case errors.Is(err, errStale):
		l.o.logger.WarnContext(ctx, "notify: another worker has the row, result ignored", attrs...)
	case err != nil:
		l.o.logger.ErrorContext(ctx, "notify: cannot write what became of the row", append(attrs, "err", err)...)
	default:
		l.o.logger.Log(ctx, levels[to], "notify: "+string(to), attrs...)
	}
}

var levels = map[State]slog.Level{
	StatePending: slog.LevelWarn, StateUncertain: slog.LevelWarn, StateHeld: slog.LevelError, StateFailed: slog.LevelError,
}

// write repeats the same change until it is known to have taken effect or not.
func (l *lane) write(ctx context.Context, r *row, to State, set map[string]any) error {
	detached, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(settleTime, cancel) })
	defer stop()
	token := newToken()
	for n := 1; ; n++ {
		try, done := context.WithTimeout(detached, settleTime)
		err := l.o.store.move(try, r, to, token, set)
		done()
		if err == nil || errors.Is(err, errStale) || detached.Err() != nil {
			return err
		}
		database.Pause(detached, backoff(n, 20*time.Millisecond, time.Second))
	}
}
