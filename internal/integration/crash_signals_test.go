package integration

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/notify"
	"github.com/nexuscore/onceq/orchestrator"
)

// outside is all that a worker could have changed of a run.
type outside struct {
	Row      orchestrator.Run
	History  []orchestrator.HistoryEntry
	Redis    map[string]string
	Messages int
	Told     []notify.Entry
}

func (w *world) outside(runID string) outside {
	w.t.Helper()
	ctx := w.t.Context()
	o := outside{Row: w.row(runID), Redis: map[string]string{}, Messages: len(w.messages(runID))}
	var err error
	o.History, err = w.api.runs.History(ctx, runID)
	w.must(err)
	o.Told, err = w.api.outbox.List(ctx, notify.Filter{RunID: runID})
	w.must(err)
	for _, k := range w.keys("onceq:{" + w.api.runs.Key(runID) + "}:*") {
		if !strings.Contains(k, ":llm") { // an answer that arrives late is kept, whoever asked
			o.Redis[k] = w.rdb.Dump(ctx, k).Val()
		}
	}
	return o
}

// A process that is frozen for longer than its lease keeps its connections, so only
// the TTL tells. Thawed, it goes on where it was and changes nothing.
func TestFrozenWorkerChangesNothing(t *testing.T) {
	for _, c := range []struct {
		name string
		at   string
		nth  int
		want want
	}{
		{"in a phase", "phase planning", 1, want{again: []string{"phase planning"}, attempts: 2, crashes: 1}},
		{"in a step", "step s2", 1, want{again: []string{"phase implementation", "step s2"}, attempts: 2, crashes: 1}},
		{"before a save", "before save", 4, want{again: []string{"phase architecture"}, attempts: 2, crashes: 1}},
		{"before it writes SUCCESS", "after save", 7, want{attempts: 2, crashes: 1}},
		{"before it records the outcome", "before finish", 1, want{attempts: 1, crashes: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, defaults())
			held, thaw := w.hold(c.at, c.nth)
			w.start()
			w.start()
			w.submit("7")
			p := w.receive(held)
			w.signal(p.PID, syscall.SIGSTOP)
			w.awaitEnd("7")
			w.judge("7", c.want)
			before := w.outside("7")
			thaw() // its answer waits for it
			w.signal(p.PID, syscall.SIGCONT)
			w.until("the thawed attempt has ended", func() bool {
				return strings.Contains(w.log.String(), `msg="onceq: attempt ended" run=`+w.api.runs.Key("7")+" attempt=1")
			})
			w.awaitEmptyQueue()
			if d := cmp.Diff(before, w.outside("7")); d != "" {
				t.Errorf("the thawed worker changed something:\n%s", d)
			}
			w.judge("7", c.want)
		})
	}
}

// A deploy: the handler ignores that its server shuts down, and the process ends. It
// costs no retry and no wait for the TTL.
func TestTerminatedWithAHandlerThatIgnoresIt(t *testing.T) {
	t.Parallel()
	set := defaults()
	set.TTL = 20 * time.Second
	w := newWorld(t, set)
	held, _ := w.hold("phase planning", 1)
	w.start()
	w.start()
	w.submit("7")
	w.signal(w.receive(held).PID, syscall.SIGTERM)
	left := time.Now()
	w.awaitEnd("7")
	if d := time.Since(left); d > 15*time.Second {
		t.Errorf("went on after %v, want it not to wait for the TTL of 20s", d)
	}
	// Whether its attempt counts as a crash depends on who is faster, the process' own
	// goodbye or its end; it never uses up a retry.
	w.judge("7", want{again: []string{"phase planning"}, attempts: 2, crashes: w.record("7").Crashes})
	w.asynqRecovers()
	w.retriesUsed("7", "0")
}

func (w *world) retriesUsed(runID, n string) {
	w.t.Helper()
	if got := w.rdb.HGet(w.t.Context(), "onceq:{"+w.api.runs.Key(runID)+"}:run", "retried").Val(); got != n {
		w.t.Errorf("the last delivery has used %s retries, want %s", got, n)
	}
}

// The same in a process that lives on: its handler hangs past the grace, a successor
// takes over with a larger token, and what the hung one does then is refused.
func TestHungHandler(t *testing.T) {
	for name, end := range map[string]func(w *world, p point){
		"after its server was shut down": func(w *world, p point) { w.signal(p.PID, syscall.SIGTERM) },
		"after its timeout":              func(*world, point) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set := defaults()
			set.Grace, set.Lingers = time.Second, true
			if strings.Contains(name, "timeout") {
				set.Timeout = 5 * time.Second
			}
			w := newWorld(t, set)
			held, release := w.hold("phase planning", 1)
			w.start()
			w.start()
			w.submit("7")
			p := w.receive(held)
			first := w.record("7").Token
			end(w, p)
			w.awaitEnd("7")
			if r := w.record("7"); r.Token <= first {
				t.Errorf("token %d after %d, want a larger one", r.Token, first)
			}
			want := want{again: []string{"phase planning"}, attempts: 2, crashes: w.record("7").Crashes}
			w.judge("7", want)
			before := w.outside("7")
			release()
			w.until("the hung attempt has ended", func() bool {
				return strings.Contains(w.log.String(), `msg="onceq: attempt ended" run=`+w.api.runs.Key("7")+" attempt=1")
			})
			w.awaitEmptyQueue()
			if d := cmp.Diff(before, w.outside("7")); d != "" {
				t.Errorf("the hung handler changed something:\n%s", d)
			}
		})
	}
}

// A panic costs a retry and repeats its phase, like an error.
func TestPanic(t *testing.T) {
	t.Parallel()
	w := newWorld(t, defaults())
	w.onNth("phase planning", 1, func(point) verb { return panicNow })
	w.onNth("step s3", 1, func(point) verb { return failNow })
	w.start()
	w.submit("7")
	w.awaitEnd("7")
	w.judge("7", want{again: []string{"phase planning", "phase implementation", "step s3"}, attempts: 3})
	w.awaitEmptyQueue()
	w.retriesUsed("7", "2")
}

// L10: three kills at MaxRetry(3) use up no retry, and the three retries are still there.
func TestThreeKillsUseNoRetry(t *testing.T) {
	t.Parallel()
	w := newWorld(t, defaults())
	w.on("phase planning", func(p point) verb {
		if p.N <= 3 {
			go w.start() // another for the next attempt
			return w.kill(p)
		}
		return goOn
	})
	w.on("phase review", func(p point) verb {
		if p.N <= 3 {
			return failNow
		}
		return goOn
	})
	w.start()
	w.start()
	w.submit("7")
	w.awaitEnd("7")
	if r := w.row("7"); r.Status != orchestrator.StatusSuccess || r.Attempts != 7 {
		t.Fatalf("%s after %d attempts, want SUCCESS after three kills, three failures and one success: %q", r.Status, r.Attempts, w.kinds("7"))
	}
	if p, r := w.of("7", "phase planning"), w.of("7", "phase review"); p != 4 || r != 4 {
		t.Errorf("planning ran %d times, review %d times; want 4 and 4", p, r)
	}
	if c := w.record("7").Crashes; c != 3 {
		t.Errorf("%d crashes, want 3", c)
	}
	w.asynqRecovers()
	if n := len(w.messages("7")); n != 1 {
		t.Errorf("%d messages, want 1", n)
	}
}

// A poison pill: it kills each of its workers and is given up, in the table too, and
// people are told once.
func TestPoisonPill(t *testing.T) {
	t.Parallel()
	set := defaults()
	set.MaxCrashes = 2
	w := newWorld(t, set)
	w.on("phase planning", w.kill)
	w.start()
	w.start()
	w.start()
	w.submit("7")
	w.awaitEnd("7")
	w.asynqRecoversWith(3) // each delivery is refused visibly
	row := w.row("7")
	if row.Status != orchestrator.StatusFailed || !strings.Contains(row.Error, "crashed too often") {
		t.Errorf("row %s %q, want FAILED as a poison pill", row.Status, row.Error)
	}
	if n := len(w.messages("7")); n != 1 {
		t.Errorf("%d messages, want 1", n)
	}
	if n := w.of("7", "phase planning"); n != 2 {
		t.Errorf("planning ran %d times, want 2", n)
	}
}

// L11: a delivery that may not be retried finds its run held. It is neither archived
// nor lost: when the holder dies it is of use.
func TestContendedWithoutRetries(t *testing.T) {
	t.Parallel()
	w := newWorld(t, defaults())
	held, _ := w.hold("phase planning", 1)
	w.start()
	w.start()
	w.submit("7")
	p := w.receive(held)
	info, err := w.insp.GetTaskInfo(queue, w.api.runs.Key("7"))
	w.must(err)
	client := asynq.NewClientFromRedisClient(w.rdb)
	_, err = client.EnqueueContext(t.Context(), asynq.NewTaskWithHeaders(info.Type, info.Payload, info.Headers),
		asynq.TaskID("second"), asynq.MaxRetry(0), asynq.Timeout(time.Hour))
	w.must(err)
	w.until("it was turned away", func() bool {
		_, err := w.insp.GetTaskInfo(queue, "second")
		return err != nil
	})
	if q, err := w.insp.GetQueueInfo(queue); err != nil || q.Archived != 0 || q.Scheduled != 1 {
		t.Errorf("queue %+v, %v: want nothing archived and its successor scheduled", q, err)
	}
	w.kill(p)
	w.awaitEnd("7")
	want := want{again: []string{"phase planning"}, attempts: 2, crashes: 1}
	w.judge("7", want)
	w.asynqRecovers()
	w.judge("7", want)
}

// L17: the handler succeeded and asynq never hears its own acknowledgement.
func TestLostAcknowledgement(t *testing.T) {
	t.Parallel()
	w := newWorld(t, defaults())
	w.on("before ack", func(p point) verb {
		if p.N < 20 { // asynq tries it again every few seconds
			return drop
		}
		return goOn
	})
	w.start()
	w.submit("7")
	w.awaitEnd("7")
	w.until("an ack was lost", func() bool { return w.count("before ack") > 0 })
	w.on("before ack", func(point) verb { return goOn })
	w.asynqRecovers()
	w.judge("7", want{attempts: 1})
	if s := w.record("7").State; s != idempotent.StateSucceeded {
		t.Errorf("state %v", s)
	}
}
