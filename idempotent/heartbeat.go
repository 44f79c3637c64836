package idempotent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nexuscore/onceq/internal/runkey"
	"github.com/nexuscore/onceq/internal/script"
)

// heart extends the leases of all attempts of a process in one pipelined call
// every third of the TTL. It is a timer, not a goroutine: with no attempt there
// is nothing to stop, so a guard needs no Close.
type heart struct {
	g *Guard

	mu    sync.Mutex // guards the fields below
	live  map[*Attempt]struct{}
	timer *time.Timer
}

func (h *heart) init(g *Guard) {
	h.g, h.live = g, map[*Attempt]struct{}{}
}

func (h *heart) add(a *Attempt) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.live[a] = struct{}{}
	if len(h.live) > 1 {
		return
	}
	if h.timer == nil {
		h.timer = time.AfterFunc(h.g.ttl/3, h.beat)
	} else {
		h.timer.Reset(h.g.ttl / 3)
	}
}

func (h *heart) remove(a *Attempt) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.live, a)
	if len(h.live) == 0 {
		h.timer.Stop()
	}
}

func (h *heart) beat() {
	h.mu.Lock()
	attempts := make([]*Attempt, 0, len(h.live))
	for a := range h.live {
		attempts = append(attempts, a)
	}
	h.mu.Unlock()

	alive, hung := h.sort(attempts)
	h.again(h.extend(alive))
	for _, a := range hung { // after the others, who must not wait for it
		a.giveUp(errNoProgress, true)
	}
}

// again sets the time of the next beat.
func (h *heart) again(answered bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.live) == 0 {
		return
	}
	if answered {
		h.timer.Reset(h.g.ttl / 3)
	} else { // two failures in a row must leave time for a third try
		h.timer.Reset(h.g.ttl / 10)
	}
}

// sort drops the attempts that are over, and finds those that got nothing done for
// too long.
func (h *heart) sort(attempts []*Attempt) (alive, hung []*Attempt) {
	for _, a := range attempts {
		switch {
		case a.lease.Err() != nil:
		case h.g.progress > 0 && time.Since(a.lease.LastProgress()) > h.g.progress:
			hung = append(hung, a)
		default:
			alive = append(alive, a)
		}
	}
	return alive, hung
}

// leave gives up the attempts whose task asynq has taken back while their handler
// still works: a process that ends now would count as their crash.
func (h *heart) leave() {
	h.mu.Lock()
	var left []*Attempt
	for a := range h.live {
		if a.outer.Err() != nil && !a.returned.Load() {
			left = append(left, a)
		}
	}
	h.mu.Unlock()
	var work sync.WaitGroup
	for _, a := range left {
		work.Go(func() { a.giveUp(errShutdown, !putBackByAsynq(a.outer)) })
	}
	work.Wait()
}

var (
	errNoProgress = errors.New("no progress was reported in time")
	errGrace      = errors.New("the handler did not return within the grace after its context ended")
	errShutdown   = errors.New("its process shut down and the handler did not return")
)

// extend reports whether Redis answered for all of them.
func (h *heart) extend(attempts []*Attempt) bool {
	if len(attempts) == 0 {
		return true
	}
	g := h.g
	calls := make([]script.Call, len(attempts))
	notes := make([]noted, len(attempts))
	for i, a := range attempts {
		l := a.lease
		notes[i] = noted{key: l.Key, kind: noteLease, ms: ms(g.ttl)}
		calls[i] = script.Call{
			Script: extendScript,
			Keys:   g.withIndex(runkey.Lock(l.Base), recordKey(l.Base)),
			Args:   []any{l.Owner, ms(g.ttl), ms(g.retention), g.process, runkey.Escape(l.Key)},
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), g.ttl/3) // the heartbeat belongs to no single task
	defer cancel()
	g.note(ctx, notes...)
	sent := time.Now()
	answered := true
	for i, r := range g.run.RunAll(ctx, calls) {
		l := attempts[i].lease
		switch {
		case r.Err != nil:
			answered = false
			g.logger.Warn("onceq: lease not extended", "run", l.Key, "token", l.Token, "left", l.Remaining(), "err", r.Err)
		case r.Value == int64(1):
			l.Renewed(sent)
		default:
			l.Lose(errTaken)
		}
	}
	return answered
}

// giveUp ends an attempt whose handler still runs: first for the handler, whose
// writes are refused from here on, then for its successor. It says whether that
// uses up a retry.
func (a *Attempt) giveUp(why error, used bool) {
	l := a.lease
	if a.returned.Load() || l.Err() != nil {
		return
	}
	l.Lose(why)
	a.g.log(l.Key).Warn("onceq: lease given up", "attempt", l.Attempt, "token", l.Token, "err", why)
	_, _ = a.g.release(context.Background(), l.Key, l.Owner, handback{reason: why.Error(), used: used}) // the attempt's context has ended
}
