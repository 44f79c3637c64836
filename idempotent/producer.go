package idempotent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/nexuscore/onceq/internal/runkey"
	"github.com/nexuscore/onceq/internal/setting"
)

// Enqueuer is what a Producer needs of *asynq.Client.
type Enqueuer interface {
	EnqueueContext(ctx context.Context, t *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error)
}

// Producer enqueues runs, each at most once. It is safe for concurrent use.
//
// Use Enqueue; Rerun is for runs that failed, Redeliver for whoever knows that a
// run has lost its delivery.
type Producer struct {
	g      *Guard
	client Enqueuer
	window time.Duration
}

// ProducerOption sets up a Producer.
type ProducerOption func(*Producer)

// WithWindow sets how long a reservation keeps other producers away while its task
// is being enqueued, and how long a run may be called queued before its producer is
// taken for dead. 1 s to 1 h. Defaults to 10 s.
func WithWindow(d time.Duration) ProducerOption { return func(p *Producer) { p.window = d } }

// NewProducer returns a producer that enqueues through client, usually an
// *asynq.Client, and keeps its records where g does. The error wraps ErrInvalid.
func NewProducer(g *Guard, client Enqueuer, opts ...ProducerOption) (*Producer, error) {
	if g == nil || setting.IsNil(client) {
		return nil, setting.Invalidf("NewProducer: the guard or the client is nil")
	}
	p := &Producer{g: g, client: client, window: 10 * time.Second}
	if err := setting.Apply(p, opts); err != nil {
		return nil, err
	}
	if p.window < time.Second || p.window > time.Hour {
		return nil, setting.Invalidf("WithWindow: %v is not between 1s and 1h", p.window)
	}
	return p, nil
}

// Guard is the guard whose runs p enqueues.
func (p *Producer) Guard() *Guard { return p.g }

// Enqueue enqueues the run that key names, unless it is there already. It costs one
// round trip besides asynq's own.
//
// Options go here, not into asynq.NewTask. One of asynq.Timeout and asynq.Deadline is
// required: asynq's silent default of 30 minutes kills long runs. MaxRetry defaults to
// the guard's retry budget and may not be 0; TaskID, Unique and Group are refused.
//
// A nil error means queued. Otherwise errors.Is tells ErrDuplicate (see
// *DuplicateError), ErrAlreadySucceeded, ErrPayloadMismatch, ErrInvalid, and
// ErrUnavailable: then the run may or may not be queued, and it is safe to ask again
// with the same key and payload.
func (p *Producer) Enqueue(ctx context.Context, key string, t *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	o, err := p.check(key, t, opts)
	if err != nil {
		return nil, err
	}
	owner, base, fp := randomID(16), p.g.base(key), Fingerprint(t.Type(), t.Payload())
	r, err := p.ask(ctx, func(ctx context.Context) (any, error) {
		return p.g.run.Run(ctx, reserveScript, []string{enqueueKey(base), recordKey(base), runkey.Lock(base)},
			owner, ms(p.window), fp, ms(p.g.retention+o.delay))
	})
	if err != nil {
		p.release(ctx, base, owner, "")
		return nil, fmt.Errorf("enqueue of run %q: %w", key, err)
	}
	if r.str(0) != "reserved" {
		return nil, p.refused(key, r)
	}
	gen := int(r.num(1))
	return p.put(ctx, p.g.carry(t, key, gen, fp), ticket{key: key, owner: owner, id: p.g.taskID(key, gen), fp: fp}, o)
}

// ticket is a reservation that is to become a task.
type ticket struct {
	key, owner, id, fp string
	prev               string // what release restores
}

func (p *Producer) put(ctx context.Context, t *asynq.Task, k ticket, o enqueueOptions) (*asynq.TaskInfo, error) {
	info, err := p.client.EnqueueContext(ctx, t, append(o.list, asynq.TaskID(k.id))...)
	log := p.g.log(k.key)
	if err == nil {
		log.Info("onceq: run queued", "task", k.id, "queue", info.Queue)
		return info, nil
	}
	p.release(ctx, p.g.base(k.key), k.owner, k.prev)
	switch {
	case errors.Is(err, asynq.ErrTaskIDConflict):
		err = p.inTheWay(k, o.queue)
	case errors.Is(err, asynq.ErrDuplicateTask):
		err = &DuplicateError{Key: k.key, State: StateQueued, RetryAfter: p.window}
	default: // asynq's errors do not say whether the command was sent
		err = fmt.Errorf("enqueue of run %q: %w: %w", k.key, ErrUnavailable, err)
	}
	log.Log(ctx, slog.LevelInfo, "onceq: run not queued", "task", k.id, "err", err)
	return nil, err
}

// inTheWay says what a task with the run's ID is, of which the record knew nothing.
func (p *Producer) inTheWay(k ticket, queue string) error {
	dup := &DuplicateError{Key: k.key, State: StateQueued, RetryAfter: p.window}
	info, err := p.g.inspector.GetTaskInfo(queue, k.id)
	if err != nil { // gone meanwhile, or unreachable: asynq's "no" stands
		return dup
	}
	switch info.State {
	case asynq.TaskStateActive:
		dup.State = StateRunning
	case asynq.TaskStateRetry:
		dup.State, dup.RetryAfter = StateRetrying, max(0, time.Until(info.NextProcessAt))
	case asynq.TaskStateArchived:
		dup.State, dup.RetryAfter = StateFailed, 0
	case asynq.TaskStateCompleted:
		return &SucceededError{Key: k.key, At: info.CompletedAt}
	}
	if Fingerprint(info.Type, info.Payload) != k.fp {
		return &PayloadMismatchError{Key: k.key, State: dup.State}
	}
	return dup
}

// ask bounds one script call by the guard's operation timeout.
func (p *Producer) ask(ctx context.Context, call func(context.Context) (any, error)) (reply, error) {
	ctx, cancel := context.WithTimeout(ctx, p.g.opTimeout)
	defer cancel()
	v, err := call(ctx)
	if err != nil {
		return nil, err
	}
	r, _ := v.([]any)
	return r, nil
}

func (p *Producer) refused(key string, r reply) error {
	var err error
	switch r.str(0) {
	case "mismatch":
		err = &PayloadMismatchError{Key: key, State: parseState(r.str(1))}
	case "succeeded":
		err = &SucceededError{Key: key, At: time.UnixMilli(r.num(1))}
	case "duplicate":
		err = &DuplicateError{
			Key: key, State: parseState(r.str(1)), Holder: r.str(2),
			RetryAfter: time.Duration(r.num(3)) * time.Millisecond,
		}
	default:
		err = fmt.Errorf("run %q: %w %v", key, errNoAnswer, r)
	}
	p.g.log(key).Info("onceq: run not queued", "err", err)
	return err
}

// release takes a reservation back, best effort: its window does the same, later.
func (p *Producer) release(ctx context.Context, base, owner, prev string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.g.opTimeout) // the caller's end must not leave a reservation
	defer cancel()
	_, err := p.g.run.Run(ctx, releaseScript, []string{enqueueKey(base), recordKey(base)}, owner, prev, ms(p.g.retention))
	if err != nil {
		p.g.logger.Warn("onceq: reservation not released, it ends by itself", "window", p.window, "err", err)
	}
}

// RerunOptions say how Rerun starts a run again.
type RerunOptions struct {
	// FromScratch ignores what earlier attempts checkpointed, and allows another
	// payload. False resumes from the last checkpoint.
	FromScratch bool
	// After is a generation that the new one must exceed, for hosts whose own
	// records outlive those in Redis. Zero means none; at most a million.
	After int
}

// mostGenerations keeps a mistaken number from using up the generations of a run.
const mostGenerations = 1_000_000

// Rerun starts a run again that failed, with a new generation and a full budget.
// Deliveries of older generations are skipped from then on. It may also be used for
// a run that is queued or waits for a retry and seems stuck, but not for one that is
// running (ErrDuplicate) or has succeeded (ErrAlreadySucceeded). A run without any
// record counts as failed. Options and errors are those of Enqueue.
func (p *Producer) Rerun(ctx context.Context, key string, t *asynq.Task, how RerunOptions, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	o, err := p.check(key, t, opts)
	if err != nil {
		return nil, err
	}
	if how.After < 0 || how.After > mostGenerations {
		return nil, setting.Invalidf("RerunOptions.After: %d is not between 0 and %d", how.After, mostGenerations)
	}
	owner, base, fp := randomID(16), p.g.base(key), Fingerprint(t.Type(), t.Payload())
	scratch := 0
	if how.FromScratch {
		scratch = 1
	}
	r, err := p.ask(ctx, func(ctx context.Context) (any, error) {
		return p.g.run.Run(ctx, rerunScript, []string{enqueueKey(base), recordKey(base), runkey.Lock(base)},
			owner, ms(p.window), fp, ms(p.g.retention+o.delay), scratch, how.After)
	})
	if err != nil {
		return nil, fmt.Errorf("rerun of run %q: %w", key, err)
	}
	if r.str(0) != "reserved" {
		return nil, p.refused(key, r)
	}
	gen := int(r.num(1))
	return p.put(ctx, p.g.carry(t, key, gen, fp), ticket{key: key, owner: owner, id: p.g.taskID(key, gen), fp: fp, prev: r.str(2)}, o)
}

// Redeliver gives a run that has no live attempt and no outcome one more delivery,
// in the generation it is in. It is for whoever knows that the run's delivery is
// lost: a supervisor that killed a worker, a sweeper that found a run without a
// task. It is harmless when wrong, since a second delivery finds the run held or
// done, and of several callers one wins. It costs one round trip besides asynq's own.
//
// Errors are those of Enqueue; a run without any record counts as new.
func (p *Producer) Redeliver(ctx context.Context, key string, t *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	o, err := p.check(key, t, opts)
	if err != nil {
		return nil, err
	}
	r, err := p.g.Lookup(ctx, key)
	if err != nil {
		return nil, err
	}
	switch {
	case r.LeaseLeft > 0:
		return nil, &DuplicateError{Key: key, State: StateRunning, Holder: r.Holder, RetryAfter: r.LeaseLeft}
	case r.State == StateSucceeded:
		return nil, &SucceededError{Key: key, At: r.Ended}
	case r.State == StateFailed:
		return nil, &DuplicateError{Key: key, State: StateFailed}
	}
	fp := Fingerprint(t.Type(), t.Payload())
	k := ticket{key: key, fp: fp}
	for n := 1; ; n++ {
		k.id = p.g.redeliveryTry(key, r.Token, n)
		info, err := p.client.EnqueueContext(ctx, p.g.carry(t, key, max(1, r.Generation), fp), append(o.list, asynq.TaskID(k.id))...)
		if err == nil {
			p.g.log(key).Info("onceq: run redelivered", "task", k.id, "queue", info.Queue)
			return info, nil
		}
		if !errors.Is(err, asynq.ErrTaskIDConflict) {
			return nil, fmt.Errorf("redelivery of run %q: %w: %w", key, ErrUnavailable, err)
		}
		// One that asynq gave up, while the run has no outcome, delivers nothing more.
		err = p.inTheWay(k, o.queue)
		dup, ok := errors.AsType[*DuplicateError](err)
		if !ok || dup.State != StateFailed || n == mostDeliveries {
			return nil, err
		}
	}
}

// blank is what asynq counts as empty.
func blank(s string) bool { return strings.TrimSpace(s) == "" }
