package idempotent_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/redistest"
)

func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		is := func(when string, want bool) {
			t.Helper()
			if got, err := w.guard.Waiting(t.Context(), w.lookup("k"), "default"); got != want || err != nil {
				t.Errorf("%s: Waiting = %v, %v; want %v", when, got, err, want)
			}
		}
		is("no such run", false)
		if err := w.enqueue("k", "{}"); err != nil {
			t.Fatal(err)
		}
		is("in the queue", true)
		inside := make(chan struct{})
		fail := true
		w.serve(w.guard, func(context.Context, *asynq.Task) error {
			<-inside
			if fail {
				return idempotent.RateLimited(errors.New("slow down"), time.Minute)
			}
			return nil
		})
		time.Sleep(5 * time.Second)
		is("a worker has it", false)
		inside <- struct{}{}
		time.Sleep(5 * time.Second)
		is("it waits for its retry", true)
		fail = false
		close(inside)
		time.Sleep(2 * time.Minute)
		is("it has succeeded", false)
		w.mini.Close()
		if _, err := w.guard.Waiting(t.Context(), idempotent.Run{Key: "k"}, "default"); !errors.Is(err, idempotent.ErrUnavailable) {
			t.Errorf("without Redis: %v, want ErrUnavailable", err)
		}
	})
}

// A Redis that hangs holds up no caller longer than its context, whatever the client's
// own timeouts are.
func TestQuestionsAreBounded(t *testing.T) {
	mini, rdb := redistest.Mini(t)
	g := newGuardOn(t, rdb, "p")
	mini.Lock()
	defer mini.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := g.Lookup(ctx, "k"); !errors.Is(err, idempotent.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Lookup: %v, want ErrUnavailable at the deadline", err)
	}
	if _, err := g.Waiting(ctx, idempotent.Run{Key: "k"}, "default"); !errors.Is(err, idempotent.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Waiting: %v, want ErrUnavailable at the deadline", err)
	}
}
