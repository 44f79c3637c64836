package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nexuscore/onceq/internal/scope"
)

// Phase is a named part of a run over a state of type S.
type Phase[S any] struct {
	// Name is unique in its run, 1 to 256 bytes of UTF-8. It is what snapshots
	// know the phase by: a renamed phase is another one.
	Name string
	// Run does the work and changes the state in place. Its context ends with the
	// lease. An error ends the run; what it wraps stays visible.
	Run func(ctx context.Context, state *S) error
}

// Run runs the phases in order over one state, and saves the whole state after
// each. If an earlier attempt at the same run saved some, it goes on after them
// with the state they left; else it starts on initial. It returns the state as
// the last phase left it.
//
// The run is the one whose lease is in ctx, else the one named by [ContextWithKey];
// without either the same code runs and nothing is stored. The snapshot of a
// run under a lease is dropped by whoever records the run's success; without a
// lease Run drops it itself once all phases are done. Call Run once for a run,
// with all its phases: 1 to 1000.
//
// Errors: a [*PhaseError] with what a phase returned; ctx's error when ctx
// ended, after the phase that had ended was saved; [ErrLeaseLost] or [ErrHeld]
// when the run is another's, in which case what was about to be written was not;
// [ErrInvalid] for bad arguments; [ErrUnavailable] when a [Sealer] cannot open the
// snapshot for now; in strict mode [*StateError] and [*SizeError]. A store that
// gives no answer is no error: the run goes on without. With an error the state
// is as the last phase left it, for inspection only. A panic of a phase passes
// through.
//
// Phases get a pointer to the same state, one after the other. initial is not
// copied: maps and slices in it are shared with the caller.
func Run[S any](ctx context.Context, store Store, phases []Phase[S], initial S, opts ...Option) (S, error) {
	t, err := bind(store, phases, opts)
	if err != nil {
		return initial, err
	}
	r, err := newRun(ctx, t, &initial)
	if err != nil {
		return initial, err
	}
	state, err := r.resume(ctx, func() any { return new(S) }, &initial)
	if err != nil {
		return initial, err
	}
	s := state.(*S)
	for _, i := range r.todo() {
		if err := r.phase(ctx, i, s, func(ctx context.Context) error { return phases[i].Run(ctx, s) }); err != nil {
			return *s, err
		}
	}
	r.end(ctx)
	return *s, nil
}

// phase runs the phase with the given index and saves the state.
func (r *run) phase(ctx context.Context, i int, state any, work func(context.Context) error) error {
	if err := r.stop(ctx); err != nil {
		return err
	}
	p := &phaseRun{run: r, index: i, name: r.names[i], basis: r.basis, loadable: r.loadable, resumed: r.resumed}
	start := time.Now()
	r.tell(ctx, Event{Kind: EventStarted, Phase: p.name, Index: i})
	ended := false
	fail := func(err error) error {
		ended = true
		r.tell(ctx, Event{Kind: EventFailed, Phase: p.name, Index: i, Duration: time.Since(start), Err: err})
		return err
	}
	defer func() {
		p.close()
		if !ended { // a panic: it passes, asynq and the host's own middleware report it
			_ = fail(nil)
		}
	}()
	err := work(context.WithValue(scope.New(ctx, p.name, ""), phaseKey{}, p))
	p.close()
	if lost := r.lost(); lost != nil {
		return fail(errors.Join(lost, asPhaseError(p, err)))
	}
	if err != nil {
		return fail(asPhaseError(p, err))
	}
	if r.lease != nil {
		r.lease.Progressed()
	}
	unsaved, err := r.save(ctx, p, state)
	if err != nil {
		return fail(err)
	}
	ended = true
	if unsaved != nil {
		r.tell(ctx, Event{Kind: EventUnsaved, Phase: p.name, Index: i, Duration: time.Since(start), Err: unsaved})
	}
	r.tell(ctx, Event{Kind: EventFinished, Phase: p.name, Index: i, Duration: time.Since(start)})
	return r.stop(ctx)
}

func asPhaseError(p *phaseRun, err error) error {
	if err == nil {
		return nil
	}
	return &PhaseError{Phase: p.name, Index: p.index, Err: err}
}

// stop returns why no further phase may start, or nil.
func (r *run) stop(ctx context.Context) error {
	if err := r.lost(); err != nil {
		return err
	}
	err := ctx.Err()
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); !errors.Is(cause, err) {
		return fmt.Errorf("checkpoint: %w: %w", err, cause)
	}
	return fmt.Errorf("checkpoint: %w", err)
}

// lost returns an error that wraps ErrLeaseLost when the lease is gone.
func (r *run) lost() error {
	if r.lease == nil {
		return nil
	}
	if err := r.lease.Err(); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}
