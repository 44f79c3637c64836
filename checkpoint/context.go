package checkpoint

import (
	"context"
)

// Position is where in a run a context is.
type Position struct {
	Run     string // run key; "" when the run has none
	Attempt int    // of the lease; 0 without one
	Token   int64  // fencing token of the lease; 0 without one
	Phase   string
	Index   int  // of the phase, from 0
	Total   int  // number of phases
	Resumed bool // an earlier attempt's phases were taken over
}

// FromContext returns the position of the phase that ctx was given to; ok is
// false outside of phases.
func FromContext(ctx context.Context) (pos Position, ok bool) {
	p, ok := ctx.Value(phaseKey{}).(*phaseRun)
	if !ok {
		return Position{}, false
	}
	return p.position(), true
}

// MustFromContext is FromContext for code that only runs inside a phase: it
// panics elsewhere, and says that checkpoint.Run is missing.
func MustFromContext(ctx context.Context) Position {
	pos, ok := FromContext(ctx)
	if !ok {
		panic("checkpoint: the context is not that of a phase; call this from a function that checkpoint.Run was given, with the context it got")
	}
	return pos
}

// ContextWithKey names the run that ctx belongs to where there is no lease: in a
// program without a queue, or in a test. [Run] then keeps checkpoints under that
// key, unfenced: the caller sees to it that a key is worked on once at a time.
// Under a lease the lease's key counts and this one is ignored. The key is 1 to
// 512 bytes of UTF-8; Run answers ErrInvalid for another.
func ContextWithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, runNameKey{}, key)
}

type (
	phaseKey   struct{}
	runNameKey struct{}
)
