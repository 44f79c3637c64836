package script

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/internal/lease"
)

const (
	maxBatch = 128
	// One batch is under way at a time: what is called meanwhile is the next. Another
	// goes out beside one that takes longer than slow, so that a connection that hangs
	// holds up nobody else.
	slow      = 5 * time.Millisecond
	maxFlying = 4
	// maxWait bounds a batch that no caller waits for any longer.
	maxWait = 5 * time.Second
	// maxSent is how much may wait that nobody waits for.
	maxSent = 1024
)

// lane is the way to one server. Those to different servers do not wait for each other.
type lane struct {
	r *Runner

	mu      sync.Mutex // guards the fields below
	queue   []*call
	flying  int
	sent    time.Time // when the last batch went out
	watch   *time.Timer
	watched bool
}

type call struct {
	Call
	ctx  context.Context
	done chan struct{} // closed after cmd is set
	cmd  *redis.Cmd
}

func newCall(ctx context.Context, what Call) *call {
	return &call{Call: what, ctx: ctx, done: make(chan struct{})}
}

func (c *call) wait(ctx context.Context) (any, error) {
	select {
	case <-c.done:
	case <-ctx.Done():
		select {
		case <-c.done: // the reply was first
		default:
			return nil, fmt.Errorf("%w: %w", lease.ErrUnavailable, ctx.Err())
		}
	}
	return result(c.cmd)
}

// lane returns the way to the server that the call is for: as far as the client knows,
// which sends it elsewhere if need be.
func (r *Runner) lane(c Call) *lane {
	name := ""
	if len(c.Keys) > 0 {
		name = r.Server(c.Keys[0])
	}
	return r.lanes.Of(name, func() *lane { return &lane{r: r} })
}

// alone reports whether the caller is to send its call by itself, which saves two
// changes of goroutines: it can rely on the client to come back, and nothing is under
// way that could be waited for.
func (l *lane) alone(ctx context.Context) bool {
	if _, bounded := ctx.Deadline(); !bounded || !l.r.direct || ctx.Err() != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flying > 0 {
		return false
	}
	l.flying++
	l.sent = time.Now()
	return true
}

// next goes on with what was called while a caller sent its own.
func (l *lane) next() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) > 0 {
		go l.drain()
		return
	}
	l.flying--
}

func (l *lane) full() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue) >= maxSent
}

func (l *lane) add(ctx context.Context, what Call) *call {
	c := newCall(ctx, what)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, c)
	l.hurry()
	return c
}

// hurry sends what is queued if nothing is under way, or not for a while.
func (l *lane) hurry() {
	if len(l.queue) == 0 || l.flying == maxFlying {
		return
	}
	if left := slow - time.Since(l.sent); l.flying > 0 && left > 0 {
		l.lookIn(left)
		return
	}
	l.flying++
	l.sent = time.Now()
	go l.drain()
}

// lookIn makes sure that hurry is called in a while, by a timer and not a goroutine:
// there is nothing to stop.
func (l *lane) lookIn(d time.Duration) {
	switch {
	case l.watched:
		return
	case l.watch == nil:
		l.watch = time.AfterFunc(d, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.watched = false
			l.hurry()
		})
	default:
		l.watch.Reset(d)
	}
	l.watched = true
}

// drain sends batches until the queue is empty.
func (l *lane) drain() {
	for {
		l.mu.Lock()
		n := min(len(l.queue), maxBatch)
		if n == 0 {
			l.queue = nil
			l.flying--
			l.mu.Unlock()
			return
		}
		batch := l.queue[:n:n]
		l.queue = l.queue[n:]
		l.sent = time.Now()
		l.mu.Unlock()
		l.send(batch)
		// Those who have their reply now often have more to send: let them.
		runtime.Gosched()
	}
}

func (l *lane) send(batch []*call) {
	live := batch[:0]
	for _, c := range batch {
		if c.ctx.Err() == nil { // nobody waits for the others: do not run them late
			live = append(live, c)
		}
	}
	if len(live) == 0 {
		return
	}
	// Not the context of one caller: its end would fail the others' calls.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(live[0].ctx), maxWait)
	defer cancel()
	if len(live) == 1 {
		live[0].cmd = l.r.one(ctx, live[0].Call)
		close(live[0].done)
		return
	}
	l.r.pipeline(ctx, live)
}
