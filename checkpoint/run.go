package checkpoint

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/nexuscore/onceq/internal/lease"
	"github.com/nexuscore/onceq/internal/runkey"
	"github.com/nexuscore/onceq/internal/setting"
)

// run is one call of Run. All but its counters and its store belong to the
// goroutine of that call; steps use what does not change during a phase.
type run struct {
	terms              // with a nil store nothing is stored
	lease *lease.Lease // nil without one
	key   string
	ref   Ref
	// fingerprint and stamp are of the run's input.
	fingerprint, stamp string

	done    []string // names of the phases that need not run, in the order they ran
	resumed bool
	// basis names what the next phase starts from; loadable says that an earlier
	// attempt may have left steps of it.
	basis    string
	loadable bool
}

func newRun(ctx context.Context, t terms, initial any) (*run, error) {
	r := &run{terms: t}
	if err := r.identify(ctx); err != nil {
		return nil, err
	}
	if outer, ok := ctx.Value(phaseKey{}).(*phaseRun); ok && r.ref.Base != "" && outer.run.ref.Base == r.ref.Base {
		return nil, setting.Invalidf("Run inside phase %q of the same run %q: it has one snapshot; make the inner phases phases of the outer list, or steps", outer.name, r.key)
	}
	if r.ref.Base == "" || switchedOff(r.cfg.logger) {
		r.store = nil
		return r, nil
	}
	r.input(initial)
	return r, nil
}

// identify finds out whose run this is.
func (r *run) identify(ctx context.Context) error {
	r.ref.TTL = r.cfg.ttl
	if l, ok := lease.FromContext(ctx); ok {
		r.lease, r.key, r.stamp = l, l.Key, l.Stamp
		r.ref.Base, r.ref.Owner, r.ref.Token, r.ref.LeaseTTL = l.Base, l.Owner, l.Token, l.TTL
		r.ref.TTL = max(r.cfg.ttl, l.TTL+l.Rest)
		return nil
	}
	key, ok := ctx.Value(runNameKey{}).(string)
	if !ok {
		return nil
	}
	if err := runkey.Validate(key); err != nil {
		return setting.Invalidf("ContextWithKey: %v", err)
	}
	r.key, r.ref.Base = key, runkey.Base(r.cfg.prefix, key)
	return nil
}

// input sets the fingerprint of what the run starts from.
func (r *run) input(initial any) {
	switch {
	case r.cfg.fingerprint != nil:
		r.fingerprint = *r.cfg.fingerprint
	case r.lease != nil:
		r.fingerprint = r.lease.Fingerprint
	default:
		// An initial state that cannot be encoded is reported when it is saved.
		if b, err := r.cfg.marshal(initial); err == nil {
			sum := sha256.Sum256(b)
			r.fingerprint = hex.EncodeToString(sum[:16])
		}
	}
}

// resume returns the state to start from: a new one with what the snapshot
// holds, whole, or initial.
func (r *run) resume(ctx context.Context, fresh func() any, initial any) (any, error) {
	if err := r.stop(ctx); err != nil || r.store == nil {
		return initial, err
	}
	short, cancel := r.detach(ctx)
	stored, found, err := r.store.Load(short, r.ref)
	cancel()
	switch {
	case err != nil && trouble(err):
		// What lies there is not known, so no step may match it.
		r.basis = r.based("?" + rand.Text())
		r.troubled(ctx, "load", err)
		return initial, nil
	case err != nil:
		return initial, r.refused(err)
	case !found:
		r.basis = r.based("0")
		r.loadable = r.lease == nil || r.lease.Attempt > 1 || r.lease.Generation > 1 || len(r.lease.StepKeys()) > 0
		return initial, nil
	}
	r.loadable = true
	state, err := r.open(stored, fresh)
	r.sealing(ctx, err)
	if _, ok := errors.AsType[*sealerError](err); ok {
		// To begin anew would pay for all phases again, and nothing of it could be saved.
		return initial, fmt.Errorf("checkpoint: run %q: snapshot: %w", r.key, err)
	}
	if err != nil {
		r.basis = r.based(fmt.Sprintf("!%08x.%d", crc32.Checksum(stored, castagnoli), len(stored)))
		r.discarded(ctx, err)
		return initial, nil
	}
	r.resumed = true
	r.count.resumes.Add(1)
	e := Event{Kind: EventResumed, Index: len(r.names)}
	if todo := r.todo(); len(todo) > 0 {
		e.Index, e.Phase = todo[0], r.names[todo[0]]
	}
	r.tell(ctx, e)
	return state, nil
}

// open decodes a snapshot into a new state, or returns a *discardError or a
// *sealerError.
func (r *run) open(stored []byte, fresh func() any) (any, error) {
	e, id, err := r.cfg.decode(stored, r.bound("snapshot"))
	if err != nil {
		return nil, err
	}
	if e.Stamp != r.stamp || e.Fingerprint != r.fingerprint {
		return nil, discard(ReasonInput, "it belongs to another payload, or to the run before a rerun from scratch")
	}
	if err := r.fits(e); err != nil {
		return nil, err
	}
	state := fresh()
	if err := r.cfg.decodeState(e, state); err != nil {
		return nil, err
	}
	r.done, r.basis = e.Done, r.based(id)
	return state, nil
}

// fits reports whether the phases that a snapshot calls done are ours.
func (r *run) fits(e *envelope) error {
	if len(e.Done) == 0 || e.LastDone != e.Done[len(e.Done)-1] {
		return discard(ReasonCorrupt, "last_done %q is not the last of %d phases done", e.LastDone, len(e.Done))
	}
	if r.cfg.runMissing {
		return nil
	}
	if len(e.Done) > len(r.names) || !slices.Equal(e.Done, r.names[:len(e.Done)]) {
		return discard(ReasonPhases, "done were %.200q, the list begins with %.200q", e.Done, r.names[:min(len(e.Done), len(r.names))])
	}
	return nil
}

// todo lists the indexes of the phases that have not run.
func (r *run) todo() []int {
	var todo []int
	for i, name := range r.names {
		if !slices.Contains(r.done, name) {
			todo = append(todo, i)
		}
	}
	return todo
}

// save stores the state after phase p. The first error says why it was not
// stored though the run goes on; the second ends the run.
func (r *run) save(ctx context.Context, p *phaseRun, state any) (unsaved, fatal error) {
	done := append(r.done[:len(r.done):len(r.done)], p.name)
	r.done, r.loadable = done, false
	if r.store == nil {
		return nil, nil
	}
	stored, id, err := r.cfg.encode(envelope{
		Done: done, LastDone: p.name, Token: r.ref.Token, SavedAt: time.Now().UnixMilli(),
		Stamp: r.stamp, Fingerprint: r.fingerprint,
	}, state, r.bound("snapshot"))
	if err != nil {
		r.basis = r.based("?" + rand.Text()) // no snapshot will ever bear that name
		return err, r.unstorable(ctx, p.name, "", err)
	}
	r.sealing(ctx, nil)
	r.basis = r.based(id)
	// The phase has ended: that stays true when the caller's context ends now.
	//
	// A save that times out may still be applied, in an outage even after the next
	// one of this attempt. The snapshot is then older and as whole as any: the
	// next attempt repeats a phase. A counter against that is not worth a key.
	short, cancel := r.detach(ctx)
	defer cancel()
	err = r.store.Save(short, r.ref, p.name, stored)
	switch {
	case err == nil:
		r.count.saves.Add(1)
		return nil, nil
	case trouble(err):
		r.troubled(ctx, "save", err)
		return err, nil
	}
	return nil, r.refused(err)
}

// end drops the snapshot of a run that has succeeded and that nobody else will
// drop: under a lease the run has not succeeded before that is recorded.
func (r *run) end(ctx context.Context) {
	if r.store == nil || r.lease != nil {
		return
	}
	short, cancel := r.detach(ctx)
	defer cancel()
	if err := r.store.Clear(short, r.ref, r.names); trouble(err) {
		r.troubled(ctx, "clear", err)
	}
}

// detach returns a context for one call of the store. It does not end with the
// caller's: what is done must be written, and one bounded call delays no
// shutdown by more than the timeout.
func (r *run) detach(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), r.cfg.timeout)
}

// based names a basis of steps: it differs where the run's input does.
func (r *run) based(id string) string { return r.stamp + "\x00" + r.fingerprint + "\x00" + id }

// bound says what stored bytes are for; no two parts can run together.
func (r *run) bound(parts ...string) []byte {
	b := strconv.AppendQuote(nil, r.ref.Base)
	for _, p := range parts {
		b = strconv.AppendQuote(b, p)
	}
	return b
}

// troubled records that the store gave no answer, which ends no run. The store
// logs; a line for each call would bury everything else in an outage.
func (r *run) troubled(ctx context.Context, op string, err error) {
	r.count.passThroughs.Add(1)
	r.log(ctx, slog.LevelDebug, "onceq: checkpoint passed through", "op", op, "err", err)
}

// refused records that the run is another's.
func (r *run) refused(err error) error {
	r.count.lost.Add(1)
	if r.lease != nil && errors.Is(err, ErrLeaseLost) {
		r.lease.Lose(err)
	}
	return fmt.Errorf("checkpoint: run %q: %w", r.key, err)
}

// sealing logs when the sealer begins to fail and when it works again: one line each,
// however many runs meet it. A discarded snapshot is neither.
func (r *run) sealing(ctx context.Context, err error) {
	_, fails := errors.AsType[*sealerError](err)
	switch {
	case r.cfg.sealer == nil:
	case fails && r.count.sealerFails.CompareAndSwap(false, true):
		r.log(ctx, slog.LevelWarn, "onceq: sealer fails, nothing can be stored or opened", "err", err)
	case err == nil && r.count.sealerFails.Load() && r.count.sealerFails.CompareAndSwap(true, false):
		r.log(ctx, slog.LevelInfo, "onceq: sealer works again")
	}
}

// unstorable records a state or a result that cannot be stored, and returns the
// error in strict mode; never one of the sealer, which says nothing of the state.
func (r *run) unstorable(ctx context.Context, phase, step string, err error) error {
	if _, ok := errors.AsType[*sealerError](err); ok {
		r.sealing(ctx, err)
		r.troubled(ctx, "seal", err)
		return nil
	}
	msg := "onceq: state cannot be stored, the run goes on without"
	var size *SizeError
	var state *StateError
	switch {
	case errors.As(err, &size):
		size.Phase, size.Step = phase, step
		r.count.oversize.Add(1)
	case errors.As(err, &state):
		state.Phase, state.Step = phase, step
		r.count.unserialisable.Add(1)
	}
	if r.cfg.strict {
		return err
	}
	args := []any{"phase", phase, "err", err}
	if step != "" {
		args = append(args, "step", step)
	}
	r.log(ctx, slog.LevelError, msg, args...)
	return nil
}

func (r *run) discarded(ctx context.Context, err error) {
	var d *discardError
	if !errors.As(err, &d) {
		d = &discardError{ReasonCorrupt, err.Error()}
	}
	r.count.discarded(d.reason)
	r.tell(ctx, Event{Kind: EventDiscarded, Reason: d.reason, Err: d})
}
