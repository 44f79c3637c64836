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
	//go:embed expire.lua
	expireLua    string
	expireScript = redis.NewScript(expireLua)
)

// expire hears from asynq of every task that did not succeed. asynq ends one whose
// deadline passed in its queue without asking any middleware, and archives it once
// its retries are spent that way: a run that never began would end in silence.
func (g *Guard) expire(ctx context.Context, t *asynq.Task, err error) {
	var ours *retryError
	if errors.As(err, &ours) || ctx.Err() == nil && !errors.Is(err, asynq.ErrLeaseExpired) {
		return // the middleware has decided
	}
	d, derr := g.delivered(ctx, t)
	if derr != nil {
		return
	}
	ctx = context.WithoutCancel(ctx) // asynq has ended the task's
	if !d.spent() {                  // only asynq knows whether it was the timeout or the deadline that ended
		if task, _ := g.asked(ctx, d.queue, d.id); !overdue(task) {
			return
		}
	}
	elsewhere, lerr := g.waitsElsewhere(ctx, d)
	if lerr != nil {
		g.log(d.key).Error("onceq: run ended in the queue and its failure could not be recorded", "task", d.id, "err", lerr)
		return
	}
	if elsewhere {
		g.log(d.key).Info("onceq: task ended in the queue, the run has another", "task", d.id, "err", err)
		return
	}
	why := "its task ended in the queue, before it began: " + err.Error()
	known := 0
	if t.Headers()[KeyHeader] != "" || d.key != d.id {
		known = 1
	}
	base, caller := g.base(d.key), randomID(16)
	failed, err := g.insist(ctx, func(ctx context.Context) (any, error) {
		return g.run.Run(ctx, expireScript, []string{runkey.Lock(base), recordKey(base)},
			d.generation, d.fingerprint, ms(g.retention), bounded(why), caller, known)
	})
	switch {
	case err != nil:
		g.log(d.key).Error("onceq: run ended in the queue and its failure could not be recorded", "task", d.id, "err", err)
	case failed:
		err := fmt.Errorf("%w: %s", ErrOrphaned, why)
		g.log(d.key).Error("onceq: run failed", "task", d.id, "generation", d.generation, "err", err)
		g.failed(ctx, Failure{Key: d.key, Generation: d.generation, Err: err, Task: t})
	}
}

// waitsElsewhere reports whether another delivery waits that may still begin the run.
// The one that asynq ends counts as taken by a worker.
func (g *Guard) waitsElsewhere(ctx context.Context, d delivery) (bool, error) {
	return insist(func() (bool, error) {
		r, err := g.Lookup(ctx, d.key)
		if err != nil {
			return false, err
		}
		return g.waiting(ctx, r, d.queue, func(t *asynq.TaskInfo) bool { return !overdue(t) })
	})
}

// insist asks three times for what returns 1 for yes: a lost reply would end a run
// in silence. The call must be safe to repeat.
func (g *Guard) insist(ctx context.Context, call func(context.Context) (any, error)) (yes bool, err error) {
	return insist(func() (bool, error) {
		bound, cancel := context.WithTimeout(ctx, g.opTimeout)
		defer cancel()
		v, err := call(bound)
		return v == int64(1), err
	})
}

func insist(call func() (bool, error)) (yes bool, err error) {
	for try := range 3 {
		if try > 0 {
			time.Sleep(finishPause)
		}
		if yes, err = call(); err == nil {
			return yes, nil
		}
	}
	return false, err
}
