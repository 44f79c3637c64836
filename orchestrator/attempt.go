package orchestrator

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"gorm.io/gorm"

	"github.com/nexuscore/onceq/checkpoint"
	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/database"
	"github.com/nexuscore/onceq/internal/lease"
)

// attempt writes to the row of the run that it holds.
type attempt struct {
	*idempotent.Attempt
	runs  *Runs
	runID string
	log   *slog.Logger
}

// Bounds of writes. They do not end with the handler's context, which asynq ends
// at a timeout, when it matters most that the row says so; within the guard's
// grace they must be over.
const (
	progressTimeout = 2 * time.Second
	writeTimeout    = 3 * time.Second
	writeTries      = 3
)

// Why an attempt has nothing to do.
var (
	errSucceeded  = errors.New("the row says SUCCESS")
	errFailed     = errors.New("the row says FAILED")
	errSuperseded = errors.New("the row is at a later generation")
)

// begin marks the run as this attempt's and returns its row. The error is
// errSucceeded, errFailed or errSuperseded, with the row; or a *StaleError, wraps
// ErrNotFound, or matches idempotent.ErrUnavailable.
func (w *attempt) begin(ctx context.Context) (Run, error) {
	t, g := w.Token(), w.Generation()
	row, changed, err := w.persist(ctx, change{
		runID: w.runID,
		where: open + " AND token < ?", args: append(isOpen(g), t),
		set: map[string]any{
			"status": StatusRunning, "token": t, "generation": g, "finished_at": 0, "settled": false,
			"attempts":   gorm.Expr("CASE WHEN generation < ? THEN 1 ELSE attempts + 1 END", g),
			"started_at": gorm.Expr("CASE WHEN started_at = 0 THEN ? ELSE started_at END", w.runs.millis()),
		},
		entry: w.entry(KindAttemptBegun), read: true,
	})
	switch {
	case err != nil || changed || row.Status == StatusRunning && row.Token == t && row.Generation == g:
		return row, err
	case row.Status == StatusSuccess:
		return row, errSucceeded
	case row.Generation > g:
		return row, errSuperseded
	case row.Status == StatusFailed && row.Generation == g:
		return row, errFailed
	}
	// Tokens come from Redis' clock. If it was set back, only time helps.
	return row, w.stale(row)
}

func (w *attempt) stale(row Run) error {
	return &StaleError{RunID: w.runID, Token: w.Token(), Generation: w.Generation(), Has: row}
}

func (w *attempt) entry(kind HistoryKind) HistoryEntry {
	return HistoryEntry{RunID: w.runID, Kind: kind, Generation: w.Generation(), Attempt: w.Number()}
}

// mine is a change that only the attempt that the row belongs to may make.
func (w *attempt) mine(set map[string]any) change {
	return change{
		runID: w.runID, where: "token = ? AND generation = ? AND status = ?",
		args: []any{w.Token(), w.Generation(), StatusRunning}, set: set,
	}
}

// persist makes a change that must not be lost. A change that took effect without
// an answer is found unchanged the next time; callers look at the row.
func (w *attempt) persist(ctx context.Context, c change) (row Run, changed bool, err error) {
	err = w.runs.insist(ctx, func(ctx context.Context) (err error) {
		if err = w.Err(); err == nil {
			row, changed, err = w.runs.apply(ctx, c)
		}
		return err
	})
	return row, changed, err
}

// insist calls write again when the database did not answer. It outlives ctx.
func (r *Runs) insist(ctx context.Context, write func(context.Context) error) error {
	ctx = context.WithoutCancel(ctx)
	for n := 1; ; n++ {
		call, cancel := context.WithTimeout(ctx, writeTimeout)
		err := write(call)
		cancel()
		if n == writeTries || !errors.Is(err, idempotent.ErrUnavailable) {
			return err
		}
		r.logger.Warn("onceq: status not written, trying again", "err", err)
		database.Pause(ctx, time.Duration(n)*100*time.Millisecond)
	}
}

// succeed writes SUCCESS and enqueues the notification. Written already is yes.
func (w *attempt) succeed(ctx context.Context, run Run, result JSON) error {
	now := w.runs.millis()
	c := w.mine(map[string]any{
		"status": StatusSuccess, "result": result, "error": "", "finished_at": now, "settled": true,
		"phases_done": gorm.Expr("phases_total"),
	})
	c.entry = w.entry(KindRunSucceeded)
	c.entry.DurationMS = int64(max(0, now-run.StartedAt))
	c.tell = true
	row, changed, err := w.persist(ctx, c)
	if err != nil || changed || row.Status == StatusSuccess && row.Token == w.Token() {
		return err
	}
	return w.stale(row)
}

// end writes how an attempt ended that did not succeed: FAILED, with the
// notification, when no other will follow, else RETRYING. It returns what the
// guard is told, which is err unless the run turned out to be another's.
func (w *attempt) end(ctx context.Context, err error) error {
	if w.Err() != nil || errors.Is(err, idempotent.ErrLeaseLost) {
		return err // the run is another's: nothing may be written
	}
	c := w.mine(map[string]any{"status": StatusRetrying, "error": errText(err)})
	c.entry = w.entry(KindAttemptFailed)
	if w.Final(err) {
		c.set["status"], c.set["finished_at"], c.set["settled"] = StatusFailed, w.runs.millis(), true
		c.entry.Kind, c.tell = KindRunFailed, true
	}
	c.entry.Detail = errText(err)
	row, changed, werr := w.persist(ctx, c)
	switch {
	case werr != nil: // OnFailed and the sweeper write FAILED, the next attempt RUNNING
		w.log.Error("onceq: status not written", "status", c.set["status"], "err", werr)
	case !changed && row.Token != w.Token():
		return errors.Join(w.stale(row), err)
	}
	return err
}

// observe writes a phase's progress. A row that belongs to another ends the
// attempt; a database that does not answer delays it, and no more.
func (w *attempt) observe(ctx context.Context) func(checkpoint.Event) {
	return func(e checkpoint.Event) {
		set := map[string]any{"phase": e.Phase, "phases_done": e.Index, "phases_total": e.Total}
		var kind HistoryKind
		switch e.Kind {
		case checkpoint.EventStarted:
		case checkpoint.EventFinished:
			kind, set["phases_done"] = KindPhaseFinished, e.Index+1
		case checkpoint.EventResumed:
			if kind = KindResumed; e.Phase == "" { // all phases are done: the last one stays
				delete(set, "phase")
			}
		case checkpoint.EventDiscarded:
			kind, set = KindDiscarded, map[string]any{}
		case checkpoint.EventFailed:
			kind = KindPhaseFailed
		case checkpoint.EventUnsaved:
			kind = KindPhaseUnsaved
		default:
			return
		}
		c := w.mine(set)
		if kind != "" {
			c.entry = w.entry(kind)
			c.entry.Phase, c.entry.DurationMS, c.entry.Detail = e.Phase, e.Duration.Milliseconds(), errText(e.Err)
			if kind == KindPhaseFailed && e.Err == nil {
				c.entry.Detail = "panic"
			}
		}
		w.progress(ctx, c)
	}
}

func (w *attempt) progress(ctx context.Context, c change) {
	if w.Err() != nil {
		return
	}
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), progressTimeout) // a phase that ended at a timeout ended all the same
	defer cancel()
	row, changed, err := w.runs.apply(call, c)
	switch {
	case err != nil:
		w.log.Warn("onceq: progress not written", "err", err)
	case !changed:
		if l, ok := lease.FromContext(ctx); ok {
			l.Lose(w.stale(row))
		}
	}
}
