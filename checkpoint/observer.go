package checkpoint

import "time"

// EventKind says what an [Event] is about.
type EventKind string

// The kinds, in the order in which a run meets them.
const (
	Resumed   EventKind = "resumed"   // the run goes on from a snapshot
	Discarded EventKind = "discarded" // a snapshot was not used, see Reason
	Started   EventKind = "started"   // a phase begins
	Finished  EventKind = "finished"  // a phase ended well and its save was tried
	Failed    EventKind = "failed"    // a phase failed or panicked, or the lease was lost at its end
	Unsaved   EventKind = "unsaved"   // a phase ended well and could not be saved; the run goes on
)

// Event is what an observer is told of a run, see [WithObserver].
type Event struct {
	Kind     EventKind
	Run      string        // run key; "" when the run has none
	Attempt  int           // of the lease; 0 without one
	Token    int64         // of the lease; 0 without one
	Phase    string        // Resumed: the first phase to run, "" when all are done
	Index    int           // of Phase, from 0; Total when all are done
	Total    int           // number of phases
	Duration time.Duration // of the phase; Finished, Failed and Unsaved only
	Reason   Reason        // Discarded only
	Err      error         // Failed, Unsaved and Discarded; nil for a panic
}
