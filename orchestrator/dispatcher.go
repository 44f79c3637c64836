package orchestrator

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
	"gorm.io/gorm"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/database"
	"github.com/nexuscore/onceq/internal/setting"
)

// DispatcherOption sets up a [Dispatcher].
type DispatcherOption func(*dispatching)

type dispatching struct {
	timeout  time.Duration
	queue    string
	maxRetry int
}

// WithTimeout bounds one attempt: asynq ends its context after that. At least 1 s.
// Defaults to 2 h.
func WithTimeout(d time.Duration) DispatcherOption { return func(c *dispatching) { c.timeout = d } }

// WithQueue names the asynq queue. Defaults to "default".
func WithQueue(name string) DispatcherOption { return func(c *dispatching) { c.queue = name } }

// WithMaxRetry sets how often a run is retried after errors that use up the budget.
// 1 to 1000; 0, the default, means the guard's retry budget.
func WithMaxRetry(n int) DispatcherOption { return func(c *dispatching) { c.maxRetry = n } }

// Dispatcher takes runs in and gives them to workers. It is safe for concurrent use,
// by any number of processes.
//
// Create and Status are what most programs need; HTTP offers the same to others.
type Dispatcher struct {
	runs     *Runs
	guard    *idempotent.Guard
	producer *idempotent.Producer
	dispatching
}

// NewDispatcher returns a dispatcher that enqueues through producer; the guard that it
// asks of a run is the producer's. The error wraps idempotent.ErrInvalid.
func NewDispatcher(runs *Runs, producer *idempotent.Producer, opts ...DispatcherOption) (*Dispatcher, error) {
	if runs == nil || producer == nil {
		return nil, setting.Invalidf("NewDispatcher: runs or producer is nil")
	}
	d := &Dispatcher{
		runs: runs, guard: producer.Guard(), producer: producer,
		dispatching: dispatching{timeout: 2 * time.Hour, queue: "default"},
	}
	if err := setting.Apply(&d.dispatching, opts); err != nil {
		return nil, err
	}
	switch {
	case d.timeout < time.Second:
		return nil, setting.Invalidf("WithTimeout: %v is shorter than 1s", d.timeout)
	case d.queue == "" || len(d.queue) > 256:
		return nil, setting.Invalidf("WithQueue: the name has %d bytes, 1 to 256 are allowed", len(d.queue))
	case d.maxRetry < 0 || d.maxRetry > 1000:
		return nil, setting.Invalidf("WithMaxRetry: %d is not between 1 and 1000, or 0 for the guard's budget", d.maxRetry)
	}
	return d, nil
}

// NewRun is what is asked for.
type NewRun struct {
	// RunID names the run: 1 to 128 bytes of UTF-8 without control characters.
	// The same ID again is the same run, so a caller who may ask twice gives it.
	// Empty: a random one is made.
	RunID string `json:"run_id,omitempty"`
	// Requirement is what the run is to do, in words. Required; see WithMaxInput.
	Requirement string `json:"requirement"`
	// Parameters is a JSON object with whatever else the phases need. Nil for none.
	Parameters json.RawMessage `json:"parameters,omitempty"`
}

// dispatchTimeout bounds what is done after the row was committed.
const dispatchTimeout = 15 * time.Second

// Create accepts a run: it writes its row, then enqueues it. The run is returned as its
// row has it, also with an error; without a row it is empty.
//
// A nil error means that the run is accepted. No is a [*FieldError]; an
// *idempotent.DuplicateError, SucceededError or PayloadMismatchError when there is a run
// of that ID. Cannot tell matches idempotent.ErrUnavailable: ask again with the same
// ID. A run without an ID of the caller's is then withdrawn, as nobody could ask
// again for it, and its row says FAILED; one with an ID stays, and the sweeper enqueues
// it should its caller not come back.
func (d *Dispatcher) Create(ctx context.Context, n NewRun) (Run, error) {
	named := n.RunID != ""
	row, err := d.newRow(n)
	if err != nil {
		return Run{}, err
	}
	// From here on a caller who hangs up must not leave half a run.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dispatchTimeout)
	defer cancel()
	row, fresh, err := d.runs.insert(ctx, row)
	if err != nil {
		return Run{}, err
	}
	if row.input() != d.inputOf(n) {
		return row, &idempotent.PayloadMismatchError{Key: d.runs.Key(row.RunID), State: stateOf(row.Status)}
	}
	if row.Status != StatusPending || row.Generation > 1 {
		return row, d.exists(ctx, row)
	}
	err = d.enqueue(ctx, row)
	switch {
	case err == nil || !fresh:
		return row, err
	case errors.Is(err, idempotent.ErrPayloadMismatch), errors.Is(err, idempotent.ErrInvalid):
		if d.runs.discard(ctx, row) {
			row = Run{}
		}
	case errors.Is(err, idempotent.ErrUnavailable) && !named:
		return d.withdraw(ctx, row, err)
	}
	return row, err
}

func (d *Dispatcher) newRow(n NewRun) (Run, error) {
	if n.RunID == "" {
		n.RunID = rand.Text()
	}
	if err := checkRunID(n.RunID); err != nil {
		return Run{}, err
	}
	params, err := checkInput(n.Requirement, n.Parameters, d.runs.maxInput)
	if err != nil {
		return Run{}, err
	}
	now := d.runs.millis()
	return Run{
		RunID: n.RunID, Requirement: n.Requirement, Parameters: params, Status: StatusPending,
		Generation: 1, Revision: 1, CreatedAt: now, UpdatedAt: now,
	}, nil
}

func (d *Dispatcher) inputOf(n NewRun) string {
	r := Run{Requirement: n.Requirement}
	_ = r.Parameters.UnmarshalJSON(n.Parameters) // newRow has checked it; none is ""
	return r.input()
}

// insert writes a new row, or returns the one that has its ID. A conflict is known by
// looking afterwards: what drivers say of it differs, and a commit whose reply was
// lost looks the same.
func (r *Runs) insert(ctx context.Context, row Run) (got Run, fresh bool, err error) {
	err = database.Transaction(ctx, r.db, func(tx *gorm.DB) error {
		got = row // gorm writes the ID into it
		if err := tx.Table(r.table).Create(&got).Error; err != nil {
			return err
		}
		return r.note(tx, HistoryEntry{RunID: row.RunID, Kind: KindCreated, Generation: 1})
	})
	if err == nil {
		return got, true, nil
	}
	old, gerr := r.get(database.Fresh(ctx, r.db), row.RunID)
	if gerr != nil {
		return Run{}, false, cannotTell("insert of a run", err)
	}
	return old, false, nil
}

// discard removes a row that was written for a run that must not be, and reports
// whether it did.
func (r *Runs) discard(ctx context.Context, row Run) (gone bool) {
	err := database.Transaction(ctx, r.db, func(tx *gorm.DB) error {
		res := tx.Table(r.table).Where("run_id = ? AND revision = 1 AND status = ?", row.RunID, StatusPending).Delete(&Run{})
		if gone = res.RowsAffected > 0; !gone {
			return res.Error
		}
		return tx.Table(r.historyTable()).Where("run_id = ?", row.RunID).Delete(&HistoryEntry{}).Error
	})
	if err != nil { // the sweeper meets the same refusal and fails the run
		r.log(row.RunID).Error("onceq: refused run not removed", "err", err)
	}
	return gone && err == nil
}

// withdraw takes back a run whose caller is told that it was not accepted.
func (d *Dispatcher) withdraw(ctx context.Context, row Run, cause error) (Run, error) {
	reason := "not accepted: " + cause.Error()
	got, changed, err := d.runs.apply(ctx, change{
		runID: row.RunID, where: "status = ? AND token = 0", args: []any{StatusPending},
		set: map[string]any{
			"status": StatusFailed, "error": database.Storable(reason, maxError), "settled": true, "finished_at": d.runs.millis(),
		},
		entry: HistoryEntry{RunID: row.RunID, Kind: KindRunFailed, Generation: 1, Detail: reason},
		read:  true,
	})
	switch {
	case err != nil:
		return row, cause
	case !changed: // it was enqueued after all, and has begun
		return got, nil
	}
	return got, cause
}

// exists is the answer for a run that is there and needs no enqueue.
func (d *Dispatcher) exists(ctx context.Context, row Run) error {
	key := d.runs.Key(row.RunID)
	switch row.Status {
	case StatusSuccess:
		return &idempotent.SucceededError{Key: key, At: row.FinishedAt.Time()}
	case StatusFailed:
		return &idempotent.DuplicateError{Key: key, State: idempotent.StateFailed}
	}
	dup := &idempotent.DuplicateError{Key: key, State: stateOf(row.Status), RetryAfter: 10 * time.Second}
	seen, err := d.guard.Lookup(ctx, key)
	switch { // the row says enough for an answer; Redis knows when to come back
	case err != nil:
	case seen.LeaseLeft > 0:
		dup.State, dup.Holder, dup.RetryAfter = idempotent.StateRunning, seen.Holder, seen.LeaseLeft
	case seen.State == idempotent.StateRetrying:
		dup.State, dup.RetryAfter = seen.State, max(time.Second, time.Until(seen.RetryAt))
	}
	return dup
}

func stateOf(s Status) idempotent.State {
	switch s {
	case StatusPending:
		return idempotent.StateQueued
	case StatusRunning:
		return idempotent.StateRunning
	case StatusRetrying:
		return idempotent.StateRetrying
	case StatusSuccess:
		return idempotent.StateSucceeded
	case StatusFailed:
		return idempotent.StateFailed
	}
	return idempotent.StateUnknown
}

// Status returns a run as its row has it. The error wraps ErrNotFound or matches
// idempotent.ErrUnavailable.
func (d *Dispatcher) Status(ctx context.Context, runID string) (Run, error) {
	return d.runs.Get(ctx, runID)
}

// Rerun starts a failed run again as a new generation with a full budget, after the
// last finished phase, if its checkpoint is still there, or from scratch. Only FAILED
// runs: others answer
// *idempotent.SucceededError or *idempotent.DuplicateError. When Redis cannot answer,
// the error matches idempotent.ErrUnavailable and the rerun is on record: the
// sweeper enqueues it.
func (d *Dispatcher) Rerun(ctx context.Context, runID string, fromScratch bool) (Run, error) {
	row, err := d.runs.Get(ctx, runID)
	if err != nil {
		return Run{}, err
	}
	if row.Status != StatusFailed {
		return row, d.exists(ctx, row)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dispatchTimeout)
	defer cancel()
	// The table first: from here on the sweeper sees to it.
	next, changed, err := d.runs.reopen(ctx, row, fromScratch)
	switch {
	case err != nil:
		return row, err
	case !changed: // another caller was faster
		return next, d.exists(ctx, next)
	}
	err = d.rerun(ctx, next)
	if err == nil || errors.Is(err, idempotent.ErrUnavailable) {
		return next, err
	}
	if back, rerr := d.runs.restore(ctx, row, next); rerr == nil {
		return back, err
	}
	return next, err
}

// reopen opens the generation after the one in which the run failed.
func (r *Runs) reopen(ctx context.Context, row Run, fromScratch bool) (Run, bool, error) {
	how := "from its checkpoint"
	set := map[string]any{
		"status": StatusPending, "generation": row.Generation + 1, "attempts": 0, "error": "", "started_at": 0,
		"finished_at": 0, "from_scratch": fromScratch, "settled": false,
	}
	if fromScratch {
		how = "from scratch"
		set["phase"], set["phases_done"] = "", 0
	}
	return r.apply(ctx, change{
		runID: row.RunID, where: "status = ? AND generation = ?", args: []any{StatusFailed, row.Generation}, set: set,
		entry: HistoryEntry{RunID: row.RunID, Kind: KindRerunRequested, Generation: row.Generation + 1, Detail: how}, read: true,
	})
}

// restore takes back a generation that was opened and then refused by Redis.
func (r *Runs) restore(ctx context.Context, was, is Run) (Run, error) {
	row, changed, err := r.apply(ctx, change{
		runID: was.RunID, where: "status = ? AND generation = ? AND token = ?",
		args: []any{StatusPending, is.Generation, is.Token},
		set: map[string]any{
			"status": StatusFailed, "generation": was.Generation, "attempts": was.Attempts, "error": was.Error,
			"started_at": was.StartedAt, "finished_at": was.FinishedAt, "from_scratch": was.FromScratch,
			"settled": was.Settled, "phase": was.Phase, "phases_done": was.PhasesDone,
		},
		read: true,
	})
	if err == nil && !changed {
		err = fmt.Errorf("run %q has begun", was.RunID)
	}
	return row, err
}

// Redeliver gives a run that has no live attempt a delivery at once, for whoever
// knows that its own is lost: a supervisor that saw its worker die. It is harmless
// when wrong, and of several callers one wins. Runs that need none answer
// *idempotent.DuplicateError or *idempotent.SucceededError.
func (d *Dispatcher) Redeliver(ctx context.Context, runID string) error {
	row, err := d.runs.Get(ctx, runID)
	if err != nil {
		return err
	}
	if row.Status.Ended() {
		return d.exists(ctx, row)
	}
	seen, err := d.guard.Lookup(ctx, d.runs.Key(runID))
	if err != nil {
		return err
	}
	how := d.decide(row, seen, 0)
	if how == verdictLeave {
		return d.exists(ctx, row)
	}
	return d.carryOut(ctx, row, seen, how, "asked for")
}

func (d *Dispatcher) options() []asynq.Option {
	opts := []asynq.Option{asynq.Timeout(d.timeout), asynq.Queue(d.queue)}
	if d.maxRetry > 0 {
		opts = append(opts, asynq.MaxRetry(d.maxRetry))
	}
	return opts
}

func (d *Dispatcher) enqueue(ctx context.Context, row Run) error {
	_, err := d.producer.Enqueue(ctx, d.runs.Key(row.RunID), d.runs.task(row), d.options()...)
	return err
}

func (d *Dispatcher) redeliver(ctx context.Context, row Run) error {
	_, err := d.producer.Redeliver(ctx, d.runs.Key(row.RunID), d.runs.task(row), d.options()...)
	return err
}

// rerun makes Redis open the row's generation, or a later one.
func (d *Dispatcher) rerun(ctx context.Context, row Run) error {
	how := idempotent.RerunOptions{FromScratch: row.FromScratch, After: row.Generation - 1}
	_, err := d.producer.Rerun(ctx, d.runs.Key(row.RunID), d.runs.task(row), how, d.options()...)
	return err
}
