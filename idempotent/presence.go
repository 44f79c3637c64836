package idempotent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// What a recoverer may do with the subscriptions it sees.
const (
	presenceOff   = "off"
	presenceLook  = "look"  // be seen, judge nobody
	presenceJudge = "judge" // a process whose subscription is gone is dead
)

const (
	// settleFor is how long a subscription that was restored must stand before its
	// owner judges others: what cut it has cut theirs too.
	settleFor = 5 * time.Second
	// quietFor is how long nothing is heard on a subscription before it is asked
	// whether it lives: a half-open connection sends no error.
	quietFor = 10 * time.Second
	// unseenLimit is how long a subscription may be there and not be seen before it is
	// made anew: on Redis Cluster the slot may have moved to another node.
	unseenLimit = 3 * time.Second
	// maxDrops is how often in a row that is tried.
	maxDrops = 3
)

// presence holds the subscription by which others see that this process lives.
type presence struct {
	g    *Guard
	back chan struct{} // a value says: subscribed just now

	mu      sync.Mutex // guards the fields below
	off     bool       // for good
	since   time.Time  // when the subscription was made; zero: there is none
	times   int        // how often it was made
	drops   int        // how often in a row one was dropped because nobody sees it
	dropped context.CancelFunc
}

func newPresence(g *Guard) *presence {
	return &presence{g: g, back: make(chan struct{}, 1)}
}

// mode is what the next look may do.
func (p *presence) mode() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.off:
		return presenceOff
	case p.since.IsZero(), p.times > 1 && time.Since(p.since) < settleFor:
		return presenceLook
	}
	return presenceJudge
}

// saw takes what a look said of this process' subscription.
func (p *presence) saw(how string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch how {
	case presenceOff:
	case "seen":
		p.drops = 0
	case "unseen":
		if p.since.IsZero() || time.Since(p.since) < unseenLimit {
			return
		}
		p.drops++
		if p.drops >= maxDrops {
			p.stop(fmt.Errorf("the subscription is not seen where the index is"))
		}
		p.dropped()
	default:
		p.stop(fmt.Errorf("%s", how))
		if p.dropped != nil {
			p.dropped()
		}
	}
}

// stop turns presence off, and says so once. The lock is held.
func (p *presence) stop(why error) {
	if p.off {
		return
	}
	p.off = true
	p.g.logger.Warn("onceq: presence is off, runs of a killed worker wait for their lease's TTL", "ttl", p.g.ttl, "err", why)
}

func (p *presence) stopped() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.off
}

// hold keeps the subscription until ctx ends or presence is off.
func (p *presence) hold(ctx context.Context) {
	for ctx.Err() == nil && !p.stopped() {
		once, drop := context.WithCancel(ctx)
		p.mu.Lock()
		p.dropped = drop
		p.mu.Unlock()
		err := p.subscribe(once)
		drop()
		p.mu.Lock()
		p.since = time.Time{}
		if redis.HasErrorPrefix(err, "NOPERM") || redis.HasErrorPrefix(err, "ERR unknown command") {
			p.stop(err)
		}
		p.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// subscribe makes one subscription and keeps it while it lives. Not by go-redis' own
// reconnecting: on a cluster a new one may belong on another node.
func (p *presence) subscribe(ctx context.Context) (err error) {
	defer func() { // a Ring without a living shard panics
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: %v", ErrUnavailable, v)
		}
	}()
	sub := p.g.rdb.Subscribe(ctx, aliveChannel(p.g.prefix, p.g.process))
	stop := context.AfterFunc(ctx, func() { _ = sub.Close() }) // a blocked read does not see its context end
	defer func() {
		stop()
		_ = sub.Close()
	}()
	asked := false
	for {
		msg, err := sub.ReceiveTimeout(ctx, quietFor)
		switch m := msg.(type) {
		case *redis.Subscription:
			p.subscribed(m)
		case nil:
			if !isTimeout(err) || asked {
				return err
			}
			if err := sub.Ping(ctx); err != nil {
				return err
			}
		}
		asked = msg == nil
	}
}

func (p *presence) subscribed(m *redis.Subscription) {
	if m.Kind != "subscribe" {
		return
	}
	p.mu.Lock()
	p.since = time.Now()
	p.times++
	p.mu.Unlock()
	select {
	case p.back <- struct{}{}:
	default:
	}
}

func isTimeout(err error) bool {
	t, ok := err.(interface{ Timeout() bool })
	return ok && t.Timeout()
}
