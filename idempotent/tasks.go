package idempotent

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hibiken/asynq"
)

// Waiting reports whether a delivery of the run, as Lookup returned it, waits in
// the queue: to be taken by a worker, or for the time of its retry. It is for
// sweepers, which must not mistake a long queue for a lost delivery. A task that a
// worker has taken does not count, since the worker may be dead: the lease tells. An
// error wraps ErrUnavailable.
func (g *Guard) Waiting(r Run, queue string) (bool, error) {
	ids := []string{g.taskID(r.Key, r.Generation), g.redeliveryID(r.Key, r.Token), r.Delivery}
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		if id == "" {
			continue
		}
		info, err := g.asked(queue, id)
		if err != nil {
			return false, err
		}
		if info != nil && info.State != asynq.TaskStateActive && !over(info) {
			return true, nil
		}
	}
	return false, nil
}

// asked is what asynq knows of a task, nil when it does not have it. An error wraps
// ErrUnavailable.
func (g *Guard) asked(queue, id string) (*asynq.TaskInfo, error) {
	info, err := g.inspector.GetTaskInfo(queue, id)
	switch {
	case err == nil:
		return info, nil
	case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
		return nil, nil
	}
	return nil, fmt.Errorf("%w: task %s: %w", ErrUnavailable, id, err)
}

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

// onItsWay reports whether asynq is about to deliver the task by itself.
func onItsWay(t *asynq.TaskInfo, s State) bool {
	switch t.State {
	case asynq.TaskStatePending, asynq.TaskStateAggregating:
		return true
	case asynq.TaskStateRetry, asynq.TaskStateScheduled:
		// A crash is not worth a wait. The wait of a retry was chosen.
		return s == StateRetrying || time.Until(t.NextProcessAt) < time.Second
	}
	return false
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
