package integration

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nexuscore/onceq/internal/faultproxy"
)

func (w *world) proxy() *faultproxy.Proxy {
	w.t.Helper()
	p, err := faultproxy.New(w.srv.Addr)
	w.must(err)
	w.t.Cleanup(p.Close)
	return p
}

func through(p *faultproxy.Proxy) func(*settings) {
	return func(s *settings) { s.Redis = []string{p.Addr} }
}

// What the link of the worker does wrong while a run is in its third phase.
func TestLinkFaults(t *testing.T) {
	const short, long = time.Second, 8 * time.Second
	nothing := want{attempts: 1}
	thePhase := want{again: []string{"phase planning"}, attempts: 2, crashes: 1}
	for _, c := range []struct {
		name    string
		fault   func(p *faultproxy.Proxy)
		another bool // there is a worker with a good link
		want    want
	}{
		{"slow", func(p *faultproxy.Proxy) { p.Delay(150 * time.Millisecond) }, false, nothing},
		{"cut below the TTL", func(p *faultproxy.Proxy) { p.Down(); time.Sleep(short); p.Heal() }, false, nothing},
		{"cut beyond the TTL", func(p *faultproxy.Proxy) { p.Down(); time.Sleep(long); p.Heal() }, false, thePhase},
		{"cut beyond the TTL, another worker is well", func(p *faultproxy.Proxy) { p.Down(); time.Sleep(long); p.Heal() }, true, thePhase},
		{"half open below the TTL", func(p *faultproxy.Proxy) { p.Silence(); time.Sleep(short); p.Heal() }, false, nothing},
		{"half open beyond the TTL", func(p *faultproxy.Proxy) { p.Silence(); time.Sleep(long); p.Heal() }, false, thePhase},
		{"half open beyond the TTL, another worker is well", func(p *faultproxy.Proxy) { p.Silence(); time.Sleep(long); p.Heal() }, true, thePhase},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, defaults())
			p := w.proxy()
			held, release := w.hold("phase planning", 1)
			w.inside(through(p))
			w.submit("7")
			w.receive(held)
			if c.another {
				w.inside()
			}
			c.fault(p)
			if c.another {
				w.awaitEnd("7") // while the first attempt still believes in itself
			}
			release()
			w.awaitEnd("7")
			w.judge("7", c.want)
			p.Heal()
			w.asynqRecovers()
			w.judge("7", c.want)
			w.retriesUsed("7", "0")
		})
	}
}

// faulty decides by run: run "lose5" loses the reply of its fifth command.
type faulty struct {
	mu   sync.Mutex
	sent map[string]int // commands of each run
	done map[string]bool
}

func (f *faulty) judge(args []string) faultproxy.Verdict {
	if len(args) < 4 || !strings.HasPrefix(strings.ToLower(args[0]), "eval") {
		return faultproxy.Pass
	}
	_, tag, _ := strings.Cut(args[3], "{")
	tag, rest, _ := strings.Cut(tag, "}")
	run, ours := strings.CutPrefix(tag, "orchestrator-run-")
	if !ours || rest != ":lock" { // of a lease's holder
		return faultproxy.Pass
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent[run]++
	if how, nth := strings.TrimRight(run, "0123456789"), f.sent[run]; run != fmt.Sprint(how, nth) {
		return faultproxy.Pass
	}
	f.done[run] = true
	if strings.HasPrefix(run, "cut") {
		return faultproxy.Cut
	}
	return faultproxy.LoseReply
}

// For each command of a run of seven phases: it is not sent, or its reply is lost
// after it took effect; with go-redis' own retries and without. No phase and no LLM
// call is repeated, and there is one outcome.
func TestEachCommandIsLost(t *testing.T) {
	for _, how := range []string{"cut", "lose"} {
		for _, noRetries := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, client retries %v", how, !noRetries), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, defaults())
				p := w.proxy()
				f := &faulty{sent: map[string]int{}, done: map[string]bool{}}
				p.Judge(f.judge)
				w.inside(through(p), func(s *settings) { s.NoRetries, s.Concurrency = noRetries, 1 })
				for n := 1; n <= commandsOfARun; n++ { // one after the other: no two share a pipeline
					w.submit(fmt.Sprint(how, n))
				}
				for n := 1; n <= commandsOfARun; n++ {
					run := fmt.Sprint(how, n)
					w.awaitEnd(run)
					if a := w.row(run).Attempts; a != 1 {
						t.Errorf("%s: %d attempts in the table, want 1; history %q", run, a, w.kinds(run))
					}
					if c := w.record(run).Crashes; c != 0 {
						t.Errorf("%s: counted as %d crashes", run, c)
					}
					for _, ph := range phases {
						if got := w.of(run, "phase "+ph); got != 1 {
							t.Errorf("%s: phase %s ran %d times", run, ph, got)
						}
					}
					if m := len(w.messages(run)); m != 1 {
						t.Errorf("%s: %d messages", run, m)
					}
				}
				f.mu.Lock()
				if len(f.done) != commandsOfARun {
					t.Errorf("%d of %d faults were met: %v", len(f.done), commandsOfARun, f.done)
				}
				f.mu.Unlock()
				if s := w.model.Summary(); s.Repeated != 0 {
					t.Errorf("%d LLM calls were paid again", s.Repeated)
				}
				w.asynqRecovers()
				w.checkKeys()
			})
		}
	}
}

// commandsOfARun: begin, the steps of one phase, a save for each phase, finish.
const commandsOfARun = 1 + stepCount + 7 + 1
