package notify

import (
	"context"
	"sync"
	"time"

	"github.com/nexuscore/onceq/internal/database"
)

// lane is one destination's way out: workers, gates and polls of its own, so
// that what holds up one destination holds up no other.
type lane struct {
	o      *Outbox
	name   string
	dest   Destination
	finder Reconciler // nil if the destination cannot be asked
	policy Policy
	slots  chan struct{} // one element for each call under way
	kick   chan struct{}

	sending, asking gate // limits on one say nothing about the other
}

func newLane(o *Outbox, d Destination) *lane {
	l := &lane{
		o: o, name: d.Name(), dest: d,
		slots: make(chan struct{}, o.concurrency), kick: make(chan struct{}, 1),
		sending: gate{base: o.backoffBase, limit: o.backoffCap},
		asking:  gate{base: o.backoffBase, limit: o.backoffCap},
	}
	l.finder, _ = d.(Reconciler)
	if adviser, ok := d.(PolicyAdviser); ok {
		l.policy = adviser.DefaultPolicy()
	}
	if p, ok := o.policies[l.name]; ok {
		l.policy = p
	}
	return l
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
		// Doubts go first: they are few, and old.
		found, began, err := l.pass(ctx, StateUncertain, &l.asking, wg)
		if err == nil {
			var f, b int
			f, b, err = l.pass(ctx, StatePending, &l.sending, wg)
			found, began = found+f, began+b
		}
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

// idle waits for the next poll, or for less when kicked or when a gate opens.
func (l *lane) idle(ctx context.Context) {
	d := l.o.poll
	for _, g := range []*gate{&l.sending, &l.asking} {
		if left := g.left(); left > 0 {
			d = min(d, left)
		}
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.kick:
	case <-ctx.Done():
	}
}

// pass starts work on rows in a state that are due, unless the gate is closed. It reports
// how many it found and how many of those it began.
func (l *lane) pass(ctx context.Context, state State, g *gate, wg *sync.WaitGroup) (found, began int, err error) {
	if g.left() > 0 {
		return 0, 0, nil
	}
	ids, err := l.o.store.due(ctx, l.name, state, 4*cap(l.slots))
	if err != nil {
		return 0, 0, err
	}
	for _, id := range ids {
		select {
		case l.slots <- struct{}{}:
		case <-ctx.Done():
			return len(ids), began, nil
		}
		if ctx.Err() != nil || g.left() > 0 { // closed while we waited
			<-l.slots
			return 0, began, nil
		}
		ok, err := l.begin(ctx, id, state, wg)
		if ok {
			began++
		} else {
			<-l.slots
		}
		if err != nil {
			return len(ids), began, err
		}
	}
	return len(ids), began, nil
}

// begin claims a row and starts work on it; a slot is taken for it.
func (l *lane) begin(ctx context.Context, id int64, from State, wg *sync.WaitGroup) (bool, error) {
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
