package idempotent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hibiken/asynq"

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
// with the same key and payload. Until it is known the key stays taken by that payload.
func (p *Producer) Enqueue(ctx context.Context, key string, t *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	o, err := p.check(key, t, opts)
	if err != nil {
		return nil, err
	}
	k := ticket{key: key, owner: randomID(16), fp: Fingerprint(t.Type(), t.Payload()), queue: o.queue}
	r, err := p.reserve(ctx, k, reserveScript, ms(p.g.retention+o.delay), o.queue, "")
	for n := 1; err == nil && r.str(0) == "elsewhere" && n <= 3; n++ { // its window is over, and it was for another queue
		there := k
		there.queue, there.id = r.str(1), p.g.taskID(key, int(r.num(2)))
		if err = p.refusedBy(ctx, there); err == nil {
			r, err = p.reserve(ctx, k, reserveScript, ms(p.g.retention+o.delay), o.queue, there.queue)
		}
	}
	if err != nil {
		return nil, err
	}
	if r.str(0) != "reserved" {
		return nil, p.refused(key, r)
	}
	k.gen = int(r.num(1))
	k.id = p.g.taskID(key, k.gen)
	info, l, err := p.hand(ctx, t, k, o)
	if err != nil {
		p.release(ctx, k, l != leftPerhaps, 0)
	}
	return info, err
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
	case "elsewhere": // again and again: others are at it
		err = &DuplicateError{Key: key, State: StateQueued, RetryAfter: p.window}
	default:
		err = fmt.Errorf("run %q: %w %v", key, errNoAnswer, r)
	}
	p.g.log(key).Info("onceq: run not queued", "err", err)
	return err
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
//
// Once begun, the call goes on when ctx ends, each step for at most the guard's
// operation timeout. After ErrUnavailable the run may be queued in the new generation;
// asking again opens another one, and the run is executed in one of them.
func (p *Producer) Rerun(ctx context.Context, key string, t *asynq.Task, how RerunOptions, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	o, err := p.check(key, t, opts)
	if err != nil {
		return nil, err
	}
	if how.After < 0 || how.After > mostGenerations {
		return nil, setting.Invalidf("RerunOptions.After: %d is not between 0 and %d", how.After, mostGenerations)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("rerun of run %q: %w: %w", key, ErrUnavailable, err)
	}
	ctx = context.WithoutCancel(ctx) // between the new generation and its task the run has no delivery
	scratch := 0
	if how.FromScratch {
		scratch = 1
	}
	k := ticket{key: key, owner: randomID(16), fp: Fingerprint(t.Type(), t.Payload()), queue: o.queue, afresh: how.FromScratch}
	for n, after := 1, how.After; ; n++ {
		r, err := p.reserve(ctx, k, rerunScript, ms(p.g.retention+o.delay), o.queue, scratch, after)
		if err != nil {
			return nil, err
		}
		if r.str(0) != "reserved" {
			return nil, p.refused(key, r)
		}
		k.gen = int(r.num(1))
		k.id = p.g.taskID(key, k.gen)
		info, l, err := p.hand(ctx, t, k, o)
		if err == nil {
			return info, nil
		}
		dup, _ := errors.AsType[*DuplicateError](err)
		if dup != nil && dup.State == StateFailed && n < mostDeliveries {
			// The record was forgotten and asynq's archive was not. It may hold many
			// generations of the run.
			after = 2 * (k.gen - 1)
			continue
		}
		p.release(ctx, k, l == leftNothing, 0) // another's task is of this generation: the record says so
		return nil, err
	}
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
	k := ticket{key: key, owner: randomID(16), gen: max(1, r.Generation), fp: Fingerprint(t.Type(), t.Payload()), queue: o.queue, again: true}
	switch {
	case r.Fingerprint != "" && r.Fingerprint != k.fp:
		return nil, &PayloadMismatchError{Key: key, State: r.State}
	case r.LeaseLeft > 0:
		return nil, &DuplicateError{Key: key, State: StateRunning, Holder: r.Holder, RetryAfter: r.LeaseLeft}
	case r.State == StateSucceeded:
		return nil, &SucceededError{Key: key, At: r.Ended}
	case r.State == StateFailed:
		return nil, &DuplicateError{Key: key, State: StateFailed}
	}
	for n := 1; ; n++ {
		k.id = p.g.redeliveryTry(key, r.Token, n)
		info, _, err := p.hand(ctx, t, k, o)
		// One that asynq gave up, while the run has no outcome, delivers nothing more.
		dup, ok := errors.AsType[*DuplicateError](err)
		if !ok || dup.State != StateFailed || n == mostDeliveries {
			return info, err
		}
	}
}

// blank is what asynq counts as empty.
func blank(s string) bool { return strings.TrimSpace(s) == "" }
