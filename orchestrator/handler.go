package orchestrator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/hibiken/asynq"

	"github.com/nexuscore/onceq/checkpoint"
	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/panics"
	"github.com/nexuscore/onceq/internal/setting"
)

// Orchestration is what is done for a run, over a state of type S.
type Orchestration[S any] struct {
	// Start makes the state that a run begins with from what was asked for.
	// Required. It is called in every attempt, also when a checkpoint replaces
	// its result. Its error is handled like one of a phase.
	Start func(Run) (S, error)
	// Phases are run in order; see [Phases] for the seven usual ones. Required.
	Phases []checkpoint.Phase[S]
	// Result makes what the run leaves behind from its last state: it is encoded
	// as JSON, at most 64 KiB, and kept in the row and by the guard. Nil for
	// nothing. It may be called again when the status could not be written.
	Result func(Run, S) (any, error)
}

// Handler works on runs: an asynq.Handler to be registered under
// Runs.TaskType, inside Guard.Middleware. It is safe for concurrent use.
type Handler[S any] struct {
	runs  *Runs
	store checkpoint.Store
	o     Orchestration[S]
	opts  []checkpoint.Option
}

// NewHandler returns a handler that keeps checkpoints in store. The options are those of
// checkpoint.Run, for example an observer. The error wraps idempotent.ErrInvalid, also
// for what checkpoint.Run would refuse in every attempt.
func NewHandler[S any](runs *Runs, store checkpoint.Store, o Orchestration[S], opts ...checkpoint.Option) (*Handler[S], error) {
	switch {
	case runs == nil:
		return nil, setting.Invalidf("NewHandler: runs is nil")
	case o.Start == nil:
		return nil, setting.Invalidf("Orchestration.Start is nil")
	}
	o.Phases, opts = slices.Clone(o.Phases), slices.Clone(opts) // what is checked here is what runs
	if err := checkpoint.Validate(store, o.Phases, opts...); err != nil {
		return nil, err
	}
	return &Handler[S]{runs: runs, store: store, o: o, opts: opts}, nil
}

// ProcessTask implements asynq.Handler. It takes the run's row, runs the phases that
// no earlier attempt finished, and writes SUCCESS, FAILED or RETRYING before it
// returns; see the package's documentation for what happens when it is
// interrupted. A run whose row says SUCCESS is left alone and counts as done.
//
// A panic of the host's code is logged and becomes an error like any other. Its
// error is the phase's, or says what kept the attempt from its work.
func (h *Handler[S]) ProcessTask(ctx context.Context, t *asynq.Task) error {
	a, ok := idempotent.FromContext(ctx)
	if !ok {
		return idempotent.Permanent(errNoGuard)
	}
	runID, err := h.runs.runOf(t)
	if err != nil {
		return idempotent.Permanent(err)
	}
	w := &attempt{Attempt: a, runs: h.runs, runID: runID,
		log: h.runs.log(runID).With("attempt", a.Number(), "token", a.Token())}
	run, err := w.begin(ctx)
	if err != nil {
		return h.notBegun(w, run, err)
	}
	result, err := h.work(ctx, w, run)
	if err == nil {
		err = w.succeed(ctx, run, result)
	}
	if err != nil {
		return w.end(ctx, err)
	}
	h.keepResult(w, result)
	return nil
}

var errNoGuard = errors.New("onceq: the handler is not wrapped by Guard.Middleware")

// notBegun says what becomes of an attempt that may not or need not work.
func (h *Handler[S]) notBegun(w *attempt, run Run, err error) error {
	switch err {
	case errSucceeded:
		w.log.Info("onceq: run skipped, its row says SUCCESS")
		h.keepResult(w, run.Result)
		return nil
	case errFailed:
		return idempotent.Permanent(fmt.Errorf("%w: %s", idempotent.ErrAlreadyFailed, run.Error))
	case errSuperseded:
		return idempotent.Permanent(fmt.Errorf("onceq: run %q: %w: %d", run.RunID, err, run.Generation))
	}
	w.log.Warn("onceq: attempt not begun", "err", err)
	return err
}

// keepResult hands the result to the guard, which keeps it for duplicates; the row has
// it already.
func (h *Handler[S]) keepResult(w *attempt, result JSON) {
	if result == "" {
		return
	}
	if err := w.SetResult([]byte(result)); err != nil {
		w.log.Warn("onceq: the guard does not keep the result", "err", err)
	}
}

// work runs the host's code.
func (h *Handler[S]) work(ctx context.Context, w *attempt, run Run) (result JSON, err error) {
	defer func() {
		if v := recover(); v != nil {
			w.log.Error("onceq: panic", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			err = panics.Error(v)
		}
	}()
	start, err := h.o.Start(run)
	if err != nil {
		return "", fmt.Errorf("start: %w", err)
	}
	opts := append(h.opts[:len(h.opts):len(h.opts)], checkpoint.WithObserver(w.observe(ctx)))
	state, err := checkpoint.Run(ctx, h.store, h.o.Phases, start, opts...)
	if err != nil || h.o.Result == nil {
		return "", err
	}
	v, err := h.o.Result(run, state)
	if err != nil {
		return "", fmt.Errorf("result: %w", err)
	}
	return encodeResult(v)
}

func encodeResult(v any) (JSON, error) {
	if v == nil {
		return "", nil
	}
	b, err := json.Marshal(v)
	switch {
	case err != nil:
		return "", idempotent.Permanent(fmt.Errorf("result: %w", err))
	case len(b) > maxResult:
		return "", idempotent.Permanent(fmt.Errorf("result: it has %d bytes as JSON, at most %d are allowed", len(b), maxResult))
	}
	return JSON(b), nil
}

// job is a task's payload. What is asked for stays in the row; its fingerprint is
// here so that a key used for something else is noticed by the producer.
type job struct {
	RunID string `json:"run_id"`
	Input string `json:"input"`
}

// runOf reads which run a task is of.
func (r *Runs) runOf(t *asynq.Task) (string, error) {
	var j job
	if err := json.Unmarshal(t.Payload(), &j); err != nil {
		return "", fmt.Errorf("onceq: task of type %q has no readable payload: %w", t.Type(), err)
	}
	if err := checkRunID(j.RunID); err != nil {
		return "", fmt.Errorf("onceq: task of type %q: %w", t.Type(), err)
	}
	return j.RunID, nil
}

func (r *Runs) task(run Run) *asynq.Task {
	b, _ := json.Marshal(job{RunID: run.RunID, Input: run.input()}) // strings always encode
	return asynq.NewTask(r.taskType, b)
}

// OnFailed writes FAILED for a run that its guard gave up, with the notification:
// give it to idempotent.WithOnFailed. It does nothing where the handler has
// written it, or for tasks of another type. What is lost with a worker that dies
// here is made good by the sweeper.
func (r *Runs) OnFailed(ctx context.Context, f idempotent.Failure) {
	if f.Task == nil || f.Task.Type() != r.taskType {
		return
	}
	runID, err := r.runOf(f.Task)
	if err != nil {
		r.logger.Error("onceq: a task failed that names no run", "run", f.Key, "err", err)
		return
	}
	err = r.insist(ctx, func(ctx context.Context) error {
		_, err := r.fail(ctx, runID, f.Generation, f.Token, f.Attempt, errText(f.Err))
		return err
	})
	if err != nil {
		r.log(runID).Error("onceq: FAILED not written, the sweeper does it", "err", err)
	}
}
