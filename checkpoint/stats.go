package checkpoint

import (
	"sync"
	"sync/atomic"
)

// Stats counts what happened on a store in this process. The zero value is that
// of a new store.
type Stats struct {
	Saves          int64            // snapshots stored
	Steps          int64            // step results stored
	Resumes        int64            // runs that went on from a snapshot
	Replays        int64            // steps whose result was there already
	PassThroughs   int64            // calls of the store, or to seal, that failed; the run went on
	Unserialisable int64            // states and results that cannot be stored, see StateError
	Oversize       int64            // states and results over the limit, see SizeError
	Lost           int64            // calls refused because the lease was lost or held elsewhere
	Discards       map[Reason]int64 // snapshots and step results not used, by reason
}

type counters struct {
	saves, steps, resumes, replays, passThroughs, unserialisable, oversize, lost atomic.Int64

	sealerFails atomic.Bool // when it was last used

	mu       sync.Mutex
	discards map[Reason]int64 // guarded by mu
}

func (c *counters) discarded(r Reason) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.discards == nil {
		c.discards = map[Reason]int64{}
	}
	c.discards[r]++
}

func (c *counters) stats() Stats {
	s := Stats{
		Saves: c.saves.Load(), Steps: c.steps.Load(), Resumes: c.resumes.Load(), Replays: c.replays.Load(),
		PassThroughs: c.passThroughs.Load(), Unserialisable: c.unserialisable.Load(),
		Oversize: c.oversize.Load(), Lost: c.lost.Load(), Discards: map[Reason]int64{},
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for r, n := range c.discards {
		s.Discards[r] = n
	}
	return s
}
