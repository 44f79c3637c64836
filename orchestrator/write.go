package orchestrator

import (
	"context"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/database"
	"github.com/nexuscore/onceq/notify"
)

// change is one conditional UPDATE of a run's row, and what belongs to it.
type change struct {
	runID string
	// where narrows the UPDATE to the writer that may make it.
	where string
	args  []any
	set   map[string]any
	entry HistoryEntry // of the history; without a Kind none
	read  bool         // the row is wanted back
	tell  bool         // the run has ended: people are told
}

// apply makes the change, its history and the notification, all or nothing. changed
// says whether the row was the writer's to change. The row is as it is now when it
// was asked for, or when nothing changed. The error wraps ErrNotFound, matches
// idempotent.ErrUnavailable, or says that the attempt in ctx lost its lease.
//
// The condition is part of the UPDATE and the revision always changes, so the
// count of rows means the same on every database and isolation level.
func (r *Runs) apply(ctx context.Context, c change) (row Run, changed bool, err error) {
	if c.entry.Kind == "" && !c.read && !c.tell { // progress: one statement
		if changed, err = r.update(database.Fresh(ctx, r.db), c); err == nil && !changed {
			row, err = r.get(database.Fresh(ctx, r.db), c.runID)
		}
		return row, changed, wrapped("write of a run", err)
	}
	told, report := false, r.completed(ctx, c)
	err = database.Transaction(ctx, r.db, func(tx *gorm.DB) (err error) {
		if changed, err = r.update(tx, c); err != nil {
			return err
		}
		if !changed || c.read || c.tell {
			if row, err = r.get(tx, c.runID); err != nil || !changed {
				return err
			}
		}
		if err := r.note(tx, c.entry); err != nil {
			return err
		}
		if told = c.tell; told {
			return r.tell(ctx, tx, row, report)
		}
		return nil
	})
	if err == nil && told && r.outbox != nil {
		r.outbox.Kick()
	}
	return row, changed && err == nil, wrapped("write of a run", err)
}

func wrapped(doing string, err error) error {
	var known *databaseError
	if err == nil || errors.As(err, &known) || errors.Is(err, ErrNotFound) || errors.Is(err, idempotent.ErrLeaseLost) {
		return err
	}
	return cannotTell(doing, err)
}

func (r *Runs) update(db *gorm.DB, c change) (bool, error) {
	c.set["revision"] = gorm.Expr("revision + 1")
	c.set["updated_at"] = r.millis()
	res := db.Table(r.table).Where("run_id = ?", c.runID).Where(c.where, c.args...).Updates(c.set)
	return res.RowsAffected > 0, res.Error
}

// note adds a line to a run's history.
func (r *Runs) note(db *gorm.DB, e HistoryEntry) error {
	if e.Kind == "" {
		return nil
	}
	e.At, e.Detail = r.millis(), database.Storable(e.Detail, maxDetail)
	return db.Table(r.historyTable()).Create(&e).Error
}

// tell enqueues the notification about a run that has ended. What the outbox
// refuses or cannot store never changes the run's outcome: the row is then left
// unsettled, and the sweeper tries again.
func (r *Runs) tell(ctx context.Context, tx *gorm.DB, row Run, report notify.Report) error {
	if r.outbox == nil {
		return nil
	}
	err := r.outbox.Enqueue(ctx, tx, r.event(row, report))
	if errors.Is(err, notify.ErrInvalidEvent) { // something of the host's in it
		r.log(row.RunID).Error("onceq: notification refused, a plain one is made", "err", err)
		err = r.outbox.Enqueue(ctx, tx, notify.Event{
			RunID: row.RunID, Type: eventType(row.Status), Generation: row.Generation,
			Content: notify.Content{Text: fmt.Sprintf("Run %s: %s", row.RunID, row.Status)},
		})
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, idempotent.ErrLeaseLost), database.Repeatable(err):
		return err
	}
	r.log(row.RunID).Error("onceq: notification not enqueued, the sweeper tries again", "err", err)
	return tx.Table(r.table).Where("run_id = ?", row.RunID).Update("settled", false).Error
}

// open is the condition for a run that has not ended in this generation.
const open = "generation <= ? AND (status IN ? OR status = ? AND generation < ?)"

func isOpen(generation int) []any { return []any{generation, unfinished, StatusFailed, generation} }

// fail ends a run that no attempt is working on any more. A token of 0 stands for
// one that is not known: then the generation alone decides. It reports whether
// this call ended it.
func (r *Runs) fail(ctx context.Context, runID string, generation int, token int64, attempt int, reason string) (bool, error) {
	reason = database.Storable(reason, maxError)
	c := change{
		runID: runID, where: open, args: isOpen(generation),
		set: map[string]any{
			"status": StatusFailed, "generation": generation, "error": reason,
			"finished_at": r.millis(), "settled": true,
		},
		entry: HistoryEntry{RunID: runID, Kind: KindRunFailed, Generation: generation, Attempt: attempt, Detail: reason},
		tell:  true,
	}
	if token > 0 {
		c.where += " AND token <= ?"
		c.args = append(c.args, token)
		c.set["token"] = token
	}
	_, changed, err := r.apply(ctx, c)
	return changed, err
}
