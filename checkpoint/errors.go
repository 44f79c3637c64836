package checkpoint

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nexuscore/onceq/internal/lease"
	"github.com/nexuscore/onceq/internal/setting"
)

// Sentinels, matched with errors.Is.
var (
	// ErrLeaseLost says that the run was ours and is no longer: another attempt
	// may be at it. It stops the run; what was about to be written was not.
	ErrLeaseLost = lease.ErrLost
	// ErrUnavailable says that the store gave no answer: what was asked may or may
	// not have been done. [Run] and [Step] pass through then. They return it only when a
	// [Sealer] says so of what it is to open.
	ErrUnavailable = lease.ErrUnavailable
	// ErrHeld says that a run without a lease met a lease that another holds on
	// the same key. It stops the run; what was about to be written was not.
	ErrHeld = errors.New("checkpoint: run is held by a lease elsewhere")
	// ErrState is wrapped by every [*StateError].
	ErrState = errors.New("checkpoint: state cannot be stored")
	// ErrTooLarge is wrapped by every [*SizeError].
	ErrTooLarge = errors.New("checkpoint: over the size limit")
	// ErrInvalid is wrapped by errors about the arguments of this package's
	// functions: they name the field, the value and what is allowed. It is the
	// value that package idempotent has under that name, and is not retried there.
	ErrInvalid = setting.ErrInvalid
)

// PhaseError is a phase's own error with the phase it came from.
type PhaseError struct {
	Phase string
	Index int // 0 for the first phase
	Err   error
}

func (e *PhaseError) Error() string { return fmt.Sprintf("phase %q: %v", e.Phase, e.Err) }

// Unwrap returns the phase's error.
func (e *PhaseError) Unwrap() error { return e.Err }

// StateError says that a state or a step's result does not survive being
// stored: it cannot be encoded, or what was encoded cannot be decoded. It is
// logged and counted, and returned in strict mode only ([WithStrict]).
type StateError struct {
	Phase string
	Step  string // "" for the state itself
	Err   error  // names the field where it can
}

func (e *StateError) Error() string {
	return fmt.Sprintf("%v: %s: %v", ErrState, place(e.Phase, e.Step), e.Err)
}

// Unwrap returns ErrState and the codec's error.
func (e *StateError) Unwrap() []error { return []error{ErrState, e.Err} }

// Permanent is true: the same state fails in the same way in every attempt.
// Package idempotent does not retry an error that says so.
func (*StateError) Permanent() bool { return true }

// sealerError says that the sealer could not do its work for now.
type sealerError struct{ err error }

func (e *sealerError) Error() string { return "sealer: " + e.err.Error() }
func (e *sealerError) Unwrap() error { return e.err }

// SizeError says that a state or a step's result is larger than [WithMaxSize]
// allows. It is logged and counted, and returned in strict mode only.
type SizeError struct {
	Phase string
	Step  string // "" for the state itself
	Size  int    // bytes
	Limit int    // bytes
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("%v: %s has %d bytes, at most %d are allowed", ErrTooLarge, place(e.Phase, e.Step), e.Size, e.Limit)
}

// Unwrap returns ErrTooLarge.
func (*SizeError) Unwrap() error { return ErrTooLarge }

// Permanent is true: a larger limit needs another deploy.
func (*SizeError) Permanent() bool { return true }

// DuplicateStepError says that one attempt named two steps of a phase alike, so
// that the second would have got the first one's result. A step that failed
// may be called again under its name.
type DuplicateStepError struct{ Phase, Step string }

func (e *DuplicateStepError) Error() string {
	return fmt.Sprintf("checkpoint: step %q was already called in phase %q of this attempt; name each step once, for example by its index", e.Step, e.Phase)
}

// Permanent is true: the program is wrong.
func (*DuplicateStepError) Permanent() bool { return true }

func place(phase, step string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "phase %q", phase)
	if step != "" {
		fmt.Fprintf(&b, ", step %q", step)
	}
	return b.String()
}
