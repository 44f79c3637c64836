package idempotent

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"unicode/utf8"

	"github.com/hibiken/asynq"
)

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

// poisoned ends a run that killed its workers.
func (g *Guard) poisoned(ctx context.Context, d delivery, err error) error {
	g.log(d.key).Error("onceq: run failed as a poison pill", "task", d.id, "err", err)
	g.failed(ctx, Failure{Key: d.key, Generation: d.generation, Err: err, Task: d.task})
	return permanent(err)
}

// bounded keeps a reason readable and small.
func bounded(s string) string { return cut(s, 1024) }

// cut returns valid UTF-8 of little more than limit bytes.
func cut(s string, limit int) string {
	if len(s) > limit {
		for limit > 0 && !utf8.RuneStart(s[limit]) {
			limit--
		}
		s = s[:limit] + "..."
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// archivable makes an error what asynq can store: text that is not UTF-8 would keep it
// from ever retrying or archiving the task, and a whole page of HTML fills its Redis.
func archivable(err error) error {
	if err == nil {
		return nil
	}
	said := text(err)
	if s := cut(said, 4096); s != said {
		return &shown{err, s}
	}
	return err
}

// shown is an error that reads otherwise.
type shown struct {
	error
	text string
}

func (e *shown) Error() string { return e.text }
func (e *shown) Unwrap() error { return e.error }
