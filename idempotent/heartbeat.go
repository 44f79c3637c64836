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

// onlyZombies reports whether handlers still run and asynq waits for none of them.
func (h *heart) onlyZombies() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for a := range h.live {
		if a.outer.Err() == nil {
			return false
		}
	}
	return len(h.live) > 0
}

func (h *heart) beat() {
	h.mu.Lock()
	attempts := make([]*Attempt, 0, len(h.live))
	for a := range h.live {
		attempts = append(attempts, a)
	}
	h.mu.Unlock()

	answered := h.extend(h.alive(attempts))

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

// alive drops the attempts that are over or got nothing done for too long.
func (h *heart) alive(attempts []*Attempt) []*Attempt {
	alive := attempts[:0]
	for _, a := range attempts {
		switch {
		case a.lease.Err() != nil:
		case h.g.progress > 0 && time.Since(a.lease.LastProgress()) > h.g.progress:
			a.giveUp(errNoProgress, true)
		default:
			alive = append(alive, a)
		}
	}
	return alive
}

var (
	errNoProgress = errors.New("no progress was reported in time")
	errGrace      = errors.New("the handler did not return within the grace after its context ended")
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
	if l.Err() != nil {
		return
	}
	l.Lose(why)
	a.g.log(l.Key).Warn("onceq: lease given up", "attempt", l.Attempt, "token", l.Token, "err", why)
	a.g.release(context.Background(), l.Key, l.Owner, handback{reason: why.Error(), used: used}) // the attempt's context has ended
}
