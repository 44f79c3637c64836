package notify

import (
	"sync"
	"time"
)

// maxRetryAfter bounds what a destination can ask for: a broken header does not
// silence it for ever.
const maxRetryAfter = time.Hour

// gate holds back one kind of call to a destination that has had too many. It is
// each process's own: another learns of the limit by meeting it.
type gate struct {
	base, limit time.Duration // of the pause where the destination names none

	mu    sync.Mutex // guards the fields below
	opens time.Time
	inRow int // answers in a row that were refused by rate
}

// left is how long the gate stays closed; not positive when it is open.
func (g *gate) left() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Until(g.opens)
}

// refused closes the gate, and returns for how long: as the destination asked,
// else longer each time.
func (g *gate) refused(retryAfter time.Duration) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inRow++
	d := retryAfter
	if d <= 0 {
		d = backoff(g.inRow, g.base, g.limit)
	}
	d = min(d, maxRetryAfter)
	if until := time.Now().Add(d); until.After(g.opens) {
		g.opens = until
	}
	return d
}

// passed records an answer that was not a refusal.
func (g *gate) passed() {
	g.mu.Lock()
	g.inRow = 0
	g.mu.Unlock()
}
