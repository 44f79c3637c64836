package main

import (
	"cmp"
	"slices"
	"time"
)

// visit is an attempt's stay in a phase.
type visit struct {
	phase    int
	started  time.Time
	finished time.Time // zero: it did not get there
}

// attempt is what one attempt did to the world.
type attempt struct {
	run, process string
	token        int64
	number       int
	began        time.Time
	returned     time.Time // zero: its process died first
	err          string
	visits       []visit
	entries      []entry // accepted ones, in order
	refused      []entry
}

// over is when the attempt could do nothing more: its handler returned, or its
// process died; end if neither.
func (a *attempt) over(troubles []trouble, end time.Time) time.Time {
	if !a.returned.IsZero() {
		return a.returned
	}
	for _, t := range troubles {
		if t.Process == a.process && t.Kind == killed {
			return t.From
		}
		if t.Process == a.process && t.Kind == stopped {
			return t.Until
		}
	}
	return end
}

// after is the first moment from t on at which the attempt did something else; end
// if it did nothing more.
func (a *attempt) after(t, end time.Time) time.Time {
	for _, e := range a.entries {
		if e.At.After(t) {
			return e.At
		}
	}
	return end
}

// attempts sorts the witness' log by run and token.
func attempts(entries []entry) map[string][]*attempt {
	byToken := map[string]map[int64]*attempt{}
	for _, e := range entries {
		if e.Run == "" {
			continue
		}
		if byToken[e.Run] == nil {
			byToken[e.Run] = map[int64]*attempt{}
		}
		a := byToken[e.Run][e.Token]
		if a == nil {
			a = &attempt{run: e.Run, process: e.Process, token: e.Token, number: e.Attempt, began: e.At}
			byToken[e.Run][e.Token] = a
		}
		a.add(e)
	}
	runs := map[string][]*attempt{}
	for run, list := range byToken {
		for _, a := range list {
			runs[run] = append(runs[run], a)
		}
		slices.SortFunc(runs[run], func(a, b *attempt) int { return cmp.Compare(a.token, b.token) })
	}
	return runs
}

func (a *attempt) add(e entry) {
	if e.Kind == returned { // no effect: it may also say so when it is stale
		a.returned, a.err = e.At, e.Detail
		return
	}
	if e.Refused {
		a.refused = append(a.refused, e)
		return
	}
	a.entries = append(a.entries, e)
	switch e.Kind {
	case started:
		a.visits = append(a.visits, visit{phase: slices.Index(phases, e.Phase), started: e.At})
	case finished:
		if n := len(a.visits); n > 0 {
			a.visits[n-1].finished = e.At
		}
	}
}
