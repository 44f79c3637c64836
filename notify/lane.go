package notify

import (
	"context"
	"sync"
	"time"

	"github.com/nexuscore/onceq/internal/database"
)

// lane is one destination's way out: workers, gate and clock of its own, so
// that what holds up one destination holds up no other.
type lane struct {
	o      *Outbox
	name   string
	dest   Destination
	finder Reconciler // nil if the destination cannot be asked
	policy Policy
	slots  chan struct{} // one element for each attempt under way
	kick   chan struct{}

	mu      sync.Mutex // guards the gate
	closed  time.Time  // nothing is sent before this
	limited int        // rate limited answers since the last other one
}

func newLane(o *Outbox, d Destination) *lane {
	finder, _ := d.(Reconciler)
	policy, chosen := o.policies[d.Name()]
	if a, ok := d.(PolicyAdviser); ok && !chosen {
		policy = a.DefaultPolicy()
	}
	return &lane{
		o: o, name: d.Name(), dest: d, finder: finder, policy: policy,
		slots: make(chan struct{}, o.concurrency), kick: make(chan struct{}, 1),
	}
}

func (l *lane) wake() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// run works until ctx ends; its workers belong to wg.
func (l *lane) run(ctx context.Context, wg *sync.WaitGroup) {
	for ctx.Err() == nil {
		if d := l.gate(); d > 0 {
			database.Pause(ctx, d) // no kick opens the gate
			continue
		}
		found, began, err := l.pass(ctx, wg)
		switch {
		case err != nil:
			if ctx.Err() == nil {
				l.o.logger.WarnContext(ctx, "notify: cannot read the outbox", "destination", l.name, "err", err)
			}
			database.Pause(ctx, l.o.poll)
		case began > 0:
		case found > 0: // others were faster with all of it
			database.Pause(ctx, l.o.poll/20)
		default:
			l.idle(ctx)
		}
	}
}

// idle waits for the next poll, or for less when kicked.
func (l *lane) idle(ctx context.Context) {
	t := time.NewTimer(l.o.poll)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.kick:
	case <-ctx.Done():
	}
}

// pass starts work on what is due, and reports how much it found and how much of it
// it began. Doubts go first: they are few, and old.
func (l *lane) pass(ctx context.Context, wg *sync.WaitGroup) (found, began int, err error) {
	for _, state := range []State{StateUncertain, StatePending} {
		ids, err := l.o.store.due(ctx, l.name, state, 4*cap(l.slots))
		if err != nil {
			return found, began, err
		}
		found += len(ids)
		for _, id := range ids {
			select {
			case l.slots <- struct{}{}:
			case <-ctx.Done():
				return found, began, nil
			}
			ok, err := l.begin(ctx, id, state, wg)
			if ok {
				began++
			} else {
				<-l.slots
			}
			if err != nil || l.gate() > 0 {
				return found, began, err
			}
		}
	}
	return found, began, nil
}

// begin claims a row and starts work on it; a slot is taken for it.
func (l *lane) begin(ctx context.Context, id int64, from State, wg *sync.WaitGroup) (bool, error) {
	if ctx.Err() != nil || l.gate() > 0 {
		return false, nil
	}
	c, err := l.o.store.claim(ctx, id, from, l.o.lease)
	if c == nil {
		return false, err
	}
	if err != nil && from == StateUncertain {
		return false, err // asked again after the lease
	}
	wg.Go(func() {
		defer func() { <-l.slots }()
		switch {
		case err != nil:
			l.giveBack(ctx, &c.row, err)
		case from == StatePending:
			l.attempt(ctx, c)
		default:
			l.reconcile(ctx, c)
		}
	})
	return true, err
}

// gate returns how long the destination must still be left alone.
func (l *lane) gate() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Until(l.closed)
}

// close shuts the gate after a rate limited answer, and returns for how long:
// as asked, else longer each time.
func (l *lane) close(retryAfter time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limited++
	d := retryAfter
	if d <= 0 {
		d = backoff(l.limited, l.o.backoffBase, l.o.backoffCap)
	}
	d = min(d, maxRetryAfter)
	if until := time.Now().Add(d); until.After(l.closed) {
		l.closed = until
	}
	return d
}

// open records an answer that was not a rate limit.
func (l *lane) open() {
	l.mu.Lock()
	l.limited = 0
	l.mu.Unlock()
}

// maxRetryAfter bounds what a destination can ask for: a broken header does not
// silence it for ever.
const maxRetryAfter = time.Hour
