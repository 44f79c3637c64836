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
	if derr != nil || !d.spent() && !g.overdue(d) {
		return
	}
	why := "its task ended in the queue, before it began: " + err.Error()
	known := 0
	if t.Headers()[KeyHeader] != "" || d.key != d.id {
		known = 1
	}
	base, caller := g.base(d.key), randomID(16)
	failed, err := g.insist(context.WithoutCancel(ctx), func(ctx context.Context) (any, error) { // asynq has ended the task's
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

// overdue reports whether no later try can begin either. A timeout counts anew
// from each begin, a deadline does not: only asynq knows which of the two has ended.
func (g *Guard) overdue(d delivery) bool {
	info, err := g.inspector.GetTaskInfo(d.queue, d.id)
	return err == nil && !info.Deadline.IsZero() && !time.Now().Before(info.Deadline)
}

// insist asks three times for what returns 1 for yes: a lost reply would end a run
// in silence. The call must be safe to repeat.
func (g *Guard) insist(ctx context.Context, call func(context.Context) (any, error)) (yes bool, err error) {
	for try := range 3 {
		if try > 0 {
			time.Sleep(finishPause)
		}
		var v any
		bound, cancel := context.WithTimeout(ctx, g.opTimeout)
		v, err = call(bound)
		cancel()
		if err == nil {
			return v == int64(1), nil
		}
	}
	return false, err
}
