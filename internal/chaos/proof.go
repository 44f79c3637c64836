package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/modelserver"
	"github.com/nexuscore/onceq/notify"
	"github.com/nexuscore/onceq/orchestrator"
)

// prove judges the evidence. Whatever may be repeated when a worker dies may be so
// only where one did, at that time and in that place.
func prove(e evidence) *proof {
	runs := attempts(e.Entries)
	p := &proof{Resume: e.resumes(runs)}
	p.Claims = []*claim{
		e.outcomes(), e.order(runs), e.repeats(runs), e.steps(runs), e.overlaps(runs), e.refusals(runs), e.llm(runs),
		e.notifications(), e.producers(), e.leftovers(),
	}
	return p
}

func (e evidence) want(r runSpec) (orchestrator.Status, idempotent.State, orchestrator.HistoryKind) {
	if r.Fault == "fatal" {
		return orchestrator.StatusFailed, idempotent.StateFailed, orchestrator.KindRunFailed
	}
	return orchestrator.StatusSuccess, idempotent.StateSucceeded, orchestrator.KindRunSucceeded
}

func (e evidence) outcomes() *claim {
	c := &claim{What: "every run has one outcome, the table and Redis agree on it, and its result has every phase once"}
	all, _ := json.Marshal(phases)
	for _, r := range e.Plan.Runs {
		c.Looked++
		row, ok := e.Rows[r.ID]
		status, state, kind := e.want(r)
		switch {
		case !ok:
			c.against("%s is not in the table", r.ID)
		case row.Status != status:
			c.against("%s is %s, want %s (%s)", r.ID, row.Status, status, row.Error)
		case e.States[r.ID] != state:
			c.against("%s is %s in the table and %s in Redis", r.ID, row.Status, e.States[r.ID])
		case !slices.Equal(e.Ends[r.ID], []orchestrator.HistoryKind{kind}):
			c.against("%s has the outcomes %v in its history", r.ID, e.Ends[r.ID])
		case status == orchestrator.StatusSuccess && string(row.Result) != string(all):
			c.against("%s has the result %s", r.ID, row.Result)
		}
	}
	return c
}

// order: an attempt goes through the phases one by one from where the earlier ones
// were, and none begins after one that succeeded.
func (e evidence) order(runs map[string][]*attempt) *claim {
	c := &claim{What: "no phase is skipped, and none runs after the run succeeded"}
	for run, list := range runs {
		done := map[int]bool{}
		for i, a := range list {
			for j, v := range a.visits {
				c.Looked++
				if j > 0 && v.phase != a.visits[j-1].phase+1 {
					c.against("%s attempt %d: phase %s follows %s", run, a.number, phases[v.phase], phases[a.visits[j-1].phase])
				}
				if v.phase > 0 && !done[v.phase-1] {
					c.against("%s attempt %d: phase %s before %s had finished", run, a.number, phases[v.phase], phases[v.phase-1])
				}
				done[v.phase] = done[v.phase] || !v.finished.IsZero()
			}
			if i > 0 && len(a.visits) > 0 && !list[i-1].returned.IsZero() && list[i-1].err == "" {
				c.against("%s attempt %d: phases after an attempt that succeeded", run, a.number)
			}
		}
	}
	return c
}

// repeats: an attempt goes on in the phase where the one before was interrupted.
func (e evidence) repeats(runs map[string][]*attempt) *claim {
	c := &claim{What: "a phase is repeated only where its attempt was interrupted in it"}
	for run, list := range runs {
		var last *attempt // that ran phases
		for _, a := range list {
			if len(a.visits) == 0 {
				continue
			}
			if last != nil {
				e.repeat(c, run, last, a)
			}
			last = a
		}
	}
	return c
}

func (e evidence) repeat(c *claim, run string, last, a *attempt) {
	first := a.visits[0].phase
	for i, v := range last.visits {
		if v.phase < first {
			continue
		}
		c.Looked++
		if i == len(last.visits)-1 { // it was in there
			why := cause(e.Troubles, last.process, v.started, a.began, e.TTL+aftermath)
			if why == "" && strings.Contains(last.err, errPlanned.Error()) {
				why = planned
			}
			c.unless(why, "%s: attempt %d (%s) repeats %s of attempt %d (%s), which ended with %q", run, a.number, a.process, phases[v.phase], last.number, last.process, last.err)
			continue
		}
		// It went on to the next: only a save that got no answer is no save.
		why := cause(e.Troubles, last.process, v.finished, last.visits[i+1].started, 2*aftermath)
		if why == killed {
			why = ""
		}
		c.unless(why, "%s: attempt %d (%s) repeats %s, which attempt %d (%s) had left for %s", run, a.number, a.process, phases[v.phase], last.number, last.process, phases[v.phase+1])
	}
}

// steps: one whose attempt went on after it is not run again.
func (e evidence) steps(runs map[string][]*attempt) *claim {
	c := &claim{What: "a step is repeated only when its attempt was interrupted in it"}
	for run, list := range runs {
		type place struct{ phase, step string }
		earlier := map[place]*attempt{}
		at := map[place]time.Time{}
		for _, a := range list {
			for _, en := range a.entries {
				if en.Kind != step {
					continue
				}
				c.Looked++
				p := place{en.Phase, en.Step}
				if b := earlier[p]; b != nil {
					why := cause(e.Troubles, b.process, at[p], b.after(at[p], a.began), 2*aftermath)
					if why == "" { // it was kept, and could not be read
						why = cause(e.Troubles, a.process, a.began, en.At, 2*aftermath)
					}
					c.unless(why, "%s: attempt %d (%s) repeats step %s of %s, which attempt %d (%s) had finished", run, a.number, a.process, en.Step, en.Phase, b.number, b.process)
				}
				earlier[p], at[p] = a, en.At
			}
		}
	}
	return c
}

// overlaps: an attempt begins when the one before is over, unless that one could
// not be told.
func (e evidence) overlaps(runs map[string][]*attempt) *claim {
	c := &claim{What: "no two live attempts of a run at once"}
	for run, list := range runs {
		for i, a := range list {
			if i == 0 {
				continue
			}
			c.Looked++
			b := list[i-1]
			if over := b.over(e.Troubles, e.Ended); a.began.Before(over) {
				c.unless(cause(e.Troubles, b.process, b.began, a.began, e.TTL+aftermath),
					"%s: attempt %d (%s) began %v before attempt %d (%s) was over", run, a.number, a.process, over.Sub(a.began), b.number, b.process)
			}
		}
	}
	return c
}

// refusals: whoever was overtaken without knowing it is refused; only what froze,
// or could not reach Redis, can have been.
func (e evidence) refusals(runs map[string][]*attempt) *claim {
	c := &claim{What: "no effect of an attempt counts after its run was handed over; those that came too late were refused"}
	for run, list := range runs {
		for _, a := range list {
			c.Looked += len(a.entries)
			for _, r := range a.refused {
				c.Looked++
				c.unless(cause(e.Troubles, a.process, a.began, r.At, e.TTL+aftermath), "%s: attempt %d (%s) was overtaken at %s %s and knew nothing", run, a.number, a.process, r.Kind, r.Phase)
			}
		}
	}
	return c
}

// llm: a call is paid again only when it was in flight as its attempt was interrupted.
func (e evidence) llm(runs map[string][]*attempt) *claim {
	c := &claim{What: "no LLM call is paid twice but those in flight at a kill"}
	byHash := map[string][]modelserver.Call{}
	for _, call := range e.Calls {
		if call.Paid() {
			byHash[call.Hash] = append(byHash[call.Hash], call)
		}
	}
	for _, r := range e.Plan.Runs {
		for _, phase := range phases {
			for _, call := range calls {
				sum := sha256.Sum256(question(r.ID, phase, call))
				paid := byHash[hex.EncodeToString(sum[:])]
				delete(byHash, hex.EncodeToString(sum[:]))
				c.Looked += len(paid)
				if len(paid) == 0 && r.Fault != "fatal" {
					c.against("%s: the %s question of %s was never asked", r.ID, call, phase)
				}
				for i := range len(paid) - 1 {
					c.unless(e.again(runs[r.ID], paid[i], paid[i+1]), "%s: the %s question of %s was paid by %s and again by %s %v later",
						r.ID, call, phase, paid[i].Client, paid[i+1].Client, paid[i+1].Start.Sub(paid[i].Start))
				}
			}
		}
	}
	for _, unknown := range byHash {
		c.against("a call that no phase makes: %+v", unknown[0])
	}
	return c
}

// again finds why a call was made once more.
func (e evidence) again(list []*attempt, call, next modelserver.Call) troubleKind {
	if why := e.interrupted(list, call, next.Start); why != "" {
		return why
	}
	if passed(e.Troubles, call.Client, call.End) || passed(e.Troubles, next.Client, next.Start) {
		return passing
	}
	return cause(e.Troubles, next.Client, next.Start.Add(-askTimeout), next.Start, aftermath) // it was kept, and could not be read
}

// interrupted finds what kept an answer from being stored: between the question and
// the next thing that the attempt did, and no later than storing may take.
func (e evidence) interrupted(list []*attempt, call modelserver.Call, again time.Time) troubleKind {
	end := call.End.Add(askTimeout)
	if call.End.IsZero() {
		end = again
	}
	for _, a := range list {
		if a.process == call.Client && a.began.Before(call.Start) && a.over(e.Troubles, e.Ended).After(call.Start) {
			end = earlier(end, a.after(call.End, end))
		}
	}
	return cause(e.Troubles, call.Client, call.Start, earlier(end, again), 2*aftermath)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

var runID = regexp.MustCompile(`run-\d{4}`)

func (e evidence) notifications() *claim {
	c := &claim{What: "people were told of every run once"}
	seen := map[string]int{}
	for _, text := range e.Seen {
		c.Looked++
		seen[runID.FindString(text)]++
	}
	for _, r := range e.Plan.Runs {
		if n := seen[r.ID]; n != 1 {
			c.against("%s: %d messages", r.ID, n)
		}
		delete(seen, r.ID)
	}
	for run, n := range seen {
		c.against("%d messages about %q", n, run)
	}
	for state, n := range e.Outbox {
		if state != notify.StateSent {
			c.against("%d notifications are %s", n, state)
		}
	}
	return c
}

func (e evidence) producers() *claim {
	c := &claim{What: "a run that is handed in twice at once is accepted once"}
	for _, r := range e.Plan.Runs {
		if r.Twice {
			c.Looked++
		}
		if n := e.Accepted[r.ID]; n > 1 { // 0: the yes was lost, and the next answer was "duplicate"
			c.against("%s was accepted %d times", r.ID, n)
		}
	}
	return c
}

func (e evidence) leftovers() *claim {
	c := &claim{What: "no goroutine, connection, lock, or key without TTL is left"}
	for _, en := range e.Entries {
		if en.Kind == bye {
			c.Looked++
			if en.Detail != "" {
				c.against("%s left goroutines: %s", en.Process, en.Detail)
			}
		}
	}
	for _, s := range e.Stops {
		c.against("worker %s", s)
	}
	for _, k := range e.Eternal {
		c.against("key without TTL: %s", k)
	}
	for _, k := range e.Locks {
		c.against("lock: %s", k)
	}
	for _, l := range e.Links {
		c.against("connection: %s", l)
	}
	return c
}

// resumes lists how long the runs of killed processes rested, sorted.
func (e evidence) resumes(runs map[string][]*attempt) []time.Duration {
	var rests []time.Duration
	for _, list := range runs {
		for i, a := range list {
			if i+1 == len(list) || !a.returned.IsZero() {
				continue
			}
			for _, t := range e.Troubles {
				if t.Kind == killed && t.Process == a.process {
					rests = append(rests, list[i+1].began.Sub(t.From))
				}
			}
		}
	}
	slices.Sort(rests)
	return rests
}
