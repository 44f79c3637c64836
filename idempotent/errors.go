package idempotent

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nexuscore/onceq/internal/lease"
	"github.com/nexuscore/onceq/internal/setting"
)

// Targets for errors.Is. Each says which of the four answers it is.
var (
	// ErrLeaseLost (lost): the attempt's lease expired, was evicted or is
	// another's. The attempt can write nothing more. It is the cause of the
	// handler's context then.
	ErrLeaseLost = lease.ErrLost
	// ErrUnavailable (cannot tell): Redis did not answer in time, or answered with an
	// error. The command may or may not have taken effect.
	ErrUnavailable = lease.ErrUnavailable
	// ErrContended (no): another attempt holds the run's lease, or it is another
	// delivery's turn. See [*ContendedError].
	ErrContended = errors.New("onceq: run is held by another attempt")
	// ErrDuplicate (no): the run is queued, running, waiting for a retry, or
	// failed. See [*DuplicateError].
	ErrDuplicate = errors.New("onceq: duplicate run")
	// ErrAlreadySucceeded (no): the run has succeeded. See [*SucceededError].
	ErrAlreadySucceeded = errors.New("onceq: run already succeeded")
	// ErrAlreadyFailed (no): a delivery found that its run has failed for good.
	// Producer.Rerun starts it again.
	ErrAlreadyFailed = errors.New("onceq: run already failed")
	// ErrPayloadMismatch (no): the key is in use for another payload. See
	// [*PayloadMismatchError].
	ErrPayloadMismatch = errors.New("onceq: same run key, other payload")
	// ErrPoisoned (no): the run crashed its worker too often and is failed now.
	ErrPoisoned = errors.New("onceq: run crashed too often")
	// ErrOrphaned (no): the run had neither an attempt nor a delivery any more and
	// could be given none, or its task ended in the queue; it is failed now. See
	// [Recoverer] and Guard.ServerConfig.
	ErrOrphaned = errors.New("onceq: run orphaned")
	// ErrInvalid (no): an argument or option is not allowed; the message names it.
	ErrInvalid = setting.ErrInvalid
)

// ContendedError says who holds a run and for how long at least. It matches
// ErrContended.
type ContendedError struct {
	Key        string
	Holder     string        // the process that holds the lease; "" while the run waits for its retry
	RetryAfter time.Duration // what is left of the lease's TTL, or of the wait

	token int64 // of the holder
}

func (e *ContendedError) Error() string {
	if e.Holder == "" {
		return fmt.Sprintf("onceq: run %q rests for another %v until its retry, which another delivery makes", e.Key, e.RetryAfter)
	}
	return fmt.Sprintf("onceq: run %q is held by %s for another %v", e.Key, e.Holder, e.RetryAfter)
}

// saidContended reports whether asynq's text of a task's last error is a ContendedError
// about the run: the task waits for a lease, not for a time that somebody chose.
func saidContended(text, key string) bool {
	said := fmt.Sprintf("onceq: run %q ", key)
	return strings.HasPrefix(text, said+"is held by") || strings.HasPrefix(text, said+"rests for")
}

// Is matches ErrContended.
func (e *ContendedError) Is(target error) bool { return target == ErrContended }

// DuplicateError says in which state a run is that was enqueued again. It
// matches ErrDuplicate.
type DuplicateError struct {
	Key        string
	State      State         // StateQueued, StateRunning, StateRetrying or StateFailed
	Holder     string        // the process that runs it, when StateRunning
	RetryAfter time.Duration // when it is worth asking again; 0 when it is StateFailed
}

func (e *DuplicateError) Error() string {
	switch e.State {
	case StateFailed:
		return fmt.Sprintf("onceq: run %q has failed; Producer.Rerun starts it again", e.Key)
	case StateRunning:
		return fmt.Sprintf("onceq: run %q is running on %s; ask again in %v", e.Key, e.Holder, e.RetryAfter)
	}
	return fmt.Sprintf("onceq: run %q is %s already; ask again in %v", e.Key, e.State, e.RetryAfter)
}

// Is matches ErrDuplicate.
func (e *DuplicateError) Is(target error) bool { return target == ErrDuplicate }

// SucceededError says when a run that was enqueued again has succeeded. It
// matches ErrAlreadySucceeded. Guard.Lookup reads its result.
type SucceededError struct {
	Key string
	At  time.Time
}

func (e *SucceededError) Error() string {
	return fmt.Sprintf("onceq: run %q already succeeded at %s", e.Key, e.At.UTC().Format(time.RFC3339))
}

// Is matches ErrAlreadySucceeded.
func (e *SucceededError) Is(target error) bool { return target == ErrAlreadySucceeded }

// PayloadMismatchError says that a key is taken by another payload. It matches
// ErrPayloadMismatch.
type PayloadMismatchError struct {
	Key   string
	State State // of the run that has the key
}

func (e *PayloadMismatchError) Error() string {
	return fmt.Sprintf("onceq: run key %q is taken by a run with another payload (%s): use a new key for other work", e.Key, e.State)
}

// Is matches ErrPayloadMismatch.
func (e *PayloadMismatchError) Is(target error) bool { return target == ErrPayloadMismatch }
