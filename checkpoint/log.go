package checkpoint

import (
	"context"
	"log/slog"
)

// tell completes an event, logs it and hands it to the observers.
func (r *run) tell(ctx context.Context, e Event) {
	e.Run, e.Total = r.key, len(r.names)
	if r.lease != nil {
		e.Attempt, e.Token = r.lease.Attempt, r.lease.Token
	}
	r.logEvent(ctx, e)
	for _, observe := range r.cfg.observers {
		observe(e)
	}
}

func (r *run) logEvent(ctx context.Context, e Event) {
	where := []any{"phase", e.Phase, "index", e.Index, "total", e.Total}
	switch e.Kind {
	case EventResumed:
		r.log(ctx, slog.LevelInfo, "onceq: run resumes from its snapshot", append(where, "done", len(r.done))...)
	case EventDiscarded:
		r.log(ctx, slog.LevelWarn, "onceq: snapshot discarded, the run starts from the beginning", "reason", string(e.Reason), "err", e.Err)
	case EventStarted:
		r.log(ctx, slog.LevelInfo, "onceq: phase started", where...)
	case EventFinished:
		r.log(ctx, slog.LevelInfo, "onceq: phase finished", append(where, "duration", e.Duration)...)
	case EventFailed:
		if e.Err == nil {
			r.log(ctx, slog.LevelWarn, "onceq: phase panicked", append(where, "duration", e.Duration)...)
			return
		}
		r.log(ctx, slog.LevelWarn, "onceq: phase failed", append(where, "duration", e.Duration, "err", e.Err)...)
	case EventUnsaved: // logged where the reason is known
	}
}

func (r *run) log(ctx context.Context, level slog.Level, msg string, args ...any) {
	if !r.cfg.logger.Enabled(ctx, level) {
		return
	}
	if r.key != "" {
		args = append(args, "run", r.key)
	}
	if r.lease != nil {
		args = append(args, "attempt", r.lease.Attempt, "token", r.lease.Token)
	}
	r.cfg.logger.Log(ctx, level, msg, args...)
}
