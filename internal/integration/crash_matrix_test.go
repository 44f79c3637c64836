package integration

import (
	"context"
	"testing"
	"time"

	"github.com/nexuscore/onceq/internal/modelserver"
	"github.com/nexuscore/onceq/notify/notifytest"
)

// The crash table of docs/guarantees.md, line by line: a worker process is killed
// with SIGKILL at a point, another goes on, and what happened is counted by the
// model server, the database and the channel. In the end asynq finds the dead
// worker's task too, and nothing more may happen.
func TestCrashMatrix(t *testing.T) {
	for _, c := range []struct {
		name string
		at   string // where it is killed
		nth  int
		want want
	}{
		{"before begin", "before begin", 1, want{attempts: 1}},
		{"after begin, before its reply", "after begin", 1, want{attempts: 1, crashes: 1}},
		{"as the first phase begins", "phase context", 1, want{again: []string{"phase context"}, attempts: 2, crashes: 1}},
		{"inside a phase", "phase planning", 1, want{again: []string{"phase planning"}, attempts: 2, crashes: 1}},
		{"inside a phase, before a step", "step s2", 1, want{again: []string{"phase implementation", "step s2"}, attempts: 2, crashes: 1}},
		{"inside a phase, a step done and not saved", "before step", 2, want{again: []string{"phase implementation", "step s2"}, attempts: 2, crashes: 1}},
		{"inside a phase, a step saved", "after step", 2, want{again: []string{"phase implementation"}, attempts: 2, crashes: 1}},
		{"inside a phase, all steps and calls done", "end implementation", 1, want{again: []string{"phase implementation"}, attempts: 2, crashes: 1}},
		{"after a phase, before its save", "before save", 5, want{again: []string{"phase implementation"}, attempts: 2, crashes: 1}},
		{"after a phase's save, before its reply", "after save", 5, want{attempts: 2, crashes: 1}},
		{"after the last save", "after save", 7, want{attempts: 2, crashes: 1}},
		{"before the row says SUCCESS", "before SUCCESS", 1, want{attempts: 2, crashes: 1}},
		{"SUCCESS written, not committed", "inside SUCCESS", 1, want{attempts: 2, crashes: 1}},
		{"after SUCCESS, before finish", "before finish", 1, want{attempts: 1, crashes: 1}},
		{"after finish, before its reply", "after finish", 1, want{attempts: 1}},
		{"after finish, before asynq's ack", "before ack", 1, want{attempts: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, defaults())
			killed := make(chan time.Time, 1)
			w.onNth(c.at, c.nth, func(p point) verb {
				w.kill(p)
				killed <- time.Now()
				return goOn
			})
			w.start()
			w.start()
			w.submit("7")
			select {
			case <-killed:
			case <-time.After(patience):
				t.Fatalf("the point %q was not reached", c.at)
			}
			w.awaitEnd("7")
			w.judge("7", c.want)
			before := w.record("7")
			w.asynqRecovers()
			w.judge("7", c.want)
			if after := w.record("7"); after.Attempt != before.Attempt {
				t.Errorf("%d attempts after asynq's recovery, were %d: the outcome was not seen", after.Attempt, before.Attempt)
			}
		})
	}
}

// The call that is in flight at the kill may have been paid. It is called again;
// those that were answered are not.
func TestKilledDuringAnLLMCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t, defaults())
	w.must(w.model.Fail(1, modelserver.Hang().In("implementation", "main")))
	held, release := w.hold("step s3", 1)
	w.start()
	w.start()
	w.submit("7")
	p := w.receive(held)
	release()
	await := func(what string, ok func(modelserver.Outcome) bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := w.model.Await(ctx, func(c modelserver.Call) bool {
			return c.Task == "main" && c.Phase == "implementation" && ok(c.Outcome)
		})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	await("the call is open", func(o modelserver.Outcome) bool { return o == modelserver.Open })
	w.kill(p)
	await("the model sees that the caller is gone", func(o modelserver.Outcome) bool { return o != modelserver.Open })
	w.awaitEnd("7")
	w.judge("7", want{again: []string{"phase implementation"}, attempts: 2, crashes: 1, cut: 1})
}

// Killed while it posts: before the channel accepted the message, after, and after
// the reply, before it was written down.
func TestKilledWhileNotifying(t *testing.T) {
	t.Run("before it is accepted", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, defaults())
		w.slack.OnCall(func(c notifytest.Call) notifytest.Fault {
			if c.Method != "chat.postMessage" || c.N != 1 {
				return notifytest.None
			}
			w.killSender()
			return notifytest.Drop
		})
		w.notifies()
	})
	t.Run("accepted, no reply", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, defaults())
		w.slack.Script("chat.postMessage", notifytest.AcceptThenHang)
		go func() {
			for len(w.slack.Seen(notifytest.Channel)) == 0 && t.Context().Err() == nil {
				time.Sleep(time.Millisecond) // a person looks
			}
			w.killSender()
		}()
		w.notifies()
	})
	t.Run("before it is written down", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, defaults())
		w.onNth("before sent", 1, w.kill)
		w.notifies()
	})
}

func (w *world) killSender() {
	w.mu.Lock()
	pid := w.sender
	w.mu.Unlock()
	w.kill(point{PID: pid})
}

// notifies: the run's outcome does not depend on it, and the message is there once.
func (w *world) notifies() {
	w.t.Helper()
	w.start()
	w.start()
	w.submit("7")
	w.awaitEnd("7")
	alive := 0
	for _, p := range w.procs {
		select {
		case <-p.ended:
		default:
			alive++
		}
	}
	if alive != 1 {
		w.t.Errorf("%d workers live, want 1: none was killed", alive)
	}
	w.asynqRecovers()
	w.judge("7", want{attempts: w.row("7").Attempts, crashes: w.record("7").Crashes})
}
