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
	if !d.spent() || endedByAsynq(ctx) {
		return retry
	}
	id := g.redeliveryID(d.key, token)
	if id == d.id { // this is that delivery: the next needs another ID
		id += ".2"
	}
	opts := append(g.originalOptions(d), asynq.Queue(d.queue), asynq.TaskID(id), asynq.MaxRetry(0), asynq.ProcessIn(delay))
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.opTimeout) // a run must not be lost to a timeout
	defer cancel()
	_, eerr := g.client.EnqueueContext(call, g.carry(d.task, d.key, d.generation, d.fingerprint), opts...)
	if eerr != nil && !errors.Is(eerr, asynq.ErrTaskIDConflict) {
		g.log(d.key).Error("onceq: run has no delivery left: its task goes to the archive", "task", d.id, "err", eerr)
		return retry
	}
	g.log(d.key).Info("onceq: run handed over to a new delivery, its retries are spent", "task", d.id, "to", id, "in", delay, "err", err)
	return fmt.Errorf("%w: handed over to task %s: %w", err, id, asynq.RevokeTask)
}

// originalOptions are those of the task that only asynq knows.
func (g *Guard) originalOptions(d delivery) []asynq.Option {
	info, err := g.inspector.GetTaskInfo(d.queue, d.id)
	if err != nil { // gone or unreachable: the context's deadline is the next best
		return []asynq.Option{asynq.Timeout(max(time.Second, d.timeout))}
	}
	return keptOptions(info)
}

func keptOptions(info *asynq.TaskInfo) []asynq.Option {
	var opts []asynq.Option
	if info.Timeout > 0 {
		opts = append(opts, asynq.Timeout(info.Timeout))
	}
	if !info.Deadline.IsZero() {
		opts = append(opts, asynq.Deadline(info.Deadline))
	}
	if info.Retention > 0 {
		opts = append(opts, asynq.Retention(info.Retention))
	}
	return opts
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
