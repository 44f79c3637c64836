package llmcache

import (
	"errors"
	"fmt"
	"time"

	"github.com/nexuscore/onceq/internal/lease"
	"github.com/nexuscore/onceq/internal/setting"
)

var (
	// ErrInvalid is wrapped by errors about an argument or an option that is not
	// allowed; the message names it, its value and what is. Trying again is useless.
	// It is the same value in all packages of this module.
	ErrInvalid = setting.ErrInvalid
	// ErrBudget is what a *BudgetError is.
	ErrBudget = errors.New("llmcache: budget of the run is spent")
	// ErrMaybePaid is what a *MaybePaidError is.
	ErrMaybePaid = errors.New("llmcache: an interrupted call may have been paid")
	// ErrUnavailable says that the store gave no answer. Only reading the ledger
	// returns it: calls go on without the cache. A [Sealer] wraps it to say that it
	// cannot tell for now.
	ErrUnavailable = lease.ErrUnavailable
	// ErrLeaseLost says that the attempt has lost its run: no paid call starts.
	ErrLeaseLost = lease.ErrLost
)

// BudgetError says that a call was not made because the run's budget would not
// hold it. It is permanent: another attempt would fail likewise.
type BudgetError struct {
	Run    string  // key of the run
	What   string  // "calls", "tokens" or "cost"
	Limit  Budget  // what was allowed
	Totals Account // what was spent, and what is under way
}

func (e *BudgetError) Error() string {
	spent := e.Totals.Paid.plus(e.Totals.Wasted)
	return fmt.Sprintf("%v: run %q has spent %d calls, %d tokens, %d micro-units with %d calls open; the limit of %s is %d",
		ErrBudget, e.Run, spent.Calls, spent.Tokens(), spent.CostMicros, len(e.Totals.Open), e.What, e.limit())
}

func (e *BudgetError) limit() int64 {
	switch e.What {
	case "calls":
		return e.Limit.Calls
	case "tokens":
		return e.Limit.Tokens
	}
	return e.Limit.CostMicros
}

// Is reports whether target is ErrBudget.
func (e *BudgetError) Is(target error) bool { return target == ErrBudget }

// Permanent says that a retry is pointless.
func (e *BudgetError) Permanent() bool { return true }

// MaybePaidError says that a call was not repeated because an earlier attempt
// began it and died; see WithRefuseMaybePaid.
type MaybePaidError struct {
	Run  string // key of the run, "" outside runs
	Call OpenCall
}

func (e *MaybePaidError) Error() string {
	return fmt.Sprintf("%v: run %q, model %q, began %s", ErrMaybePaid, e.Run, e.Call.Model, e.Call.Since.UTC().Format(time.RFC3339))
}

// Is reports whether target is ErrMaybePaid.
func (e *MaybePaidError) Is(target error) bool { return target == ErrMaybePaid }

// Permanent says that a retry is pointless until someone decides.
func (e *MaybePaidError) Permanent() bool { return true }

// cannotTell is err as ErrUnavailable, which an open breaker means too.
func cannotTell(err error) error {
	if errors.Is(err, ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}
