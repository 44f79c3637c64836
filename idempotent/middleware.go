package idempotent

import (
	"context"
	"errors"
	"fmt"
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
//
// A task that no Producer enqueued is named by its asynq task ID. An ID that is used
// again, as by a scheduler with a fixed one, is the same run: it is skipped until
// WithRetention is over.
func (g *Guard) Middleware(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		return archivable(g.serve(ctx, t, next))
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
		timer = time.AfterFunc(a.g.grace, func() { a.giveUp(errGrace, !putBackByAsynq(ctx)) })
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

// putBackByAsynq reports whether asynq cancelled the context, as for a shutdown: it then
// puts the task back and uses no retry. A deadline is not meant.
func putBackByAsynq(ctx context.Context) bool {
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
		// Nothing failed, so no retry is used, and the archive is no place for a success.
		return a.g.again(ctx, a.delivery, a.lease.Token, err, ClassOrphaned, a.g.policy.delay(ClassTransient, 0, whileAway))
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
		next: delay, reason: bounded(text(err)), used: class == ClassTransient && !putBackByAsynq(ctx),
	})
	g.log(l.Key).Warn("onceq: attempt failed, another will follow", "attempt", l.Attempt, "token", l.Token,
		"class", class.String(), "in", delay.Round(time.Millisecond), "released", released, "err", err)
	return g.again(ctx, a.delivery, l.Token, err, class, delay)
}

// notBegun answers a delivery whose run is held, or of which Redis says nothing.
func (g *Guard) notBegun(ctx context.Context, d delivery, err error) error {
	class, wait := g.classify(err)
	var held *ContendedError
	var token int64
	if errors.As(err, &held) {
		wait, token = held.RetryAfter, held.token
		if held.Holder == "" {
			g.log(d.key).Info("onceq: delivery waits for the run's retry", "task", d.id, "left", wait)
		} else {
			g.log(d.key).Info("onceq: delivery waits for the holder", "task", d.id, "holder", held.Holder, "left", wait)
		}
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

func (g *Guard) writeResult(d delivery, result []byte) {
	w := d.task.ResultWriter()
	if w == nil || result == nil {
		return
	}
	if _, err := w.Write(result); err != nil { // the outcome holds it: Guard.Lookup
		g.log(d.key).Warn("onceq: result not written to the task", "task", d.id, "err", err)
	}
}
