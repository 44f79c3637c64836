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
		return g.skip(d, skip)
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
	started, returned := time.Now(), false
	defer func() {
		stop()
		g.heart.remove(a)
		if !returned { // the stack stays what it was: no recover here
			_ = a.settle(ctx, errPanicked)
		}
		l.End()
		log.Info("onceq: attempt ended", "after", time.Since(started).Round(time.Millisecond), "err", err)
	}()
	err = next.ProcessTask(actx, t)
	returned = true
	return a.settle(ctx, err)
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
		return a.lost(err, lost)
	}
	if err == nil {
		return a.succeed(ctx)
	}
	if errors.Is(err, ErrLeaseLost) {
		return a.lost(err, err)
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

func (a *Attempt) lost(err, lost error) error {
	l := a.lease
	a.g.log(l.Key).Warn("onceq: lease lost", "attempt", l.Attempt, "token", l.Token, "err", lost)
	if err == nil || !errors.Is(err, ErrLeaseLost) {
		lost = errors.Join(lost, err)
	} else {
		lost = err
	}
	return &retryError{err: lost, class: ClassOrphaned, delay: a.g.policy.orphanDelay()}
}

func (a *Attempt) succeed(ctx context.Context) error {
	if err := a.finish(ctx, StateSucceeded, ""); err != nil {
		if errors.Is(err, ErrLeaseLost) {
			return a.lost(nil, err)
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
	if ferr := a.finish(ctx, StateFailed, bounded(err.Error())); ferr != nil {
		if errors.Is(ferr, ErrLeaseLost) {
			return a.lost(err, ferr)
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
	released := g.release(ctx, l.Key, l.Owner, handback{
		next: delay, reason: bounded(err.Error()), used: class == ClassTransient && !endedByAsynq(ctx),
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

func (g *Guard) skip(d delivery, s *skipped) error {
	g.log(d.key).Info("onceq: delivery skipped", "task", d.id, "state", s.state.String(), "reason", s.reason)
	switch {
	case s.stale:
		return fmt.Errorf("onceq: run %q has a newer generation: %s: %w", d.key, s.reason, asynq.RevokeTask)
	case s.state == StateSucceeded:
		g.writeResult(d, s.result)
		return nil
	}
	return permanent(fmt.Errorf("%w: %s", ErrAlreadyFailed, s.reason))
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
	Err        error // matches ErrPoisoned for a run that crashed too often
	Task       *asynq.Task
}

func (g *Guard) failed(ctx context.Context, f Failure) {
	if g.onFailed == nil {
		return
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
