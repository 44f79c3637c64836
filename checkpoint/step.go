package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/nexuscore/onceq/internal/lease"
	"github.com/nexuscore/onceq/internal/scope"
	"github.com/nexuscore/onceq/internal/setting"
)

// Step calls fn and keeps its result, so that an attempt which repeats the phase
// gets the result and fn is not called again. It is for the expensive parts of
// a phase; there may be thousands, each costs one small write. Steps may run in
// goroutines that the phase waits for, in any order.
//
// The name is unique in its phase, 1 to 256 bytes of UTF-8; name steps of a loop
// by what they are about or by index. The second use of a name in one attempt
// is a [*DuplicateStepError], unless the first failed: an error of fn is
// returned as it is and not kept.
//
// Results are kept as the state is, see [WithCodec], and belong to the state that
// the phase started from: when its snapshot is discarded they are not used. They
// are dropped when the phase ends. A store that gives no answer, or a result
// that cannot be stored, is no error: the result is returned. [ErrLeaseLost] is
// returned, with the result if there is one; [ErrUnavailable] when a [Sealer] cannot
// open the kept result for now.
//
// Steps are those of a phase: wrap a handler that has none into a [Run] of one
// phase. Outside of a phase, and in a run without a key, fn is just called and
// nothing is kept; under a lease that is most likely a mistake, and is logged to
// slog.Default once per process.
func Step[T any](ctx context.Context, name string, fn func(context.Context) (T, error)) (T, error) {
	var zero T
	if fn == nil {
		return zero, setting.Invalidf("step %q: the function is nil", name)
	}
	p, ok := ctx.Value(phaseKey{}).(*phaseRun)
	if !ok {
		warnOutside(ctx, name)
		return fn(ctx)
	}
	if err := p.enter(ctx, name); err != nil {
		return zero, err
	}
	ok = false
	defer func() { // also when fn panics
		if !ok {
			p.release(name)
		}
	}()
	stored, err := p.stored(ctx, name)
	if err != nil {
		return zero, err
	}
	if stored != nil {
		kept := new(T)
		opened, err := p.open(ctx, name, stored, kept)
		if err != nil {
			return zero, err
		}
		if opened {
			ok = true
			return *kept, nil
		}
	}
	result, err := fn(scope.New(ctx, p.name, name))
	if err != nil {
		return result, err
	}
	ok = true
	return result, p.keep(ctx, name, &result)
}

var saidOutside sync.Once

// warnOutside logs to the default logger, since those of Run and its store are not
// known here.
func warnOutside(ctx context.Context, name string) {
	if l, ok := lease.FromContext(ctx); ok {
		saidOutside.Do(func() {
			slog.WarnContext(ctx, "onceq: step outside of checkpoint.Run, its result is not kept", "step", name, "run", l.Key)
		})
	}
}

// phaseRun is one execution of one phase. It is used by the phase's goroutines.
type phaseRun struct {
	run      *run
	name     string
	index    int
	basis    string
	loadable bool
	resumed  bool

	once    sync.Once
	kept    map[string][]byte // written by once
	refused error             // written by once

	mu    sync.Mutex
	names map[string]struct{} // guarded by mu: steps under way or done
	ended bool                // guarded by mu
}

func (p *phaseRun) position() Position {
	pos := Position{Run: p.run.key, Phase: p.name, Index: p.index, Total: len(p.run.names), Resumed: p.resumed}
	if l := p.run.lease; l != nil {
		pos.Attempt, pos.Token = l.Attempt, l.Token
	}
	return pos
}

// enter reserves the name, or says why the step cannot run.
func (p *phaseRun) enter(ctx context.Context, name string) error {
	if err := validName(name); err != nil {
		return setting.Invalidf("step in phase %q: %v", p.name, err)
	}
	if err := p.run.stop(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return setting.Invalidf("step %q: phase %q has ended; wait for its goroutines before it returns", name, p.name)
	}
	if _, taken := p.names[name]; taken {
		return &DuplicateStepError{Phase: p.name, Step: name}
	}
	if p.names == nil {
		p.names = map[string]struct{}{}
	}
	p.names[name] = struct{}{}
	return nil
}

func (p *phaseRun) release(name string) {
	p.mu.Lock()
	delete(p.names, name)
	p.mu.Unlock()
}

// close says that the phase has returned: what is not kept by now is not.
func (p *phaseRun) close() {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
}

func (p *phaseRun) closed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// stored returns what an earlier attempt kept for the step, or nil. All steps
// are read with the first: one round trip, none where there cannot be any.
func (p *phaseRun) stored(ctx context.Context, name string) ([]byte, error) {
	r := p.run
	if r.store == nil || !p.loadable {
		return nil, nil
	}
	p.once.Do(func() {
		// There may be more than one reply can bring in the time of a call.
		short, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepsTimeouts*r.cfg.timeout)
		defer cancel()
		kept, err := r.store.LoadSteps(short, r.ref, p.name, p.basis)
		switch {
		case err == nil:
			p.kept = kept
		case trouble(err):
			r.troubled(ctx, "load steps", err)
		default:
			p.refused = r.refused(err)
		}
	})
	return p.kept[name], p.refused
}

// stepsTimeouts is how many times a call's timeout loading all steps may take.
const stepsTimeouts = 30

// open decodes a kept result; one that cannot be is as if it were not there, unless
// the sealer cannot tell for now.
func (p *phaseRun) open(ctx context.Context, name string, stored []byte, result any) (bool, error) {
	r := p.run
	e, _, err := r.cfg.decode(stored, p.bound(name))
	r.sealing(ctx, err)
	if _, ok := errors.AsType[*sealerError](err); ok {
		return false, fmt.Errorf("checkpoint: run %q: %s: %w", r.key, place(p.name, name), err)
	}
	if err == nil {
		err = r.cfg.decodeState(e, result)
	}
	var d *discardError
	if errors.As(err, &d) {
		r.count.discarded(d.reason)
		r.log(ctx, slog.LevelWarn, "onceq: step's result discarded, the step runs again",
			"phase", p.name, "step", name, "reason", string(d.reason), "err", err)
	}
	if err != nil {
		return false, nil
	}
	r.count.replays.Add(1)
	return true, nil
}

// keep stores a result. The error ends the phase.
func (p *phaseRun) keep(ctx context.Context, name string, result any) error {
	r := p.run
	if err := r.lost(); err != nil {
		return err
	}
	if r.lease != nil {
		r.lease.Progressed()
	}
	if r.store == nil || p.closed() {
		return nil
	}
	stored, _, err := r.cfg.encode(envelope{}, result, p.bound(name))
	if err != nil {
		return r.unstorable(ctx, p.name, name, err)
	}
	r.sealing(ctx, nil)
	short, cancel := r.detach(ctx)
	defer cancel()
	switch err := r.store.SaveStep(short, r.ref, p.name, p.basis, name, stored); {
	case err == nil:
		r.count.steps.Add(1)
		return nil
	case trouble(err):
		r.troubled(ctx, "step", err)
		return nil
	default:
		return fmt.Errorf("%s: %w", place(p.name, name), r.refused(err))
	}
}

func (p *phaseRun) bound(step string) []byte {
	return p.run.bound("step", p.name, step, p.basis)
}
