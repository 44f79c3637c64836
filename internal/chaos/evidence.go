package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/modelserver"
	"github.com/nexuscore/onceq/notify"
	"github.com/nexuscore/onceq/notify/notifytest"
	"github.com/nexuscore/onceq/orchestrator"
)

// evidence is what can be seen from outside when all is over.
type evidence struct {
	Plan     plan
	TTL      time.Duration
	Began    time.Time
	Ended    time.Time
	Entries  []entry
	Troubles []trouble
	Rows     map[string]orchestrator.Run
	Ends     map[string][]orchestrator.HistoryKind // outcomes in the history, by run
	States   map[string]idempotent.State           // in Redis
	Calls    []modelserver.Call
	Seen     []string // messages in the channel
	Outbox   map[notify.State]int64
	Eternal  []string // keys of ours without a TTL
	Locks    []string
	Links    []string // connections of workers to Redis
	Stops    []string // workers that did not end in order
	Accepted map[string]int
	Skipped  int
}

func (v *supervisor) evidence(ctx context.Context) (evidence, error) {
	e := evidence{Plan: v.plan, TTL: v.ttl, Began: v.began, Ended: time.Now(), Entries: v.witness.entries(), Calls: v.model.Calls(),
		Rows: map[string]orchestrator.Run{}, Ends: map[string][]orchestrator.HistoryKind{}, States: map[string]idempotent.State{}, Outbox: map[notify.State]int64{},
		Stops: v.stops, Accepted: v.accepted, Skipped: v.skipped}
	e.Troubles = append(told(e.Entries, e.Ended), v.troubles...)
	for _, r := range v.plan.Runs {
		if err := v.look(ctx, r.ID, &e); err != nil {
			return e, err
		}
	}
	for _, m := range v.slack.Seen(notifytest.Channel) {
		e.Seen = append(e.Seen, m.Visible())
	}
	stats, err := v.stack.outbox.Stats(ctx)
	if err != nil {
		return e, err
	}
	for _, states := range stats {
		for state, n := range states {
			e.Outbox[state] += n
		}
	}
	v.stack.close()
	if e.Eternal, err = v.keys(ctx, func(key string, ttl time.Duration) bool { return ttl == -1 }); err != nil {
		return e, err
	}
	if e.Locks, err = v.keys(ctx, isLock); err != nil {
		return e, err
	}
	list, err := v.admin.ClientList(ctx).Result()
	for _, line := range strings.Split(strings.TrimSpace(list), "\n") {
		if !strings.Contains(line, " name="+adminName+" ") {
			e.Links = append(e.Links, line)
		}
	}
	return e, err
}

func (v *supervisor) look(ctx context.Context, id string, e *evidence) error {
	row, err := v.stack.runs.Get(ctx, id)
	if errors.Is(err, orchestrator.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	e.Rows[id] = row
	history, err := v.stack.runs.History(ctx, id)
	if err != nil {
		return err
	}
	for _, h := range history {
		if h.Kind == orchestrator.KindRunSucceeded || h.Kind == orchestrator.KindRunFailed {
			e.Ends[id] = append(e.Ends[id], h.Kind)
		}
	}
	r, err := v.stack.guard.Lookup(ctx, v.stack.runs.Key(id))
	e.States[id] = r.State
	return err
}

// isLock: leases of runs, and those of LLM calls.
func isLock(key string, _ time.Duration) bool {
	return strings.HasSuffix(key, ":lock") || strings.HasSuffix(key, ":lease")
}

// keys lists the keys of ours that match; asynq's have another prefix.
func (v *supervisor) keys(ctx context.Context, match func(key string, ttl time.Duration) bool) ([]string, error) {
	var found []string
	it := v.admin.Scan(ctx, 0, prefix+":*", 1000).Iterator()
	for it.Next(ctx) {
		ttl, err := v.admin.PTTL(ctx, it.Val()).Result()
		if err != nil {
			return nil, err
		}
		if ttl != -2 && match(it.Val(), ttl) { // -2: gone meanwhile
			found = append(found, it.Val())
		}
	}
	return found, it.Err()
}
