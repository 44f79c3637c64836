package checkpoint

import (
	"context"
	"time"
)

// Ref names the run that a [Store] is asked about, and who asks.
type Ref struct {
	// Base names the run and its tenant; it is what all Redis keys of the run
	// start with. It is never empty.
	Base string
	// Owner is the holder of the run's lease: random, another for each attempt.
	// It is empty for a run without a lease.
	Owner string
	// Token grows from attempt to attempt; 0 without a lease.
	Token int64
	// TTL is how long what is written now is kept; at least 1 ms.
	TTL time.Duration
	// LeaseTTL is how long a write extends the lease; 0 without one.
	LeaseTTL time.Duration
}

// Store keeps, for each run, one snapshot and the results of the steps of
// phases that have not ended. Its methods are called by many goroutines at once,
// each with a deadline. They neither keep nor change the slices they are given,
// and what they return is the caller's.
//
// A store answers in four ways. Yes is nil. No is found == false, an empty map,
// or [ErrHeld]. Lost is [ErrLeaseLost]: another attempt owns the run now, as
// told by the owner and never by comparing values, and nothing was changed. Any
// other error means that the store cannot tell. It is good style to let that
// one wrap [ErrUnavailable]. All methods may be called again with the same
// arguments by the same owner, and then answer yes again.
//
// Package checkpointtest has the test suite for this contract.
type Store interface {
	// Load returns the snapshot that was saved last. A run that has none, or
	// whose snapshot's TTL has passed, answers found == false and no error. A
	// store that has a lease of its own on record for a Ref without owner answers
	// ErrHeld.
	Load(ctx context.Context, run Ref) (snapshot []byte, found bool, err error)

	// Save replaces the snapshot, drops all steps of the phase that has ended,
	// and extends the lease, all of it or nothing.
	Save(ctx context.Context, run Ref, phase string, snapshot []byte) error

	// LoadSteps returns the results that SaveStep stored for the phase under the
	// same basis, by name of the step. Its answer may be large, so its context allows
	// thirty times the usual timeout.
	LoadSteps(ctx context.Context, run Ref, phase, basis string) (map[string][]byte, error)

	// SaveStep stores the result of a step. The basis names the snapshot that the
	// phase started from: steps of the phase under another basis are dropped. The
	// snapshot's TTL starts anew too.
	SaveStep(ctx context.Context, run Ref, phase, basis, step string, result []byte) error

	// Clear drops the snapshot and the steps of the phases. A run that has none
	// is cleared already.
	Clear(ctx context.Context, run Ref, phases []string) error
}

// instrumented is what the stores of this package share: the defaults of the
// runs on them, and what happened there.
type instrumented interface{ shared() (config, *counters) }
