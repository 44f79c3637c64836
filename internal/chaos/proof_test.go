package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/modelserver"
	"github.com/nexuscore/onceq/notify"
	"github.com/nexuscore/onceq/orchestrator"
)

var epoch = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time {
	return epoch.Add(time.Duration(seconds * float64(time.Second)))
}

// story is evidence of one run, told second by second: attempt 1 on w1.1 is killed
// at 15 in its second phase, in which it asked its first question; attempt 2 on w2.1
// does the rest.
func story() evidence {
	e := evidence{
		Plan: plan{Runs: []runSpec{{ID: "run-0001", Twice: true}}}, TTL: 4 * time.Second, Began: epoch, Ended: at(100),
		Troubles: []trouble{{Kind: killed, Process: "w1.1", From: at(15), Until: at(15)}},
		Rows:     map[string]orchestrator.Run{"run-0001": {Status: orchestrator.StatusSuccess}},
		Ends:     map[string][]orchestrator.HistoryKind{"run-0001": {orchestrator.KindRunSucceeded}},
		States:   map[string]idempotent.State{"run-0001": idempotent.StateSucceeded},
		Seen:     []string{"run-0001 is to be done once: done"}, Outbox: map[notify.State]int64{notify.StateSent: 1},
		Accepted: map[string]int{"run-0001": 1},
	}
	row := e.Rows["run-0001"]
	all, _ := json.Marshal(phases)
	row.Result = orchestrator.JSON(all)
	e.Rows["run-0001"] = row

	e.tell(1, 9, entry{Kind: began})
	e.phase(1, 10, phases[0], calls)
	e.tell(1, 14, entry{Kind: started, Phase: phases[1]})
	e.tell(1, 14.2, entry{Kind: step, Phase: phases[1], Step: calls[0]})
	e.ask(1, 14.5, phases[1], calls[0])

	e.tell(2, 18, entry{Kind: began})
	e.phase(2, 20, phases[1], calls)
	for i := 2; i < len(phases); i++ {
		e.phase(2, float64(10+10*i), phases[i], calls)
	}
	e.tell(2, 70, entry{Kind: returned})
	e.Entries = append(e.Entries, entry{At: at(99), Kind: bye, Process: "w2.1"})
	return e
}

func (e *evidence) tell(attempt int, when float64, en entry) {
	en.At, en.Run, en.Attempt, en.Token = at(when), "run-0001", attempt, int64(attempt)
	en.Process = "w1.1"
	if attempt > 1 {
		en.Process = "w2.1"
	}
	e.Entries = append(e.Entries, en)
}

func (e *evidence) ask(attempt int, when float64, phase, call string) {
	sum := sha256.Sum256(question("run-0001", phase, call))
	process := "w1.1"
	if attempt > 1 {
		process = "w2.1"
	}
	e.Calls = append(e.Calls, modelserver.Call{Hash: hex.EncodeToString(sum[:]), Client: process, Start: at(when), End: at(when + 0.1), Outcome: modelserver.Completed})
}

// phase is one that goes well, from when on, within three seconds.
func (e *evidence) phase(attempt int, when float64, name string, asked []string) {
	e.tell(attempt, when, entry{Kind: started, Phase: name})
	for i, call := range asked {
		if call != calls[2] {
			e.tell(attempt, when+0.5*float64(i)+0.1, entry{Kind: step, Phase: name, Step: call})
		}
		e.ask(attempt, when+0.5*float64(i)+0.2, name, call)
	}
	e.tell(attempt, when+3, entry{Kind: finished, Phase: name})
}

func (e *evidence) row(f func(*orchestrator.Run)) {
	r := e.Rows["run-0001"]
	f(&r)
	e.Rows["run-0001"] = r
}

func failed(p *proof) []string {
	var list []string
	for _, c := range p.Claims {
		if len(c.Against) > 0 {
			list = append(list, c.What)
		}
	}
	return list
}

func TestProofAcceptsTheCrashTable(t *testing.T) {
	p := prove(story())
	if !p.ok() {
		t.Fatalf("a run that was killed once is not accepted:\n%v", p)
	}
	if len(p.Resume) != 1 || p.Resume[0] != 3*time.Second {
		t.Errorf("resumed after %v, want 3s", p.Resume)
	}
	for i, want := range map[int]map[troubleKind]int{2: {killed: 1}, 3: {killed: 1}, 6: {killed: 1}} {
		if got := p.Claims[i].Excused; len(got) != 1 || got[killed] != want[killed] {
			t.Errorf("%s: excused %v, want %v", p.Claims[i].What, got, want)
		}
	}
}

// Each change breaks one promise, and the proof must say which.
func TestProofFails(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*evidence)
		says   string
	}{
		"a run is missing":       {func(e *evidence) { delete(e.Rows, "run-0001") }, "one outcome"},
		"a run never ends":       {func(e *evidence) { e.row(func(r *orchestrator.Run) { r.Status = orchestrator.StatusRetrying }) }, "one outcome"},
		"Redis says otherwise":   {func(e *evidence) { e.States["run-0001"] = idempotent.StateRunning }, "one outcome"},
		"two outcomes":           {func(e *evidence) { e.Ends["run-0001"] = append(e.Ends["run-0001"], orchestrator.KindRunFailed) }, "one outcome"},
		"a phase is in it twice": {func(e *evidence) { e.row(func(r *orchestrator.Run) { r.Result = `["gather","gather"]` }) }, "one outcome"},
		"a phase is skipped":     {func(e *evidence) { e.drop(func(en entry) bool { return en.Phase == phases[3] }) }, "no phase is skipped"},
		"phases after success":   {func(e *evidence) { e.tell(3, 80, entry{Kind: started, Phase: phases[4]}) }, "no phase is skipped"},
		"nothing happened":       {func(e *evidence) { e.Troubles = nil }, "a phase is repeated"},
		"another process died":   {func(e *evidence) { e.Troubles[0].Process = "w3.1" }, "a phase is repeated"},
		"a finished phase again": {func(e *evidence) { e.phase(2, 18.5, phases[0], nil) }, "a phase is repeated"},
		"a finished step again": {func(e *evidence) {
			e.tell(1, 14.9, entry{Kind: step, Phase: phases[1], Step: calls[1]})
			e.Troubles[0].From = at(17)
			e.Troubles[0].Until = at(17)
		}, "a step is repeated"},
		"two at once": {func(e *evidence) {
			e.Troubles = append(e.Troubles[:0], trouble{Kind: killed, Process: "w1.1", From: at(19), Until: at(19)})
		}, "no two live attempts"},
		"overtaken for no reason": {func(e *evidence) { e.tell(1, 14.6, entry{Kind: finished, Phase: phases[1], Refused: true}) }, "no effect of an attempt"},
		"paid twice":              {func(e *evidence) { e.ask(2, 60, phases[2], calls[0]) }, "paid twice"},
		"paid long before a kill": {func(e *evidence) { e.Calls[3].Start, e.Calls[3].End = at(10), at(10.1) }, "paid twice"},
		"a call of nobody": {func(e *evidence) {
			e.Calls = append(e.Calls, modelserver.Call{Hash: "?", Outcome: modelserver.Completed})
		}, "paid twice"},
		"a call was never made": {func(e *evidence) { e.Calls = e.Calls[:len(e.Calls)-1] }, "paid twice"},
		"told twice":            {func(e *evidence) { e.Seen = append(e.Seen, e.Seen[0]) }, "people were told"},
		"not told":              {func(e *evidence) { e.Seen = nil }, "people were told"},
		"a message is held":     {func(e *evidence) { e.Outbox[notify.StateHeld] = 1 }, "people were told"},
		"accepted twice":        {func(e *evidence) { e.Accepted["run-0001"] = 2 }, "accepted once"},
		"a goroutine":           {func(e *evidence) { e.Entries[len(e.Entries)-1].Detail = "goroutine 7" }, "is left"},
		"a worker hangs":        {func(e *evidence) { e.Stops = []string{"w2.1"} }, "is left"},
		"a key for ever":        {func(e *evidence) { e.Eternal = []string{"chaos:x"} }, "is left"},
		"a lock":                {func(e *evidence) { e.Locks = []string{"chaos:x:lock"} }, "is left"},
		"a connection":          {func(e *evidence) { e.Links = []string{"id=7"} }, "is left"},
	} {
		t.Run(name, func(t *testing.T) {
			e := story()
			test.change(&e)
			slices.SortStableFunc(e.Entries, func(a, b entry) int { return a.At.Compare(b.At) })
			p := prove(e)
			if !slices.ContainsFunc(failed(p), func(what string) bool { return strings.Contains(what, test.says) }) {
				t.Errorf("failed claims are %q, want one with %q:\n%v", failed(p), test.says, p)
			}
		})
	}
}

func (e *evidence) drop(match func(entry) bool) { e.Entries = slices.DeleteFunc(e.Entries, match) }

// What only a trouble of the process itself, there and then, explains.
func TestCause(t *testing.T) {
	list := []trouble{
		{Kind: killed, Process: "a", From: at(10), Until: at(10)},
		{Kind: redisOut, From: at(20), Until: at(22)},
		{Kind: slackOut, From: at(0), Until: at(100)},
	}
	for _, test := range []struct {
		process  string
		from, to float64
		want     troubleKind
	}{
		{"a", 9, 11, killed}, {"b", 9, 11, ""}, {"a", 5, 9.9, ""}, {"a", 11.1, 12, ""},
		{"b", 21, 21.5, redisOut}, {"b", 23, 24, redisOut}, {"b", 24.1, 25, ""}, {"b", 15, 19.9, ""},
	} {
		if got := cause(list, test.process, at(test.from), at(test.to), 2*time.Second); got != test.want {
			t.Errorf("cause(%s, %v, %v) = %q, want %q", test.process, test.from, test.to, got, test.want)
		}
	}
}

func TestReport(t *testing.T) {
	e := story()
	svg := timeline(e)
	if n := strings.Count(svg, `<rect class="dead"`); n != 1 {
		t.Errorf("%d attempts are drawn as killed, want 1", n)
	}
	if n := strings.Count(svg, `<rect class="ok"`); n != 1 {
		t.Errorf("%d attempts are drawn as well, want 1", n)
	}
	s := settings{dir: t.TempDir(), seed: 7}
	if err := writeReport(s, e, prove(e)); err != nil {
		t.Fatal(err)
	}
}
