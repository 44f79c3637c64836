package orchestrator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/database"
	"github.com/nexuscore/onceq/internal/setting"
)

// SweeperOption sets up a [Sweeper].
type SweeperOption func(*sweeping)

type sweeping struct {
	interval  time.Duration
	threshold time.Duration
	batch     int
}

// WithInterval sets the time between two sweeps. At least 10 ms, at most 1 h. Defaults to
// 15 s.
func WithInterval(d time.Duration) SweeperOption { return func(c *sweeping) { c.interval = d } }

// WithThreshold sets for how long a row must have rested before the sweeper looks at
// its run, and how long a retry may be overdue. It should be longer than it takes to
// enqueue. At least 10 ms, at most 24 h. Defaults to 30 s.
func WithThreshold(d time.Duration) SweeperOption { return func(c *sweeping) { c.threshold = d } }

// WithBatch bounds how many runs one sweep looks at; the next goes on after them. 1
// to 100,000. Defaults to 1000.
func WithBatch(n int) SweeperOption { return func(c *sweeping) { c.batch = n } }

// Sweeper finds runs that the table calls unfinished and that nobody is working on,
// and dispatches them again: their process died between commit and enqueue, or
// Redis lost everything. It also writes what Redis knows of a run's end into a row
// that does not have it, and enqueues notifications that could not be. Run it in one
// process or in several: of two that find the same run one wins, and a wrong guess
// is harmless.
//
// A lost run is found within threshold plus interval: three quarters of a minute.
type Sweeper struct {
	d *Dispatcher
	sweeping

	mu    sync.Mutex // one sweep at a time; guards after
	after int64      // ID of the last row that was looked at
}

// NewSweeper returns a sweeper for d's runs. The error wraps idempotent.ErrInvalid.
func NewSweeper(d *Dispatcher, opts ...SweeperOption) (*Sweeper, error) {
	if d == nil {
		return nil, setting.Invalidf("NewSweeper: the dispatcher is nil")
	}
	s := &Sweeper{d: d, sweeping: sweeping{interval: 15 * time.Second, threshold: 30 * time.Second, batch: 1000}}
	if err := setting.Apply(&s.sweeping, opts); err != nil {
		return nil, err
	}
	switch {
	case s.interval < 10*time.Millisecond || s.interval > time.Hour:
		return nil, setting.Invalidf("WithInterval: %v is not between 10ms and 1h", s.interval)
	case s.threshold < 10*time.Millisecond || s.threshold > 24*time.Hour:
		return nil, setting.Invalidf("WithThreshold: %v is not between 10ms and 24h", s.threshold)
	case s.batch < 1 || s.batch > 100_000:
		return nil, setting.Invalidf("WithBatch: %d is not between 1 and 100000", s.batch)
	}
	return s, nil
}

// Run sweeps until ctx ends, and returns nil then. What goes wrong is logged.
func (s *Sweeper) Run(ctx context.Context) error {
	for {
		// Sweepers that started together should not stay together.
		database.Pause(ctx, s.interval*9/10+rand.N(s.interval/5+1))
		if ctx.Err() != nil {
			return nil
		}
		if _, err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			s.d.runs.logger.Warn("onceq: sweep not finished", "err", err)
		}
	}
}

// Sweep looks once and reports for how many runs it did something. The error says why
// it could not look at all of them; those it looked at are done.
func (s *Sweeper) Sweep(ctx context.Context) (acted int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const page = 100
	start, wrapped := s.after, s.after == 0
	before := s.d.runs.millis() - Millis(s.threshold.Milliseconds())
	for left := s.batch; left > 0; {
		limit := min(page, left)
		rows, err := s.d.runs.unsettled(ctx, s.after, before, limit)
		if err != nil {
			return acted, err
		}
		left -= len(rows)
		for _, row := range rows {
			if start > 0 && wrapped && row.ID > start {
				return acted, nil // all the way round
			}
			s.after = row.ID // also past a row that is in the way
			did, err := s.look(ctx, row)
			if did {
				acted++
			}
			if err != nil { // no answer for one is usually none for the next
				return acted, err
			}
		}
		if len(rows) < limit {
			if s.after = 0; wrapped {
				return acted, nil
			}
			wrapped = true
		}
	}
	return acted, nil
}

// unsettled lists rows with something left to do that have rested since before.
func (r *Runs) unsettled(ctx context.Context, after int64, before Millis, limit int) (list []Run, err error) {
	err = database.Fresh(ctx, r.db).Table(r.table).
		Where("settled = ? AND id > ? AND updated_at <= ?", false, after, before).Order("id").Limit(limit).Find(&list).Error
	if err != nil {
		return nil, cannotTell("list of unsettled runs", err)
	}
	return list, nil
}

// look does what a run needs. The error means that Redis or the database does not answer.
func (s *Sweeper) look(ctx context.Context, row Run) (did bool, err error) {
	d := s.d
	if row.Status.Ended() {
		return d.runs.tellLate(ctx, row)
	}
	seen, err := d.guard.Lookup(ctx, d.runs.Key(row.RunID))
	if err != nil {
		return false, err
	}
	how := d.decide(row, seen, s.threshold)
	if how == verdictLeave {
		return false, nil
	}
	if how == verdictEnqueue || how == verdictRedeliver { // a long queue is no loss
		if waits, err := d.guard.Waiting(ctx, seen, d.queue); waits || err != nil {
			return false, err
		}
	}
	err = d.carryOut(ctx, row, seen, how, "found by the sweeper")
	switch {
	case err == nil, errors.Is(err, idempotent.ErrPayloadMismatch):
		return true, nil
	case errors.Is(err, idempotent.ErrUnavailable), ctx.Err() != nil:
		return false, err
	}
	// Another was faster, or the delivery is there: no is the usual answer.
	return false, nil
}

// verdict is what an unfinished row needs, given what Redis says of the run.
type verdict string

const (
	verdictLeave     verdict = "leave"     // somebody is at it, or will be
	verdictEnqueue   verdict = "enqueue"   // it never got a delivery, or Redis forgot it
	verdictRedeliver verdict = "redeliver" // its delivery is lost
	verdictRerun     verdict = "rerun"     // Redis never heard of the row's generation
	verdictFail      verdict = "fail"      // it has failed, the row does not say so
	verdictSucceed   verdict = "succeed"   // it has succeeded, the row does not say so
	verdictRefuse    verdict = "refuse"    // the key is another task's: the run can never be enqueued
)

// mine is the fingerprint of the row's task, slack how long a retry may be overdue.
func decide(row Run, seen idempotent.Run, mine string, now time.Time, slack time.Duration) verdict {
	switch {
	case row.Token == 0 && seen.Fingerprint != "" && seen.Fingerprint != mine:
		return verdictRefuse
	case seen.LeaseLeft > 0:
		return verdictLeave
	case seen.State == idempotent.StateSucceeded:
		return verdictSucceed
	case seen.Generation < row.Generation && (seen.State != idempotent.StateUnknown || row.Generation > 1):
		return verdictRerun
	case seen.State == idempotent.StateUnknown, seen.State == idempotent.StateQueued:
		return verdictEnqueue
	case seen.State == idempotent.StateFailed:
		return verdictFail
	case seen.State == idempotent.StateRetrying && seen.RetryAt.Add(slack).After(now):
		return verdictLeave
	}
	return verdictRedeliver
}

func (d *Dispatcher) decide(row Run, seen idempotent.Run, slack time.Duration) verdict {
	t := d.runs.task(row)
	return decide(row, seen, idempotent.Fingerprint(t.Type(), t.Payload()), d.runs.now(), slack)
}

// carryOut does what was decided. A nil error means that this call did it; a payload
// mismatch, that it failed the run.
func (d *Dispatcher) carryOut(ctx context.Context, row Run, seen idempotent.Run, how verdict, why string) error {
	var err error
	switch how {
	case verdictFail, verdictSucceed:
		return d.reconcile(ctx, row, seen, how)
	case verdictRefuse:
		err = &idempotent.PayloadMismatchError{Key: seen.Key, State: seen.State}
	case verdictEnqueue:
		err = d.enqueue(ctx, row)
		// A worker took the task and died before it began: asynq's own recovery takes
		// up to two minutes. Or asynq archived the task, of which Redis says nothing
		// else: nobody said that the run has failed.
		if dup, ok := errors.AsType[*idempotent.DuplicateError](err); ok && (dup.State == idempotent.StateRunning || dup.State == idempotent.StateFailed) {
			err = d.redeliver(ctx, row)
		}
	case verdictRerun:
		err = d.rerun(ctx, row)
	case verdictRedeliver:
		err = d.redeliver(ctx, row)
	}
	switch {
	case errors.Is(err, idempotent.ErrPayloadMismatch), errors.Is(err, idempotent.ErrInvalid): // it will be the next time
		if _, ferr := d.runs.fail(ctx, row.RunID, row.Generation, 0, 0, err.Error()); ferr != nil {
			return ferr
		}
		return err
	case err != nil:
		return err
	}
	d.runs.log(row.RunID).Warn("onceq: run had no delivery and got one", "why", why, "how", string(how), "status", row.Status, "redis", seen.State.String())
	// The row rests anew; a worker may have taken it already, which is as well.
	_, _, err = d.runs.apply(ctx, change{
		runID: row.RunID, where: "1 = 1", set: map[string]any{},
		entry: HistoryEntry{RunID: row.RunID, Kind: KindRedelivered, Generation: row.Generation, Detail: why},
	})
	if err != nil {
		d.runs.log(row.RunID).Warn("onceq: history not written", "err", err)
	}
	return nil
}

// reconcile writes an outcome that Redis has and the row has not: the worker died,
// or the database did, between the two.
func (d *Dispatcher) reconcile(ctx context.Context, row Run, seen idempotent.Run, how verdict) error {
	var changed bool
	var err error
	if how == verdictFail {
		changed, err = d.runs.fail(ctx, row.RunID, max(row.Generation, seen.Generation), seen.Token, seen.Attempt, errText(errors.New(seen.Reason)))
	} else {
		changed, err = d.runs.adopt(ctx, row, seen)
	}
	if err == nil && !changed {
		return &idempotent.DuplicateError{Key: seen.Key, State: seen.State}
	}
	if err == nil {
		d.runs.log(row.RunID).Warn("onceq: row did not have the run's outcome", "redis", seen.State.String(), "was", row.Status)
	}
	return err
}

// adopt writes SUCCESS as Redis has it. No attempt of ours does it in this order: the
// table came out of a backup.
func (r *Runs) adopt(ctx context.Context, row Run, seen idempotent.Run) (bool, error) {
	set := map[string]any{"status": StatusSuccess, "token": seen.Token, "error": "", "finished_at": Millis(seen.Ended.UnixMilli()), "settled": true}
	if json.Valid(seen.Result) && len(seen.Result) <= maxResult {
		set["result"] = JSON(seen.Result)
	}
	_, changed, err := r.apply(ctx, change{
		runID: row.RunID, where: "status IN ? AND token <= ?", args: []any{unfinished, seen.Token}, set: set,
		entry: HistoryEntry{RunID: row.RunID, Kind: KindRunSucceeded, Generation: row.Generation, Attempt: seen.Attempt, Detail: "as Redis has it"},
		tell:  true,
	})
	return changed, err
}

// tellLate enqueues a notification that could not be when the run ended.
func (r *Runs) tellLate(ctx context.Context, row Run) (bool, error) {
	_, changed, err := r.apply(ctx, change{
		runID: row.RunID, where: "status = ? AND generation = ? AND settled = ?", args: []any{row.Status, row.Generation, false},
		set: map[string]any{"settled": true}, tell: true,
	})
	if err != nil {
		return false, fmt.Errorf("late notification: %w", err)
	}
	return changed, nil
}
