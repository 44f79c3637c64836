package orchestrator

import (
	"context"
	"slices"

	"github.com/nexuscore/onceq/internal/database"
)

// HistoryKind says what happened to a run.
type HistoryKind string

// The kinds of history entries.
const (
	KindCreated        HistoryKind = "created"         // the run was accepted
	KindAttemptBegun   HistoryKind = "attempt_begun"   // a worker took it
	KindResumed        HistoryKind = "resumed"         // the attempt goes on from a checkpoint; Phase is the first to run
	KindDiscarded      HistoryKind = "discarded"       // a checkpoint was not used; Detail says why
	KindPhaseFinished  HistoryKind = "phase_finished"  // DurationMS
	KindPhaseUnsaved   HistoryKind = "phase_unsaved"   // a phase finished, its checkpoint could not be saved
	KindPhaseFailed    HistoryKind = "phase_failed"    // DurationMS, Detail
	KindAttemptFailed  HistoryKind = "attempt_failed"  // another will follow; Detail is the error
	KindRunSucceeded   HistoryKind = "succeeded"       // DurationMS from the generation's first attempt
	KindRunFailed      HistoryKind = "failed"          // Detail is the error
	KindRerunRequested HistoryKind = "rerun_requested" // Detail says whether from scratch
	KindRedelivered    HistoryKind = "redelivered"     // the run had lost its delivery; Detail says who gave it another
)

// HistoryEntry is a line of a run's history. Its JSON form is what [Dispatcher.HTTP] answers.
type HistoryEntry struct {
	ID         int64       `gorm:"column:id;primaryKey;autoIncrement" json:"-"`
	RunID      string      `gorm:"column:run_id" json:"-"`
	At         Millis      `gorm:"column:at" json:"at"`
	Kind       HistoryKind `gorm:"column:kind" json:"kind"`
	Generation int         `gorm:"column:generation" json:"generation"`
	Attempt    int         `gorm:"column:attempt" json:"attempt,omitempty"`         // 0 for what no attempt did
	Phase      string      `gorm:"column:phase" json:"phase,omitempty"`             // "" outside of phases
	DurationMS int64       `gorm:"column:duration_ms" json:"duration_ms,omitempty"` // 0 where nothing took time
	Detail     string      `gorm:"column:detail" json:"detail,omitempty"`           // at most 1,000 bytes
}

// maxEntries bounds one answer; a run can be retried for as long as it is rate limited.
const maxEntries = 1000

// History returns what happened to a run, the oldest first; of more than 1,000
// entries the newest 1,000. A run that does not exist has none.
func (r *Runs) History(ctx context.Context, runID string) ([]HistoryEntry, error) {
	if checkRunID(runID) != nil {
		return nil, nil
	}
	var list []HistoryEntry
	err := database.Fresh(ctx, r.db).Table(r.historyTable()).Where("run_id = ?", runID).
		Order("id DESC").Limit(maxEntries).Find(&list).Error
	if err != nil {
		return nil, cannotTell("history of a run", err)
	}
	slices.Reverse(list)
	return list, nil
}

func (r *Runs) historyTable() string { return r.table + "_history" }
