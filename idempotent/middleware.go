package idempotent

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/hibiken/asynq"
)

// Middleware wraps a handler so that it runs only as an attempt that holds its
// run's lease. Put it outermost: what is inside sees the lease in its context.
//
// A delivery whose run succeeded returns nil, after writing the stored result; one
// whose run failed, or that is of an older generation, is skipped visibly. One
// whose run is held returns a *ContendedError, which ServerConfig's policy retries
// when the lease may be over. The handler's context is derived from asynq's, which
// the guard never cancels; it ends with ErrLeaseLost as its cause when the lease
// does. asynq builds its chain anew for each task, so this only captures.
func (g *Guard) Middleware(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		return g.serve(ctx, t, next)
	})
}

func (g *Guard) serve(ctx context.Context, t *asynq.Task, next asynq.Handler) error {
	d, err := g.delivered(ctx, t)
	if a, ok := FromContext(ctx); ok && a.g == g && a.Key() == d.key {
		return next.ProcessTask(ctx, t) // wrapped twice: it holds the lease already
	}
	if errors.Is(err, errForeign) {
		return g.putBack(ctx, d, err)
	}
	if err != nil {
		g.logger.Error("onceq: delivery refused", "task", d.id, "type", t.Type(), "err", err)
		return permanent(err)
	}
	actx, a, skip, err := g.begin(ctx, d)
	switch {
	case errors.Is(err, ErrPoisoned):
		return g.poisoned(ctx, d, err)
	case err != nil:
		return g.notBegun(ctx, d, err)
	case skip != nil:
		return g.skip(ctx, d, skip)
	}
	return a.work(ctx, actx, t, next)
}

// work runs the handler. Its deferred part also runs for a panic and for
// runtime.Goexit: asynq recovers the one after us and never hears of the other.
func (a *Attempt) work(ctx, actx context.Context, t *asynq.Task, next asynq.Handler) (err error) {
	g, l := a.g, a.lease
	g.heart.add(a)
	stop := a.watchGrace(ctx)
	log := g.log(l.Key).With("attempt", l.Attempt, "token", l.Token)
	log.Info("onceq: attempt begun", "task", a.delivery.id, "generation", l.Generation, "resumed", l.Snapshot != nil, "crashes", a.crashes)
	started, settled := time.Now(), false
	defer func() {
		stop()
		g.heart.remove(a)
		if !settled { // the stack stays what it was: no recover here
			a.returned.Store(true)
			_ = a.settle(ctx, errPanicked)
		}
		l.End()
		log.Info("onceq: attempt ended", "after", time.Since(started).Round(time.Millisecond), "err", err)
	}()
	err = next.ProcessTask(actx, t)
	a.returned.Store(true) // it does not hang: nothing is to be taken from it
	err = a.settle(ctx, err)
	settled = true
	return err
}

var errPanicked = errors.New("the handler panicked or called runtime.Goexit")

// watchGrace bounds how long the attempt outlives asynq's context.
func (a *Attempt) watchGrace(ctx context.Context) (stop func()) {
	var timer *time.Timer
	armed := make(chan struct{})
	unwatch := context.AfterFunc(ctx, func() {
		timer = time.AfterFunc(a.g.grace, func() { a.giveUp(errGrace, !endedByAsynq(ctx)) })
		close(armed)
	})
	return func() {
		if !unwatch() {
			<-armed
			timer.Stop()
		}
	}
}

// settle writes how the attempt ended and returns what asynq is told.
func (a *Attempt) settle(ctx context.Context, err error) error {
	l := a.lease
	if lost := l.Err(); lost != nil {
		return a.lost(ctx, err, lost)
	}
	if err == nil {
		return a.succeed(ctx)
	}
	class, wait := a.g.classify(err)
	if a.Final(err) {
		return a.fail(ctx, err, class)
	}
	return a.retry(ctx, err, class, wait)
}

// endedByAsynq: asynq ends the context for a shutdown too, and then puts the task
// back without using a retry. Only a timeout is surely an end.
func endedByAsynq(ctx context.Context) bool {
	return ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded)
}

// lost ends an attempt that may write nothing more, not even how it ended: unless it
// was given up, it counts as a crash, for a run that loses its lease again and again must end.
func (a *Attempt) lost(ctx context.Context, err, lost error) error {
	g, l := a.g, a.lease
	g.log(l.Key).Warn("onceq: lease lost", "attempt", l.Attempt, "token", l.Token, "err", lost)
	delay := g.policy.orphanDelay()
	if err == nil || !errors.Is(err, ErrLeaseLost) {
		lost = errors.Join(lost, err)
	} else {
		lost = err
	}
	if ctx.Err() != nil { // asynq has decided what becomes of the task
		return &retryError{err: lost, class: ClassOrphaned, delay: delay}
	}
	return g.again(ctx, a.delivery, l.Token, lost, ClassOrphaned, delay)
}

func (a *Attempt) succeed(ctx context.Context) error {
	if err := a.finish(ctx, StateSucceeded, ""); err != nil {
		if errors.Is(err, ErrLeaseLost) {
			return a.lost(ctx, nil, err)
		}
		class, wait := a.g.classify(err)
		return &retryError{err: err, class: class, delay: a.g.policy.delay(class, wait, a.delivery.retried)}
	}
	a.g.log(a.lease.Key).Info("onceq: run succeeded", "attempt", a.lease.Attempt, "token", a.lease.Token)
	a.mu.Lock()
	result := a.result
	a.mu.Unlock()
	a.g.writeResult(a.delivery, result)
	return nil
}

func (a *Attempt) fail(ctx context.Context, err error, class Class) error {
	g, l := a.g, a.lease
	if ferr := a.finish(ctx, StateFailed, bounded(text(err))); ferr != nil {
		if errors.Is(ferr, ErrLeaseLost) {
			return a.lost(ctx, err, ferr)
		}
		// The failure could not be recorded. Archiving the task now would leave a run
		// that is called running and never runs.
		return g.again(ctx, a.delivery, l.Token, errors.Join(err, ferr), ClassTransient, g.policy.delay(ClassTransient, 0, a.delivery.retried))
	}
	g.log(l.Key).Error("onceq: run failed", "attempt", l.Attempt, "token", l.Token, "class", class.String(), "err", err)
	g.failed(ctx, Failure{Key: l.Key, Generation: l.Generation, Token: l.Token, Attempt: l.Attempt, Err: err, Task: a.delivery.task})
	if class == ClassPermanent {
		return permanent(err)
	}
	return err
}

func (a *Attempt) retry(ctx context.Context, err error, class Class, wait time.Duration) error {
	g, l := a.g, a.lease
	delay := g.policy.delay(class, wait, a.delivery.retried)
	released := a.handBack(ctx, handback{
		next: delay, reason: bounded(text(err)), used: class == ClassTransient && !endedByAsynq(ctx),
	})
	g.log(l.Key).Warn("onceq: attempt failed, another will follow", "attempt", l.Attempt, "token", l.Token,
		"class", class.String(), "in", delay.Round(time.Millisecond), "released", released, "err", err)
	return g.again(ctx, a.delivery, l.Token, err, class, delay)
}

// poisoned ends a run that killed its workers.
func (g *Guard) poisoned(ctx context.Context, d delivery, err error) error {
	g.log(d.key).Error("onceq: run failed as a poison pill", "task", d.id, "err", err)
	g.failed(ctx, Failure{Key: d.key, Generation: d.generation, Err: err, Task: d.task})
	return permanent(err)
}

// notBegun answers a delivery whose run is held, or of which Redis says nothing.
func (g *Guard) notBegun(ctx context.Context, d delivery, err error) error {
	class, wait := g.classify(err)
	var held *ContendedError
	var token int64
	if errors.As(err, &held) {
		wait, token = held.RetryAfter, held.token
		g.log(d.key).Info("onceq: delivery waits for the holder", "task", d.id, "holder", held.Holder, "left", wait)
	} else {
		g.log(d.key).Warn("onceq: attempt not begun", "task", d.id, "err", err)
	}
	delay := g.policy.delay(class, wait, d.retried)
	if held == nil && errors.Is(err, ErrUnavailable) {
		// No attempt began, so none is used up: an outage of the run's keys alone, as of
		// one node of a cluster, would else archive the task within its retries.
		class, delay = ClassOrphaned, g.policy.delay(ClassTransient, 0, whileAway)
	}
	return g.again(ctx, d, token, err, class, delay)
}

// putBack leaves a task of another prefix to the workers of that prefix. It is no
// attempt of this guard's: nothing is written, and no retry is used while there is one.
func (g *Guard) putBack(ctx context.Context, d delivery, err error) error {
	g.logger.Warn("onceq: task put back", "task", d.id, "type", d.task.Type(), "err", err)
	return &retryError{err: err, class: ClassOrphaned, delay: g.policy.delay(ClassTransient, 0, whileAway)}
}

// whileAway is the step of the backoff that is kept while Redis does not answer: up to
// four times the base, so that neither Redis nor the run waits for long.
const whileAway = 2

func (g *Guard) skip(ctx context.Context, d delivery, s *skipped) error {
	if s.newer > 0 {
		return g.stale(ctx, d, s)
	}
	g.log(d.key).Info("onceq: delivery skipped", "task", d.id, "state", s.state.String(), "reason", s.reason)
	if s.state == StateSucceeded {
		g.writeResult(d, s.result)
		return nil
	}
	err := fmt.Errorf("%w: %s", ErrAlreadyFailed, s.reason)
	if !s.told { // whoever wrote the failure did not come to it
		g.failed(ctx, Failure{Key: d.key, Generation: d.generation, Token: s.token, Attempt: s.attempt, Err: err, Task: d.task})
	}
	return permanent(err)
}

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
		opts := append(g.originalOptions(d), asynq.Queue(d.queue), asynq.TaskID(id), asynq.MaxRetry(g.policy.maxRetry))
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.opTimeout) // a run must not be lost to a timeout
		defer cancel()
		_, eerr := g.client.EnqueueContext(call, g.carry(d.task, d.key, s.newer, d.fingerprint), opts...)
		if errors.Is(eerr, asynq.ErrTaskIDConflict) {
			if there, _ := g.asked(d.queue, id); there != nil && over(there) {
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

func (g *Guard) writeResult(d delivery, result []byte) {
	w := d.task.ResultWriter()
	if w == nil || result == nil {
		return
	}
	if _, err := w.Write(result); err != nil { // the outcome holds it: Guard.Lookup
		g.log(d.key).Warn("onceq: result not written to the task", "task", d.id, "err", err)
	}
}

// Failure is a run that failed for good; see WithOnFailed.
type Failure struct {
	Key        string
	Generation int
	Token      int64 // of the last attempt; 0 when no attempt of this process held the run
	Attempt    int
	Err        error // matches ErrPoisoned, ErrOrphaned, or what the handler returned; ErrAlreadyFailed where the first to know was cut off
	Task       *asynq.Task
}

// failed tells of a failure that is recorded, once: a reply may have been lost on the
// way, and then another who meets the run tells.
func (g *Guard) failed(ctx context.Context, f Failure) {
	if g.onFailed == nil {
		return
	}
	caller := randomID(8)
	mine, err := g.insist(context.WithoutCancel(ctx), func(ctx context.Context) (any, error) {
		return g.run.Run(ctx, tellScript, []string{recordKey(g.base(f.Key))}, f.Generation, caller)
	})
	if err == nil && !mine {
		return
	}
	if err != nil { // told twice is better than never
		g.log(f.Key).Warn("onceq: failure is told, which could not be recorded", "err", err)
	}
	defer func() {
		if v := recover(); v != nil {
			g.log(f.Key).Error("onceq: OnFailed panicked", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
		}
	}()
	g.onFailed(context.WithoutCancel(ctx), f) // the run has ended, whatever becomes of its task
}

// bounded keeps a reason readable and small.
func bounded(s string) string {
	const limit = 1024
	if len(s) <= limit {
		return s
	}
	return s[:limit] + "..."
}
