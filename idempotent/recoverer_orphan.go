package idempotent

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/internal/runkey"
)

var (
	//go:embed recover_fail.lua
	recoverFailLua    string
	recoverFailScript = redis.NewScript(recoverFailLua)
)

// orphan is a run without a lease and without an outcome, as its record has it.
type orphan struct {
	key         string
	state       State // StateRunning: its attempt died; StateRetrying: another was to follow
	again       bool  // it was given a delivery before, and that should have begun
	process     string
	token       int64
	generation  int
	attempt     int
	maxRetry    int // of its last delivery
	retried     int
	used        bool // the attempt that ended used up one more
	delivery    string
	queue       string
	taskType    string
	timeout     time.Duration
	fingerprint string
	reason      string
	payload     []byte // nil when it is not in the record
}

func newOrphan(key string, e entry, f reply) orphan {
	o := orphan{
		key: key, state: parseState(f.str(0)), process: f.str(1), token: f.num(2),
		generation: max(1, int(f.num(3))), attempt: int(f.num(4)), maxRetry: int(f.num(5)), retried: int(f.num(6)),
		used: f.str(7) == "1", delivery: f.str(8), queue: f.str(9), taskType: f.str(10),
		timeout: time.Duration(f.num(11)) * time.Millisecond, fingerprint: f.str(12), reason: f.str(13), payload: f.bytes(14),
	}
	o.used = o.used && o.state == StateRetrying
	o.again = e.process == "" && o.state == StateRunning
	return o
}

// left is what remains of the retries. A crash uses none.
func (o *orphan) left() int {
	n := o.maxRetry - o.retried
	if o.used {
		n--
	}
	return max(0, n)
}

// stuckFor is how long a delivery that is in its queue is trusted to begin.
const stuckFor = 30 * time.Second

// help gives the run what it lacks. It returns when to look at it again; zero
// means never. An error says that nothing was decided.
func (r *Recoverer) help(ctx context.Context, o orphan) (time.Duration, error) {
	if o.queue == "" {
		r.g.log(o.key).Warn("onceq: run died outside any queue, it cannot be delivered again", "token", o.token)
		return 0, nil
	}
	last, err := r.g.asked(ctx, o.queue, o.delivery)
	if err != nil {
		return 0, err
	}
	if last != nil && queued(last) {
		return stuckFor, nil
	}
	switch {
	case o.used && o.spent(): // whatever asynq still thinks of its task: the handler may hang
		return 0, r.fail(ctx, o, last, "its retries are spent; the last attempt: "+o.reason)
	case last == nil && o.payload == nil:
		if there, err := r.handedOver(ctx, o); there || err != nil {
			return stuckFor, err
		}
		if err := r.g.mustKnow(ctx, o.queue); err != nil {
			return 0, err
		}
		return 0, r.fail(ctx, o, last, "its task is gone and its payload was too large to keep")
	case overdue(last):
		return 0, r.fail(ctx, o, last, "its task's deadline is over")
	case last != nil && resting(last):
		return r.wake(ctx, o, last)
	}
	return r.deliver(ctx, o, last)
}

// spent reports whether the attempt that ended used up the last retry.
func (o *orphan) spent() bool { return o.retried >= o.maxRetry }

// handedOver reports whether the attempt that ended was given a delivery which asynq
// still has.
func (r *Recoverer) handedOver(ctx context.Context, o orphan) (bool, error) {
	for id := range r.g.redeliveries(o.key, o.token, "") {
		there, err := r.g.asked(ctx, o.queue, id)
		switch {
		case err != nil || there == nil:
			return false, err
		case !over(there):
			return true, nil
		}
	}
	return false, nil
}

// deliver enqueues the run. The task ID follows from the token of the attempt that
// ended, so of all that try one succeeds; a further one is made only when the
// delivery that has the ID is dead as well.
func (r *Recoverer) deliver(ctx context.Context, o orphan, last *asynq.TaskInfo) (time.Duration, error) {
	t, opts := r.replacement(o, last)
	hopeless := true
	for id := range r.g.redeliveries(o.key, o.token, o.delivery) {
		call, cancel := context.WithTimeout(ctx, r.g.opTimeout)
		_, err := r.g.client.EnqueueContext(call, t, append(opts, asynq.TaskID(id))...)
		cancel()
		if err == nil {
			r.g.log(o.key).Warn("onceq: orphaned run delivered again", "task", id, "queue", o.queue, "token", o.token,
				"attempt", o.attempt, "process", o.process, "state", o.state.String(), "retries_left", o.left())
			return lookAgain, nil
		}
		if !errors.Is(err, asynq.ErrTaskIDConflict) {
			return 0, fmt.Errorf("%w: enqueue %s: %w", ErrUnavailable, id, err)
		}
		there, err := r.g.asked(ctx, o.queue, id)
		if err != nil {
			return 0, err
		}
		switch {
		case there == nil: // begun and gone within this moment
			return lookAgain, nil
		case there.State == asynq.TaskStateActive && !o.again:
			return lookAgain, nil
		case there.State == asynq.TaskStateActive: // its worker died before it began
			hopeless = false
		case over(there):
		case resting(there):
			return r.wake(ctx, o, there)
		default:
			return stuckFor, nil
		}
	}
	if hopeless {
		return 0, r.fail(ctx, o, last, fmt.Sprintf("asynq gave up %d new deliveries, and none had begun", mostDeliveries))
	}
	r.g.log(o.key).Error("onceq: orphaned run has many deliveries and none begins; left to asynq's recovery",
		"token", o.token, "deliveries", mostDeliveries)
	return stuckFor, nil
}

// wake makes asynq deliver a task now that waits for a lease which ended sooner than it
// might have: by a crash, or given back.
func (r *Recoverer) wake(ctx context.Context, o orphan, t *asynq.TaskInfo) (time.Duration, error) {
	left := time.Until(t.NextProcessAt)
	if left < time.Second { // asynq is about to
		return lookAgain, nil
	}
	if o.state == StateRetrying && !waitsForLease(t, o.key) {
		return left + lookAfter, nil
	}
	_, err := within(ctx, r.g.opTimeout, func(context.Context) (any, error) { return nil, r.g.inspector.RunTask(t.Queue, t.ID) })
	if err != nil {
		return 0, fmt.Errorf("%w: wake task %s: %w", ErrUnavailable, t.ID, err)
	}
	r.g.log(o.key).Info("onceq: run's delivery is woken", "task", t.ID, "token", o.token, "waited_for", t.NextProcessAt)
	return lookAgain, nil
}

// replacement is the delivery that replaces last, which is nil when asynq has forgotten it.
func (r *Recoverer) replacement(o orphan, last *asynq.TaskInfo) (*asynq.Task, []asynq.Option) {
	opts := []asynq.Option{asynq.Queue(o.queue), asynq.MaxRetry(o.left())}
	t := asynq.NewTask(o.taskType, o.payload)
	if last != nil {
		t = asynq.NewTaskWithHeaders(last.Type, last.Payload, last.Headers)
		opts = append(opts, keptOptions(last)...)
	} else {
		opts = append(opts, asynq.Timeout(max(time.Second, o.timeout)))
	}
	return r.g.carry(t, o.key, o.generation, o.fingerprint), opts
}

// fail ends the run: nothing can deliver it.
func (r *Recoverer) fail(ctx context.Context, o orphan, last *asynq.TaskInfo, why string) error {
	g, base := r.g, r.g.base(o.key)
	failed, err := g.insist(context.WithoutCancel(ctx), func(ctx context.Context) (any, error) {
		return g.run.Run(ctx, recoverFailScript, []string{runkey.Lock(base), recordKey(base)},
			o.token, ms(g.retention), bounded(why), r.id)
	})
	if err != nil || !failed { // cannot tell, or it went on
		return err
	}
	err = fmt.Errorf("%w: %s", ErrOrphaned, why)
	g.log(o.key).Error("onceq: run failed", "attempt", o.attempt, "token", o.token, "err", err)
	t, _ := r.replacement(o, last)
	r.work.Go(func() { // it must not keep other runs waiting
		g.failed(ctx, Failure{Key: o.key, Generation: o.generation, Token: o.token, Attempt: o.attempt, Err: err, Task: t})
	})
	return nil
}
