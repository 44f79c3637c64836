package llmcache

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// call is one caller's wish, in the form that Do and Transport give it.
type call struct {
	*place
	model string // as the request names it
	// invoke makes the call. ctx ends when nobody waits for the answer any longer.
	invoke func(ctx context.Context, f *flight) result
}

// result is what came of making a call.
type result struct {
	rec   *record // the answer, nil when there is none that could be replayed
	value any     // for the caller that led; Do's own value
	err   error   // for everyone who waited
	// store says that rec is a whole success. whole says that there was one,
	// whether or not it is stored.
	store, whole bool
	retry        bool // callers that joined make their own call instead
	cost         Account
}

// outcome is what a caller gets.
type outcome struct {
	result
	replayed bool
	led      bool // the caller's own call
	// live is what invoke offered: the caller has something to read from, and stays
	// aboard the flight until it calls land.
	live   any
	flight *flight
}

// flight is one call that any number of callers wait for. It belongs to none of
// them: it runs on when the first one gives up, and ends when all have.
type flight struct {
	key    string
	cancel context.CancelFunc
	paying chan struct{} // closed when it stops waiting for others and calls
	offers chan any      // to the caller that leads, before the call has ended
	solo   chan struct{} // closed when there will be nothing to join
	done   chan struct{} // closed after out is set
	// leader ends when the caller that leads needs no more.
	leader     context.Context
	leaderLeft context.CancelFunc

	owner  string  // of the lease, for invoke; "" without one
	aboard int     // guarded by Cache.mu
	out    outcome // set before done is closed
}

// serve answers a call: from the store, by joining one under way, or by making it.
func (c *Cache) serve(ctx context.Context, w *call) outcome {
	if w.lease != nil {
		if err := w.lease.Err(); err != nil {
			return outcome{result: result{err: err}}
		}
	}
	if ctx.Err() != nil { // a flight might begin to pay before it learns that nobody waits
		w.giveBack()
		return outcome{result: result{err: ended(ctx)}}
	}
	if rec, ok := c.remembered(w); ok {
		return outcome{result: result{rec: rec, whole: true}, replayed: true}
	}
	patience := time.NewTimer(c.patience(ctx))
	defer patience.Stop()
	for {
		f, leads := c.board(ctx, w, w.bypass || c.off)
		out, ok := c.await(ctx, f, leads, patience.C)
		if !ok { // waited long enough
			f, leads = c.board(ctx, w, true)
			out, _ = c.await(ctx, f, leads, nil)
		}
		if !leads && out.retry {
			if ctx.Err() == nil {
				continue
			}
			out = outcome{result: result{err: ended(ctx)}}
		}
		if !leads && out.whole {
			c.counts.joined.Add(1)
			c.count(w.place, Account{Saved: c.prices.sum(out.rec.usage, w.model, out.rec.model)})
		}
		if w.lease != nil && out.err == nil {
			w.lease.Progressed()
		}
		out.led = leads && !out.replayed
		if out.live == nil && !out.whole {
			w.giveBack()
		}
		return out
	}
}

// board joins the flight for the call, or starts one and leads. A private flight
// asks no store and is joined by nobody.
func (c *Cache) board(ctx context.Context, w *call, private bool) (f *flight, leads bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := w.slot.Key
	if w.refresh {
		key += " refresh" // who wants a new answer does not join those who look for an old one
	}
	if f, ok := c.flights[key]; ok && !private {
		f.aboard++
		return f, false
	}
	// Detached: the call must survive the caller that happened to be first.
	ctx = context.WithoutCancel(ctx)
	f = &flight{
		key: key, aboard: 1, paying: make(chan struct{}), offers: make(chan any, 1),
		solo: make(chan struct{}), done: make(chan struct{}),
	}
	f.leader, f.leaderLeft = context.WithCancel(ctx)
	ctx, f.cancel = context.WithCancel(ctx)
	if !private {
		c.flights[f.key] = f
	}
	go c.fly(ctx, f, w, private)
	return f, true
}

// leave counts a caller out, and reports whether it was the last one: then the
// call is cancelled.
func (c *Cache) leave(f *flight, leads bool) (last bool) {
	c.mu.Lock()
	f.aboard--
	if last = f.aboard == 0; last {
		c.removeLocked(f)
		f.cancel()
	}
	c.mu.Unlock()
	if leads { // after cancel: who sees the leader gone can tell whether others wait
		f.leaderLeft()
	}
	return last
}

// disband sends those who joined away, to make their own calls.
func (c *Cache) disband(f *flight) {
	c.mu.Lock()
	c.removeLocked(f)
	c.mu.Unlock()
	close(f.solo)
}

func (c *Cache) removeLocked(f *flight) {
	if c.flights[f.key] == f {
		delete(c.flights, f.key)
	}
}

// await waits for the flight, false when the caller has to make its own call:
// patience ended first, or there is nothing to join. Patience is only for the
// calls of others.
func (c *Cache) await(ctx context.Context, f *flight, leads bool, patience <-chan time.Time) (outcome, bool) {
	paying, offers, solo := f.paying, f.offers, f.solo
	if leads {
		solo = nil
	} else {
		paying, offers = nil, nil
	}
	for {
		select {
		case <-paying:
			paying, patience = nil, nil
		case v := <-offers:
			return outcome{live: v, flight: f}, true
		case <-f.done:
			if leads && len(f.offers) > 0 {
				return outcome{live: <-f.offers, flight: f}, true // both were ready
			}
			c.leave(f, leads)
			if p, ok := errors.AsType[*panicError](f.out.err); ok && leads {
				panic(p)
			}
			return f.out, true
		case <-ctx.Done():
			c.leave(f, leads)
			return outcome{result: result{err: ended(ctx)}}, true
		case <-patience:
			c.leave(f, leads)
			return outcome{}, false
		case <-solo:
			c.leave(f, leads)
			return outcome{}, false
		}
	}
}

// ended is the error of a context, and why it ended when that says more.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == nil || errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// fly runs a flight to its end.
func (c *Cache) fly(ctx context.Context, f *flight, w *call, private bool) {
	out := outcome{result: result{err: errExited, retry: true}}
	defer func() {
		if v := recover(); v != nil {
			out = outcome{result: result{err: &panicError{v, debug.Stack()}, retry: true}}
		}
		f.cancel()
		c.mu.Lock()
		c.removeLocked(f)
		c.mu.Unlock()
		f.out = out
		close(f.done)
	}()
	if private {
		out = c.direct(ctx, f, w, true)
		return
	}
	out = c.find(ctx, f, w)
}

var errExited = errors.New("llmcache: the goroutine of the call exited")

// panicError carries a panic from the goroutine of a call to the caller that
// led. The caller's own stack would not show where it came from.
type panicError struct {
	value any
	stack []byte
}

func (p *panicError) Error() string { return fmt.Sprintf("%v\n\n%s", p.value, p.stack) }

func (p *panicError) Unwrap() error {
	err, _ := p.value.(error)
	return err
}
