package idempotent

import (
	"errors"
	"fmt"
	"slices"

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
		info, err := g.inspector.GetTaskInfo(queue, id)
		switch {
		case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
			continue
		case err != nil:
			return false, fmt.Errorf("task %s: %w: %w", id, ErrUnavailable, err)
		}
		switch info.State {
		case asynq.TaskStatePending, asynq.TaskStateScheduled, asynq.TaskStateRetry, asynq.TaskStateAggregating:
			return true, nil
		}
	}
	return false, nil
}
