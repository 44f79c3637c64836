package checkpoint

import "fmt"

// Reason says why a snapshot, or a step's result, was not used.
type Reason string

// The reasons. Whatever the reason, the run starts from the beginning on the
// initial state; nothing of the snapshot is used, nor are steps that belong to
// it. It is not deleted: it stays until the first phase is saved over it.
const (
	ReasonCorrupt     Reason = "corrupt"     // truncated, changed, or not ours
	ReasonVersion     Reason = "version"     // another schema version, codec or format, older or newer
	ReasonUndecodable Reason = "undecodable" // the state's type has changed
	ReasonInput       Reason = "input"       // another payload, or a rerun from scratch
	ReasonPhases      Reason = "phases"      // the list of phases has changed, see WithRunMissing
	ReasonSealed      Reason = "sealed"      // plain text, or it does not open
	ReasonOversize    Reason = "oversize"    // larger than WithMaxSize
)

type discardError struct {
	reason Reason
	msg    string
}

func discard(r Reason, format string, args ...any) error {
	return &discardError{r, fmt.Sprintf(format, args...)}
}

func (e *discardError) Error() string { return string(e.reason) + ": " + e.msg }
