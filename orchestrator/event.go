package orchestrator

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/nexuscore/onceq/internal/database"
	"github.com/nexuscore/onceq/internal/panics"
	"github.com/nexuscore/onceq/llmcache"
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

func (r *Runs) event(row Run, report notify.Report) notify.Event {
	return notify.Event{
		RunID: row.RunID, Type: eventType(row.Status), Generation: row.Generation,
		Payload: payload{
			RunID: row.RunID, Status: row.Status, Generation: row.Generation, Attempts: row.Attempts,
			Phase: row.Phase, DurationMS: row.took().Milliseconds(), Error: row.Error, Result: row.Result,
		},
		Content: r.content(row, report),
	}
}

func (r *Run) took() time.Duration {
	if r.StartedAt == 0 || r.FinishedAt < r.StartedAt {
		return 0
	}
	return time.Duration(r.FinishedAt-r.StartedAt) * time.Millisecond
}

// Cost is what a run's account says, as a report has it: an account counts in
// millionths of a dollar.
func Cost(a llmcache.Account) notify.Cost {
	return notify.Cost{
		USD: float64(a.Paid.CostMicros) / 1e6, Saved: float64(a.Saved.CostMicros) / 1e6,
		Calls: a.Paid.Calls, Tokens: a.Paid.Tokens(),
	}
}

// reportTimeout leaves the write that follows most of its time.
const reportTimeout = time.Second

// completed asks the host what else to tell of the run that c is about to end.
func (r *Runs) completed(ctx context.Context, c change) (report notify.Report) {
	if !c.tell || r.outbox == nil || r.report == nil {
		return report
	}
	row, err := r.get(database.Fresh(ctx, r.db), c.runID)
	if err == nil && !row.Settled { // else people were told
		report, err = r.ask(ctx, c.onto(row))
	}
	if err != nil {
		r.log(c.runID).Warn("onceq: report not completed, people are told without", "err", err)
	}
	return report
}

// ask waits for the host's function as long as it may take and no longer: one that
// ignores its context must not keep the outcome from being written. What it says later
// is not read.
func (r *Runs) ask(ctx context.Context, row Run) (notify.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	type answer struct {
		report notify.Report
		err    error
	}
	answered := make(chan answer, 1)
	go func() {
		var a answer
		a.err = r.guarded(func() error { return r.report(ctx, row, &a.report) })
		answered <- a
	}()
	select {
	case a := <-answered:
		return a.report, a.err
	case <-ctx.Done():
	}
	select { // one that heeds its context is about to answer
	case a := <-answered:
		return a.report, a.err
	case <-time.After(reportTimeout / 10):
		return notify.Report{}, ctx.Err()
	}
}

// onto returns the row as it is about to be.
func (c change) onto(row Run) Run {
	if v, ok := c.set["status"].(Status); ok {
		row.Status = v
	}
	if v, ok := c.set["error"].(string); ok {
		row.Error = v
	}
	if v, ok := c.set["result"].(JSON); ok {
		row.Result = v
	}
	if v, ok := c.set["finished_at"].(Millis); ok {
		row.FinishedAt = v
	}
	return row
}

func (r *Runs) content(row Run, report notify.Report) notify.Content {
	report.RunID, report.Title = row.RunID, cmp.Or(report.Title, row.Requirement)
	report.Took, report.Attempts, report.Error = row.took(), row.Attempts, row.Error
	report.Phase, report.Done, report.Phases = row.Phase, row.PhasesDone, row.PhasesTotal
	build, plain := r.finished, notify.Builder(notify.RunFinished)
	if row.Status != StatusSuccess {
		build, plain = r.failed, notify.RunFailed
	}
	var content notify.Content
	err := r.guarded(func() (err error) {
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
			err = panics.Error(v)
		}
	}()
	return f()
}
