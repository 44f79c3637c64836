package checkpoint

import "time"

// EventKind says what an [Event] is about.
type EventKind string

// The kinds, in the order in which a run meets them. Each phase that was started ends
// with EventFinished or EventFailed.
const (
	EventResumed   EventKind = "resumed"   // the run goes on from a snapshot
	EventDiscarded EventKind = "discarded" // a snapshot was not used, see Reason
	EventStarted   EventKind = "started"   // a phase begins
	EventUnsaved   EventKind = "unsaved"   // a phase ended well and could not be saved; the run goes on
	EventFinished  EventKind = "finished"  // a phase ended well and its save was tried
	EventFailed    EventKind = "failed"    // a phase failed or panicked, the run was lost at its end, or a strict save failed
)

// Event is what an observer is told of a run, see [WithObserver].
type Event struct {
	Kind     EventKind
	Run      string        // run key; "" when the run has none
	Attempt  int           // of the lease; 0 without one
	Token    int64         // of the lease; 0 without one
	Phase    string        // EventResumed: the first phase to run, "" when all are done
	Index    int           // of Phase, from 0; Total when all are done
	Total    int           // number of phases
	Duration time.Duration // of the phase; EventFinished, EventFailed and EventUnsaved only
	Reason   Reason        // EventDiscarded only
	Err      error         // EventFailed, EventUnsaved and EventDiscarded; nil for a panic
}
