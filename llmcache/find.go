package llmcache

import (
	"context"
	"crypto/rand"
	"errors"
	mrand "math/rand/v2"
	"sync"
	"time"

	"github.com/nexuscore/onceq/internal/breaker"
)

// Waiting for another process: the first looks come soon, the later ones cost
// Redis little.
const (
	firstLook = 15 * time.Millisecond
	lastLook  = 500 * time.Millisecond
)

// find answers a flight: from the store, by waiting for another process, or by
// making the call.
func (c *Cache) find(ctx context.Context, f *flight, w *call) outcome {
	owner := rand.Text()
	claim := w.claim(c, owner, w.model)
	for wait := firstLook; ; wait = min(wait*3/2, lastLook) {
		var b Begun
		err := c.ask(ctx, w.slot.Key, func(ctx context.Context) (err error) {
			b, err = c.store.Begin(ctx, w.slot, claim)
			return err
		})
		switch {
		case ctx.Err() != nil:
			c.drop(ctx, w, owner)
			return outcome{result: result{err: ctx.Err(), retry: true}}
		case err != nil:
			c.counts.passed.Add(1)
			return c.pay(ctx, f, w, owner)
		}
		switch b.State {
		case StateFound:
			rec, err := c.envelope.open(b.Data, w.slot.Key)
			c.sealing(err)
			if err == nil {
				c.hit(w, rec, b.TTL)
				return outcome{result: result{rec: rec, whole: true}, replayed: true}
			}
			if _, ok := errors.AsType[*sealerError](err); ok {
				return c.direct(ctx, f, w, false) // what is stored is good for when the sealer is back
			}
			c.discard(w, err)
			claim.Renew = true
			wait = 0
			continue
		case StateMine:
			if b.Note != "" {
				c.interrupted(w, b.Note)
			}
			if err := c.mayPay(ctx, w, true); err != nil {
				c.drop(ctx, w, owner)
				return outcome{result: result{err: err}}
			}
			c.counts.misses.Add(1)
			stop := c.keepAlive(ctx, w.slot, owner)
			defer stop()
			return c.pay(ctx, f, w, owner)
		case StateAmbiguous:
			return outcome{result: result{err: &MaybePaidError{Run: w.run, Call: openCall(w.slot.ID, b.Note)}}}
		case StateSpent:
			return outcome{result: result{err: w.spent(b.Totals)}}
		}
		claim.Renew = false // what the holder will have stored is fresh enough
		if !pause(ctx, min(jitter(wait), max(b.TTL, 0)+time.Millisecond)) {
			return outcome{result: result{err: ctx.Err(), retry: true}}
		}
	}
}

func jitter(d time.Duration) time.Duration {
	return d*3/4 + time.Duration(mrand.Int64N(int64(d)/2+1))
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (p *place) spent(totals Account) error {
	what := p.limit.over(totals, int64(len(totals.Open)))
	if what == "" {
		what = "calls" // another call ended between the verdict and the sums
	}
	return &BudgetError{Run: p.run, What: what, Limit: p.limit, Totals: totals}
}

// mayPay says why a call must not be made after all. begun says that the store let it
// begin, here or elsewhere: then it has looked at the run's ledger, unless the answer
// is shared.
func (c *Cache) mayPay(ctx context.Context, w *call, begun bool) error {
	if w.lease == nil {
		return nil
	}
	if err := w.lease.Err(); err != nil {
		return err
	}
	if begun && w.slot.Book != "" || w.limit == (Budget{}) {
		return nil
	}
	totals, err := c.ledgerOf(ctx, w.book)
	if err != nil {
		return nil // cannot tell: calls go on without Redis
	}
	if w.limit.over(totals, int64(len(totals.Open))) != "" {
		return w.spent(totals)
	}
	return nil
}

// direct makes a call that leaves nothing in the store but its cost.
func (c *Cache) direct(ctx context.Context, f *flight, w *call, begun bool) outcome {
	c.counts.passed.Add(1)
	if !c.off {
		if err := c.mayPay(ctx, w, begun); err != nil {
			return outcome{result: result{err: err}}
		}
	}
	close(f.paying)
	r := w.invoke(ctx, f)
	c.tried(r)
	if !c.off {
		c.count(w.place, r.cost)
	}
	return outcome{result: r}
}

// pay makes the call and settles what it leaves.
func (c *Cache) pay(ctx context.Context, f *flight, w *call, owner string) outcome {
	f.owner = owner
	close(f.paying)
	settled := false
	defer func() {
		if !settled { // invoke panicked or exited
			c.drop(ctx, w, owner)
		}
	}()
	r := w.invoke(ctx, f)
	settled = true
	c.tried(r)
	c.settle(ctx, w, owner, r)
	return outcome{result: r}
}

func (c *Cache) tried(r result) {
	if !r.whole {
		c.counts.failed.Add(1)
	}
}

// settle stores the answer or frees its place, and counts the cost.
func (c *Cache) settle(ctx context.Context, w *call, owner string, r result) {
	ctx = context.WithoutCancel(ctx) // the answer is here; that nobody waits any longer changes nothing
	if r.store {
		data, err := c.envelope.wrap(r.rec, w.slot.Key)
		c.sealing(err)
		if err == nil {
			c.finish(ctx, w, owner, r, data)
			return
		}
		if _, ok := errors.AsType[*sealerError](err); !ok {
			c.logger.Warn("llmcache: not stored", "run", w.run, "model", trim(w.model), "err", err)
		}
	}
	if r.whole {
		c.counts.unstored.Add(1)
	}
	err := c.ask(ctx, w.slot.Key, func(ctx context.Context) error { return c.store.Abandon(ctx, w.slot, owner, r.cost, c.runTTL) })
	c.counted(w, r.cost, err)
}

func (c *Cache) finish(ctx context.Context, w *call, owner string, r result, data []byte) {
	var stored bool
	err := c.ask(ctx, w.slot.Key, func(ctx context.Context) (err error) {
		stored, err = c.store.Finish(ctx, w.slot, owner, Stored{Data: data, TTL: w.ttl, Keep: c.runTTL, Cost: r.cost.Paid})
		return err
	})
	switch {
	case stored:
		c.counts.stored.Add(1)
		c.remember(w.slot.Key, r.rec, w.ttl)
	default:
		c.counts.unstored.Add(1)
	}
	if err == nil && !stored && w.slot.Book != "" {
		c.tally.add(w.slot.Book, r.cost) // another has the place; the call was paid all the same
	}
	c.counted(w, r.cost, err)
}

// counted adds to the ledgers that the store did not write together with the
// answer. After an error that leaves open whether it did, the run's ledger keeps
// the in-flight record: maybe paid.
func (c *Cache) counted(w *call, cost Account, err error) {
	c.tally.add(totalKey(c.prefix), cost)
	if w.book != "" && (w.slot.Book == "" || errors.Is(err, breaker.ErrOpen)) {
		c.tally.add(w.book, cost)
	}
}

// drop frees the place of a call that was not made, or whose end is unknown.
func (c *Cache) drop(ctx context.Context, w *call, owner string) {
	_ = c.ask(context.WithoutCancel(ctx), w.slot.Key, func(ctx context.Context) error { // its TTL frees it otherwise
		return c.store.Abandon(ctx, w.slot, owner, Account{}, c.runTTL)
	})
}

// count adds to the run's ledger and to the total.
func (c *Cache) count(p *place, a Account) {
	c.tally.add(totalKey(c.prefix), a)
	c.tally.add(p.book, a)
}

func (c *Cache) hit(w *call, rec *record, ttl time.Duration) {
	c.counts.hits.Add(1)
	saved := Account{Saved: c.prices.sum(rec.usage, w.model, rec.model)}
	c.tally.add(totalKey(c.prefix), saved)
	if w.slot.Book == "" {
		c.tally.add(w.book, saved)
	}
	c.remember(w.slot.Key, rec, ttl)
}

func (c *Cache) discard(w *call, err error) {
	c.counts.discarded.Add(1)
	c.logger.Warn("llmcache: stored answer discarded", "run", w.run, "call", w.slot.ID, "err", err)
}

// sealing logs when the sealer begins to fail and when it works again: one line each,
// however many calls meet it. A discarded record is neither.
func (c *Cache) sealing(err error) {
	_, fails := errors.AsType[*sealerError](err)
	switch {
	case c.sealer == nil:
	case fails && c.sealerFails.CompareAndSwap(false, true):
		c.logger.Warn("llmcache: sealer fails, calls are paid and not stored", "err", err)
	case err == nil && c.sealerFails.Load() && c.sealerFails.CompareAndSwap(true, false):
		c.logger.Info("llmcache: sealer works again")
	}
}

// interrupted notes that an earlier attempt began the call and died.
func (c *Cache) interrupted(w *call, text string) {
	was := openCall(w.slot.ID, text)
	c.logger.Warn("llmcache: an interrupted call is made again, it may have been paid",
		"run", w.run, "call", w.slot.ID, "model", was.Model, "since", was.Since)
	wasted := Account{Wasted: Sum{Calls: 1}}
	c.tally.add(totalKey(c.prefix), wasted)
	if w.slot.Book == "" {
		c.tally.add(w.book, wasted)
	}
}

// keepAlive extends the lease of a call until stop is called. A timer does it, for most
// calls are over before it is time.
func (c *Cache) keepAlive(ctx context.Context, slot Slot, owner string) (stop func()) {
	ctx = context.WithoutCancel(ctx)
	var mu sync.Mutex // guards the two, and is held while the lease is extended
	var timer *time.Timer
	stopped := false
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(c.leaseTTL/3, func() {
		mu.Lock()
		defer mu.Unlock()
		if stopped {
			return
		}
		held := true
		err := c.ask(ctx, slot.Key, func(ctx context.Context) (err error) {
			held, err = c.store.Extend(ctx, slot, owner, c.leaseTTL)
			return err
		})
		if err != nil || held { // else another makes the call too; this one's answer is good all the same
			timer.Reset(c.leaseTTL / 3)
		}
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		timer.Stop()
	}
}
