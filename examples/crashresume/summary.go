package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nexuscore/onceq/internal/modelserver"
	"github.com/nexuscore/onceq/notify/notifytest"
	"github.com/nexuscore/onceq/orchestrator"
)

// story is the timeline, told as it happens.
type story struct {
	w     io.Writer
	start time.Time
}

func newStory(w io.Writer) *story { return &story{w: w, start: time.Now()} }

func (s *story) tell(format string, args ...any) { s.at(time.Now(), format, args...) }

func (s *story) at(t time.Time, format string, args ...any) {
	_, _ = fmt.Fprintf(s.w, "%8.3fs  %s\n", t.Sub(s.start).Seconds(), fmt.Sprintf(format, args...))
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// summary is what was counted. The model server counts the calls, the database the
// phases, the channel the messages.
type summary struct {
	Refused       int            `json:"duplicate_submissions_refused"`
	Executed      map[string]int `json:"phases_executed"`
	Repeated      int            `json:"phases_repeated"`
	Paid          int            `json:"llm_calls_paid"`
	PaidAgain     int            `json:"llm_calls_repeated"` // although an equal call had been answered
	Replayed      int            `json:"llm_calls_replayed"` // answers of a killed attempt that its successor used
	Ledger        ledger         `json:"ledger"`             // what the library's own books say of it
	Notifications int            `json:"notifications_sent"`
	Resume        float64        `json:"resume_seconds"` // from SIGKILL to the next attempt; the longest
	Kills         int            `json:"kills"`
	OK            bool           `json:"ok"`
	Problems      []string       `json:"problems,omitempty"`
}

// ledger is the run's account: calls by what became of them.
type ledger struct {
	Paid   int64 `json:"paid"`
	Saved  int64 `json:"saved"`  // answered by the cache
	Wasted int64 `json:"wasted"` // in flight at a kill: may have been paid
	Tokens int64 `json:"tokens"` // paid
}

func (s *summary) fail(format string, args ...any) {
	s.OK = false
	s.Problems = append(s.Problems, fmt.Sprintf(format, args...))
}

func (v *supervisor) summarise(err error) summary {
	s := summary{
		OK: true, Refused: v.refused, Executed: map[string]int{}, Kills: len(v.killed),
		Notifications: len(v.slack.Seen(notifytest.Channel)),
	}
	if err != nil {
		s.fail("%v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // the play may have ended by its timeout
	defer cancel()
	run, err := v.runs.Get(ctx, v.runID)
	if err != nil {
		s.fail("%v", err)
	}
	history, err := v.runs.History(ctx, v.runID)
	if err != nil {
		s.fail("%v", err)
	}
	v.countPhases(&s, history)
	v.countCalls(&s)
	if a, err := v.cache.Ledger().Of(ctx, v.runs.Key(v.runID)); err != nil {
		s.fail("ledger: %v", err)
	} else {
		s.Ledger = ledger{a.Paid.Calls, a.Saved.Calls, a.Wasted.Calls, a.Paid.Tokens()}
	}
	v.retell(history)
	v.judge(&s, run)
	return s
}

// countPhases: a phase was executed when the database says that it finished, and
// when its worker was killed in it.
func (v *supervisor) countPhases(s *summary, history []orchestrator.HistoryEntry) {
	for _, e := range history {
		if e.Kind == orchestrator.KindPhaseFinished || e.Kind == orchestrator.KindPhaseFailed || e.Kind == orchestrator.KindPhaseUnsaved {
			s.Executed[e.Phase]++
		}
	}
	for i, k := range v.killed {
		s.Executed[k.phase]++
		begun := slices.IndexFunc(history, func(e orchestrator.HistoryEntry) bool {
			return e.Kind == orchestrator.KindAttemptBegun && !e.At.Time().Before(k.at.Truncate(time.Millisecond))
		})
		if begun < 0 {
			s.fail("no attempt after kill %d", i+1)
			continue
		}
		s.Resume = max(s.Resume, history[begun].At.Time().Sub(k.at).Seconds())
	}
	for _, n := range s.Executed {
		s.Repeated += max(0, n-1)
	}
}

func (v *supervisor) countCalls(s *summary) {
	paid := map[string]int{} // of equal calls that were answered whole
	calls := v.model.Calls()
	for _, c := range calls {
		if c.Paid() {
			s.Paid++
		}
		if c.Repeat {
			s.PaidAgain++
		}
		if c.Outcome == modelserver.Completed {
			paid[c.Hash]++
		}
	}
	for _, k := range v.killed {
		for _, c := range calls {
			if c.Phase == k.phase && c.Seq <= k.seq && c.Outcome == modelserver.Completed && paid[c.Hash] == 1 {
				s.Replayed++
			}
		}
	}
}

// retell adds what only the database knows, in order.
func (v *supervisor) retell(history []orchestrator.HistoryEntry) {
	_, _ = fmt.Fprintln(v.story.w, "\nthe run, as the database has it:")
	for _, e := range history {
		text := strings.ReplaceAll(string(e.Kind), "_", " ")
		if e.Phase != "" {
			text += " " + e.Phase
		}
		if e.Attempt > 0 {
			text += fmt.Sprintf(" (attempt %d)", e.Attempt)
		}
		if e.DurationMS > 0 {
			text += fmt.Sprintf(" after %v", time.Duration(e.DurationMS)*time.Millisecond)
		}
		v.story.at(e.At.Time(), "%s", text)
	}
}

func (v *supervisor) judge(s *summary, run orchestrator.Run) {
	if run.Status != orchestrator.StatusSuccess {
		s.fail("the run is %s: %s", run.Status, run.Error)
	}
	if v.accepted != 1 || s.Refused != 1 {
		s.fail("%d submissions accepted and %d refused, want 1 and 1", v.accepted, s.Refused)
	}
	killed := map[string]int{}
	for _, k := range v.killed {
		killed[k.phase]++
	}
	for _, p := range phases {
		if got, want := s.Executed[p], 1+killed[p]; got != want {
			s.fail("phase %s was executed %d times, want %d", p, got, want)
		}
	}
	if s.PaidAgain != 0 {
		s.fail("%d LLM calls were paid again although they had been answered", s.PaidAgain)
	}
	// The calls in flight at a kill are what the model saw begin and nobody can know of.
	if l := s.Ledger; int(l.Paid+l.Wasted) != s.Paid || int(l.Saved) != s.Replayed {
		s.fail("the ledger says %d paid, %d wasted, %d saved; the model saw %d paid, and %d were used again", l.Paid, l.Wasted, l.Saved, s.Paid, s.Replayed)
	}
	if s.Notifications != 1 {
		s.fail("%d messages in Slack, want 1", s.Notifications)
	}
	if len(v.killed) != v.kills {
		s.fail("%d workers killed, want %d", len(v.killed), v.kills)
	}
}

func (s summary) print(w io.Writer) {
	p := func(label string, value any) { _, _ = fmt.Fprintf(w, "  %-42s %v\n", label, value) }
	_, _ = fmt.Fprintln(w, "\nsummary, counted from outside:")
	p("workers killed", s.Kills)
	p("duplicate submissions refused", s.Refused)
	p("phases repeated", fmt.Sprintf("%d (of %d executions)", s.Repeated, s.total()))
	p("LLM calls paid", s.Paid)
	p("  paid again although answered", s.PaidAgain)
	p("  answers used again, not paid again", s.Replayed)
	p("  in flight at a kill: perhaps paid twice", s.Ledger.Wasted)
	p("messages in Slack", s.Notifications)
	if s.Kills > 0 {
		p("from SIGKILL to the next attempt", fmt.Sprintf("%.1f s", s.Resume))
	}
	for _, problem := range s.Problems {
		p("PROBLEM", problem)
	}
	if s.OK {
		p("nothing was doubled or lost", "ok")
	}
}

func (s summary) total() (n int) {
	for _, k := range s.Executed {
		n += k
	}
	return n
}
