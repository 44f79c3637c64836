package orchestrator

import (
	"fmt"
	"runtime/debug"
	"time"

	"github.com/nexuscore/onceq/notify"
)

// Types of the events that people are told of.
const (
	EventComplete = "orchestrator_complete" // once per run
	EventFailed   = "orchestrator_failed"   // once per generation of a run
)

func eventType(s Status) string {
	if s == StatusSuccess {
		return EventComplete
	}
	return EventFailed
}

// payload is an event's data.
type payload struct {
	RunID      string `json:"run_id"`
	Status     Status `json:"status"`
	Generation int    `json:"generation"`
	Attempts   int    `json:"attempts"`
	Phase      string `json:"phase,omitempty"`
	DurationMS int64  `json:"duration_ms"`
	Error      string `json:"error,omitempty"`
	Result     JSON   `json:"result,omitempty"`
}

func (r *Runs) event(row Run) notify.Event {
	return notify.Event{
		RunID: row.RunID, Type: eventType(row.Status), Generation: row.Generation,
		Payload: payload{
			RunID: row.RunID, Status: row.Status, Generation: row.Generation, Attempts: row.Attempts,
			Phase: row.Phase, DurationMS: row.took().Milliseconds(), Error: row.Error, Result: row.Result,
		},
		Content: r.content(row),
	}
}

func (r *Run) took() time.Duration {
	if r.StartedAt == 0 || r.FinishedAt < r.StartedAt {
		return 0
	}
	return time.Duration(r.FinishedAt-r.StartedAt) * time.Millisecond
}

func (r *Runs) content(row Run) notify.Content {
	report := notify.Report{
		RunID: row.RunID, Title: row.Requirement, Took: row.took(), Attempts: row.Attempts,
		Phase: row.Phase, Done: row.PhasesDone, Phases: row.PhasesTotal, Error: row.Error,
	}
	build, plain := r.finished, notify.Builder(notify.RunFinished)
	if row.Status != StatusSuccess {
		build, plain = r.failed, notify.RunFailed
	}
	var content notify.Content
	err := r.guarded(func() (err error) {
		if r.report != nil {
			r.report(row, &report)
		}
		content, err = build(report)
		return err
	})
	if err != nil {
		r.log(row.RunID).Error("onceq: message not built, a plain one is sent", "err", err)
		content, _ = plain(report) // never fails
	}
	return content
}

// guarded calls a function of the host's; a panic in it becomes an error.
func (r *Runs) guarded(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			r.logger.Error("onceq: panic", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return f()
}
