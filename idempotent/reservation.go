package idempotent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"slices"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/internal/runkey"
)

// ticket is a reservation that is to become a task.
type ticket struct {
	key, owner string
	gen        int
	id, queue  string
	fp         string
	again      bool // the generation has had a delivery
	afresh     bool // a run that has ended may have had another payload
}

// reserve runs a script that reserves the run for k.owner. No task of this owner
// exists yet, so after an error nothing of the reservation stays, and nothing comes.
func (p *Producer) reserve(ctx context.Context, k ticket, s *redis.Script, args ...any) (reply, error) {
	base := p.g.base(k.key)
	call, cancel := context.WithTimeout(ctx, p.g.opTimeout)
	defer cancel()
	v, err := p.g.run.Run(call, s, []string{enqueueKey(base), recordKey(base), runkey.Lock(base), voidKey(base, k.owner)},
		append([]any{k.owner, ms(p.window), k.fp}, args...)...)
	if err != nil {
		p.release(ctx, k, true, max(p.window, voidFor))
		return nil, fmt.Errorf("reservation of run %q: %w", k.key, err)
	}
	r, _ := v.([]any)
	return r, nil
}

// release ends a reservation, best effort: its window does the same, later. With
// whole, the record is again what it was before; else it stays queued. A call of the
// owner that is still on its way does nothing any more, for void.
func (p *Producer) release(ctx context.Context, k ticket, whole bool, void time.Duration) {
	base, back := p.g.base(k.key), 0
	if whole {
		back = 1
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.g.opTimeout) // the caller's end must not leave a reservation
	defer cancel()
	keys := []string{enqueueKey(base), recordKey(base), voidKey(base, k.owner)}
	if p.g.indexed {
		keys = append(keys, waitingKey(p.g.prefix))
	}
	v, err := p.g.run.Run(ctx, releaseScript, keys, k.owner, back, ms(p.g.retention), ms(void), runkey.Escape(k.key), ms(lookAgain))
	if whole && v != int64(1) { // under way, or the answer that said so was lost: a look too many does no harm
		p.g.note(ctx, noted{key: k.key, kind: noteWait, ms: ms(lookAgain)})
	}
	if err != nil {
		p.g.log(k.key).Warn("onceq: reservation not released, it ends by itself", "window", p.window, "err", err)
	}
}

// left is what an enqueue that failed leaves in the queue under the task's ID.
type left int

const (
	leftNothing left = iota // nothing that will be executed
	leftAnother             // the task of another call, which will be
	leftPerhaps             // perhaps ours
)

// hand gives asynq the task of k. The task carries the owner, because a reply can be
// lost and go-redis repeats the command: the conflict that asynq then reports is with
// our own task.
func (p *Producer) hand(ctx context.Context, t *asynq.Task, k ticket, o enqueueOptions) (info *asynq.TaskInfo, l left, err error) {
	defer func() {
		switch log := p.g.log(k.key).With("task", k.id, "queue", k.queue); {
		case err != nil:
			log.Info("onceq: run not queued", "err", err)
		case k.again:
			log.Info("onceq: run redelivered")
		default:
			log.Info("onceq: run queued")
		}
	}()
	t = p.g.carry(t, k.key, k.gen, k.fp)
	t.Headers()[headerReservation] = k.owner
	opts := append(slices.Clip(o.list), asynq.TaskID(k.id))
	if err := ctx.Err(); err != nil {
		return nil, leftNothing, fmt.Errorf("enqueue of run %q: %w: %w", k.key, ErrUnavailable, err)
	}
	for range 2 {
		call, cancel := context.WithTimeout(ctx, p.g.opTimeout)
		info, err := p.client.EnqueueContext(call, t, opts...)
		cancel()
		switch {
		case err == nil:
			return info, leftNothing, nil
		case errors.Is(err, asynq.ErrDuplicateTask):
			return nil, leftNothing, &DuplicateError{Key: k.key, State: StateQueued, RetryAfter: p.window}
		case unanswered(err):
			return nil, leftPerhaps, fmt.Errorf("enqueue of run %q: %w: %w", k.key, ErrUnavailable, err)
		}
		there, lerr := p.g.asked(context.WithoutCancel(ctx), k.queue, k.id) // a plain answer is worth the wait
		switch {
		case lerr != nil:
			return nil, leftPerhaps, fmt.Errorf("enqueue of run %q: %w: %w", k.key, lerr, err)
		case there != nil && there.Headers[headerReservation] == k.owner:
			return there, leftNothing, nil
		case !errors.Is(err, asynq.ErrTaskIDConflict): // the client's own words, and ours is not there
			return nil, leftNothing, fmt.Errorf("enqueue of run %q: %w: %w", k.key, ErrUnavailable, err)
		case there != nil:
			l, err := p.inTheWay(k, there)
			return nil, l, err
		}
		// What was in the way is gone. Ours, done already? Then one more is skipped.
	}
	return nil, leftPerhaps, &DuplicateError{Key: k.key, State: StateQueued, RetryAfter: p.window} // a task that cannot be seen
}

// refusedBy is the refusal by a task that would be in the way; nil when there is none.
func (p *Producer) refusedBy(ctx context.Context, k ticket) error {
	there, err := p.g.asked(ctx, k.queue, k.id)
	if err != nil || there == nil {
		return err
	}
	_, err = p.inTheWay(k, there)
	return err
}

// inTheWay says what a task with the run's ID is, of which the record knew nothing.
func (p *Producer) inTheWay(k ticket, info *asynq.TaskInfo) (left, error) {
	dup, ended := &DuplicateError{Key: k.key, State: StateQueued, RetryAfter: p.window}, false
	switch info.State {
	case asynq.TaskStateActive:
		dup.State = StateRunning
	case asynq.TaskStateRetry:
		dup.State, dup.RetryAfter = StateRetrying, max(0, time.Until(info.NextProcessAt))
	case asynq.TaskStateArchived:
		dup.State, dup.RetryAfter, ended = StateFailed, 0, true
	case asynq.TaskStateCompleted:
		dup.State, ended = StateSucceeded, true
	}
	switch {
	case Fingerprint(info.Type, info.Payload) != k.fp && !(ended && k.afresh):
		return leftNothing, &PayloadMismatchError{Key: k.key, State: dup.State}
	case dup.State == StateSucceeded:
		return leftNothing, &SucceededError{Key: k.key, At: info.CompletedAt}
	case ended:
		return leftNothing, dup
	}
	return leftAnother, dup
}

// unanswered reports whether err is about the way to Redis: the task may be there. An
// error of the dial is no proof of the contrary, since go-redis tries again and tells
// of the last try alone.
func unanswered(err error) bool {
	for _, e := range []error{context.Canceled, context.DeadlineExceeded, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, redis.ErrClosed} {
		if errors.Is(err, e) {
			return true
		}
	}
	var network net.Error
	var answer redis.Error // perhaps to a second try
	if errors.As(err, &network) || errors.As(err, &answer) {
		return true
	}
	for ; err != nil; err = errors.Unwrap(err) {
		// What asynq's broker meets it reports as a type of its own, as text.
		if t := reflect.TypeOf(err); t.Kind() == reflect.Pointer && t.Elem().PkgPath() == "github.com/hibiken/asynq/internal/errors" {
			return true
		}
	}
	return false
}
