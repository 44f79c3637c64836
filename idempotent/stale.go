package idempotent

import (
	"context"
	"errors"
	"fmt"

	"github.com/hibiken/asynq"
)

// stale answers a delivery of an older generation. The newer one may have no delivery:
// its producer died before the enqueue, or was not answered. Then this one, which is
// here, makes way for it.
func (g *Guard) stale(ctx context.Context, d delivery, s *skipped) error {
	log := g.log(d.key).With("task", d.id, "reason", s.reason)
	err := fmt.Errorf("onceq: run %q has a newer generation: %s", d.key, s.reason)
	switch {
	case s.wait < 0 || s.fingerprint != d.fingerprint: // of another payload we cannot deliver it
	case s.wait > 0:
		log.Info("onceq: delivery waits for the one of a newer generation", "left", s.wait)
		return g.again(ctx, d, 0, err, ClassContended, g.policy.delay(ClassContended, s.wait, 0))
	default:
		id := g.taskID(d.key, s.newer)
		opts := append(g.originalOptions(ctx, d), asynq.Queue(d.queue), asynq.TaskID(id), asynq.MaxRetry(g.policy.maxRetry))
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.opTimeout) // a run must not be lost to a timeout
		defer cancel()
		_, eerr := g.client.EnqueueContext(call, g.carry(d.task, d.key, s.newer, d.fingerprint), opts...)
		if errors.Is(eerr, asynq.ErrTaskIDConflict) {
			if there, _ := g.asked(context.WithoutCancel(ctx), d.queue, id); there != nil && over(there) {
				newer := d
				newer.generation = s.newer
				id, eerr = g.handOver(ctx, newer, 0, g.policy.maxRetry, 0)
			}
		}
		if eerr != nil && !errors.Is(eerr, asynq.ErrTaskIDConflict) {
			log.Warn("onceq: attempt not begun", "err", eerr)
			return g.again(ctx, d, 0, fmt.Errorf("%w: %w", ErrUnavailable, eerr), ClassOrphaned, g.policy.delay(ClassTransient, 0, whileAway))
		}
		if eerr == nil {
			log.Warn("onceq: newer generation had no delivery and got one", "to", id)
		}
	}
	log.Info("onceq: delivery skipped")
	return fmt.Errorf("%w: %w", err, asynq.RevokeTask)
}
