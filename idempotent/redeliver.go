package idempotent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
)

// again tells asynq to deliver the task again after delay. Where asynq would
// archive it instead, because its retries are spent, the run gets a new delivery
// with what is left of its budget: nothing.
func (g *Guard) again(ctx context.Context, d delivery, token int64, err error, class Class, delay time.Duration) error {
	retry := &retryError{err: err, class: class, delay: delay}
	if !d.spent() || putBackByAsynq(ctx) {
		return retry
	}
	id, eerr := g.handOver(ctx, d, token, 0, delay)
	if eerr != nil {
		g.log(d.key).Error("onceq: run has no delivery left: its task goes to the archive", "task", d.id, "err", eerr)
		return retry
	}
	g.log(d.key).Info("onceq: run handed over to a new delivery, its retries are spent", "task", d.id, "to", id, "in", delay, "err", text(err))
	return fmt.Errorf("%w: handed over to task %s: %w", retry, id, asynq.RevokeTask)
}

// handOver enqueues a delivery that replaces d. Its ID follows from the token (0 before
// the first attempt), so that others who find the same attempt dead come to the same.
func (g *Guard) handOver(ctx context.Context, d delivery, token int64, retries int, delay time.Duration) (id string, err error) {
	opts := append(g.originalOptions(ctx, d), asynq.Queue(d.queue), asynq.MaxRetry(retries), asynq.ProcessIn(delay))
	t := g.carry(d.task, d.key, d.generation, d.fingerprint)
	for id = range g.redeliveries(d.key, token, d.id) {
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.opTimeout) // a run must not be lost to a timeout
		_, err = g.client.EnqueueContext(call, t, append(opts, asynq.TaskID(id))...)
		cancel()
		if !errors.Is(err, asynq.ErrTaskIDConflict) {
			return id, err
		}
		if there, _ := g.asked(context.WithoutCancel(ctx), d.queue, id); there == nil || !over(there) {
			return id, nil // it is there, or was a moment ago
		}
	}
	return id, err
}

// originalOptions are those of the task that only asynq knows.
func (g *Guard) originalOptions(ctx context.Context, d delivery) []asynq.Option {
	info, _ := g.asked(context.WithoutCancel(ctx), d.queue, d.id)
	if info == nil { // gone or unreachable: the context's deadline is the next best
		return []asynq.Option{asynq.Timeout(max(time.Second, d.timeout))}
	}
	return keptOptions(info)
}

// carry returns a task like t whose headers name the run.
func (g *Guard) carry(t *asynq.Task, key string, generation int, fingerprint string) *asynq.Task {
	h := map[string]string{}
	maps.Copy(h, t.Headers())
	h[KeyHeader] = key
	h[headerPrefix] = g.prefix
	h[headerGeneration] = strconv.Itoa(generation)
	h[headerFingerprint] = fingerprint
	return asynq.NewTaskWithHeaders(t.Type(), t.Payload(), h)
}
