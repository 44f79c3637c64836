package idempotent

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/hibiken/asynq"
)

// Waiting reports whether a delivery of the run, as Lookup returned it, waits in
// the queue: to be taken by a worker, or for the time of its retry. It is for
// sweepers, which must not mistake a long queue for a lost delivery. A task that a
// worker has taken does not count, since the worker may be dead: the lease tells. An
// error wraps ErrUnavailable.
func (g *Guard) Waiting(ctx context.Context, r Run, queue string) (bool, error) {
	return g.waiting(ctx, r, queue, func(*asynq.TaskInfo) bool { return true })
}

func (g *Guard) waiting(ctx context.Context, r Run, queue string, counts func(*asynq.TaskInfo) bool) (bool, error) {
	ids := []string{g.taskID(r.Key, r.Generation), g.redeliveryID(r.Key, r.Token), r.Delivery}
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		if id == "" {
			continue
		}
		t, err := g.asked(ctx, queue, id)
		if err != nil {
			return false, err
		}
		if t != nil && t.State != asynq.TaskStateActive && !over(t) && counts(t) {
			return true, nil
		}
	}
	return false, nil
}

// asked is what asynq knows of a task, nil when it does not have it. An error wraps
// ErrUnavailable.
func (g *Guard) asked(ctx context.Context, queue, id string) (*asynq.TaskInfo, error) {
	t, err := within(ctx, g.opTimeout, func(context.Context) (*asynq.TaskInfo, error) { return g.inspector.GetTaskInfo(queue, id) })
	switch {
	case err == nil:
		return t, nil
	case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
		return nil, nil
	}
	return nil, fmt.Errorf("%w: task %s: %w", ErrUnavailable, id, err)
}

// mustKnow returns an error when asynq's list of queues lacks this one: then nothing is
// known of its tasks, though they may be there. Redis lost the list, and a client writes
// it once only.
func (g *Guard) mustKnow(ctx context.Context, queue string) error {
	list, err := within(ctx, g.opTimeout, func(context.Context) ([]string, error) { return g.inspector.Queues() })
	switch {
	case err != nil:
		return fmt.Errorf("%w: asynq's queues: %w", ErrUnavailable, err)
	case !slices.Contains(list, queue):
		return fmt.Errorf("%w: asynq does not list queue %q: a new client that enqueues to it makes it known", ErrUnavailable, queue)
	}
	return nil
}

// within bounds a call that may be deaf to its context, as those of a client without
// ContextTimeoutEnabled are. The call goes on, unheard, until the client gives up.
func within[T any](ctx context.Context, d time.Duration, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	type answer struct {
		v   T
		err error
	}
	c := make(chan answer, 1)
	go func() {
		v, err := call(ctx)
		c <- answer{v, err}
	}()
	select {
	case a := <-c:
		return a.v, a.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// redeliveries are the task IDs that a delivery after the attempt with this token can
// have, but for one: whoever finds that attempt dead comes to the same, in the same
// order, and takes the next only when asynq is done with the one before.
func (g *Guard) redeliveries(key string, token int64, but string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for n := 1; n <= mostDeliveries; n++ {
			if id := g.redeliveryTry(key, token, n); id != but && !yield(id) {
				return
			}
		}
	}
}

// mostDeliveries bounds how many new deliveries one attempt's end can lead to.
const mostDeliveries = 8

// over reports whether asynq is done with a task that it still has: it delivers
// nothing more, and its ID is taken all the same.
func over(t *asynq.TaskInfo) bool {
	return t.State == asynq.TaskStateArchived || t.State == asynq.TaskStateCompleted
}

// overdue reports whether no delivery of the task can begin any more. A timeout counts
// anew from each begin, a deadline does not.
func overdue(t *asynq.TaskInfo) bool {
	return t != nil && !t.Deadline.IsZero() && !time.Now().Before(t.Deadline)
}

// queued reports whether asynq has the task for the next free worker.
func queued(t *asynq.TaskInfo) bool {
	return t.State == asynq.TaskStatePending || t.State == asynq.TaskStateAggregating
}

// resting reports whether asynq has the task for later.
func resting(t *asynq.TaskInfo) bool {
	return t.State == asynq.TaskStateRetry || t.State == asynq.TaskStateScheduled
}

// waitsForLease reports whether the task rests because the run was held when it came,
// itself or the one that it replaces. Others rest for a time that a policy chose, perhaps
// the host's own.
func waitsForLease(t *asynq.TaskInfo, key string) bool {
	return t.State == asynq.TaskStateScheduled || t.State == asynq.TaskStateRetry && saidContended(t.LastErr, key)
}

// keptOptions are those that a delivery which replaces the task has, too.
func keptOptions(t *asynq.TaskInfo) []asynq.Option {
	var opts []asynq.Option
	if t.Timeout > 0 {
		opts = append(opts, asynq.Timeout(t.Timeout))
	}
	if !t.Deadline.IsZero() {
		opts = append(opts, asynq.Deadline(t.Deadline))
	}
	if t.Retention > 0 {
		opts = append(opts, asynq.Retention(t.Retention))
	}
	return opts
}
