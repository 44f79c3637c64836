package idempotent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nexuscore/onceq/internal/runkey"
)

// finish records the outcome. It tries again while the lease can be proven: a
// success that is not recorded is paid for twice.
func (a *Attempt) finish(ctx context.Context, outcome State, reason string) error {
	g, l := a.g, a.lease
	a.mu.Lock()
	result := a.result
	a.mu.Unlock()
	if outcome != StateSucceeded {
		result = nil
	}
	keys := []string{runkey.Lock(l.Base), recordKey(l.Base), runkey.Checkpoint(l.Base)}
	if g.indexed {
		keys = append(keys, processLeasesKey(g.prefix, g.process))
		if l.Attempt > 1 { // only then it has waited
			keys = append(keys, waitingKey(g.prefix))
		}
	}
	steps := len(keys) + 1
	keys = append(keys, l.StepKeys()...)
	ctx = context.WithoutCancel(ctx) // the outcome is a fact, whatever became of the task's context
	for {
		if err := l.Err(); err != nil {
			return err
		}
		call, cancel := context.WithTimeout(ctx, min(g.opTimeout, max(l.Remaining(), time.Millisecond)))
		v, err := g.run.Run(call, finishScript, keys, l.Owner, outcome.String(), ms(g.retention), runkey.Escape(l.Key), result, reason, steps)
		cancel()
		switch {
		case err == nil && v == int64(1):
			g.note(ctx, noted{key: l.Key, kind: noteOver})
			return nil
		case err == nil:
			l.Lose(errTaken)
			return l.Err()
		}
		select {
		case <-time.After(min(finishPause, l.Remaining())):
		case <-l.Ended():
		}
		if l.Remaining() == 0 {
			return fmt.Errorf("finish of run %q: %w", l.Key, err)
		}
	}
}

const finishPause = 200 * time.Millisecond

var errTaken = errors.New("expired or taken over by another attempt")

// handback says how an attempt without an outcome ends.
type handback struct {
	next   time.Duration // until the next attempt
	reason string
	used   bool          // it uses up a retry
	void   time.Duration // for which a begin that comes late does nothing
}

// voidFor outlasts a call that nobody waits for any more.
const voidFor = time.Minute

// release gives a lease back without an outcome, and reports whether that is written
// down. Else the TTL does the same, later, and the attempt counts as a crash.
func (g *Guard) release(ctx context.Context, key, owner string, h handback) (bool, error) {
	base := g.base(key)
	keys := []string{runkey.Lock(base), recordKey(base), voidKey(base, owner)}
	if g.indexed {
		keys = append(keys, processLeasesKey(g.prefix, g.process), waitingKey(g.prefix))
	}
	used := 0
	if h.used {
		used = 1
	}
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.opTimeout) // the task's context has often ended
	defer cancel()
	v, err := g.run.Run(call, abandonScript, keys, owner, ms(g.retention), runkey.Escape(key), ms(h.next), h.reason, used, ms(lookAfter), ms(h.void))
	released := err == nil && v == int64(1)
	if released {
		g.note(ctx, noted{key: key, kind: noteWait, ms: ms(h.next + lookAfter)})
	}
	return released, err
}

// handBack is release for an attempt that has ended. It tries again: what is not
// written down counts as a crash.
func (a *Attempt) handBack(ctx context.Context, h handback) bool {
	for try := 1; ; try++ {
		released, err := a.g.release(ctx, a.lease.Key, a.lease.Owner, h)
		if !errors.Is(err, ErrUnavailable) || try == 3 {
			return released
		}
		time.Sleep(finishPause)
	}
}
