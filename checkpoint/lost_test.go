package checkpoint

import (
	"context"
	"errors"
	"testing"

	"github.com/nexuscore/onceq/internal/lease"
	"github.com/nexuscore/onceq/internal/redistest"
)

// C1, C2: A hangs in phase 3; B resumes and goes on; then A comes back.
func TestOvertakenAttemptChangesNothing(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t)
	var tr trail
	list := tr.phases("1", "2", "3", "4")
	a := begin(t, rdb, "r")
	hung, thaw := make(chan struct{}), make(chan struct{})
	hanging := append([]Phase[state](nil), list...)
	hanging[2].Run = func(_ context.Context, s *state) error { // ignores its context
		close(hung)
		<-thaw
		s.Trail = append(s.Trail, "stale")
		return nil
	}
	errs := make(chan error, 1)
	go func() { _, err := Run(a.ctx, store, hanging, state{}); errs <- err }()
	<-hung
	b := begin(t, rdb, "r", again)
	if _, err := Run(b.ctx, store, failing(list, "4"), state{}); !errors.Is(err, errBoom) {
		t.Fatal(err)
	}
	before := rdb.Get(t.Context(), "onceq:{r}:ckpt").Val()
	tr.reset()
	close(thaw)
	err := <-errs
	if !errors.Is(err, ErrLeaseLost) || !errors.Is(err, lease.ErrLost) {
		t.Errorf("A: %v, want ErrLeaseLost", err)
	}
	if tr.String() != "" {
		t.Errorf("A went on with phase %q", &tr)
	}
	if a.Err() == nil || !errors.Is(context.Cause(a.ctx), ErrLeaseLost) {
		t.Errorf("A's lease: %v, context %v; want both to know", a.Err(), context.Cause(a.ctx))
	}
	if after := rdb.Get(t.Context(), "onceq:{r}:ckpt").Val(); after != before {
		t.Error("A changed B's snapshot")
	}
	if b.Err() != nil {
		t.Errorf("B lost its lease: %v", b.Err())
	}
	if s := store.Stats(); s.Lost != 1 {
		t.Errorf("%d lost counted, want 1", s.Lost)
	}
}

// C2 at the end of a run: A completes when B holds the run.
func TestLateCompletionLeavesTheSnapshot(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t)
	var tr trail
	a := begin(t, rdb, "r")
	list := tr.phases("1", "2")
	list[1].Run = func(context.Context, *state) error { // B takes over, saves 1, 2 is running
		b := begin(t, rdb, "r", again)
		_, err := Run(b.ctx, store, failing(tr.phases("1", "2"), "2"), state{})
		if !errors.Is(err, errBoom) {
			t.Error(err)
		}
		return nil
	}
	if _, err := Run(a.ctx, store, list, state{}); !errors.Is(err, ErrLeaseLost) {
		t.Fatalf("A: %v, want ErrLeaseLost", err)
	}
	c := begin(t, rdb, "r", again)
	tr.reset()
	if _, err := Run(c.ctx, store, tr.phases("1", "2"), state{}); err != nil || tr.String() != "2" {
		t.Errorf("C ran %q, %v; want phase 2 only: B's snapshot was there", &tr, err)
	}
}

func TestAnExpiredLeaseIsLostNotRecreated(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t)
	a := begin(t, rdb, "r")
	var tr trail
	list := tr.phases("1", "2")
	list[0].Run = func(ctx context.Context, _ *state) error { return rdb.Del(ctx, "onceq:{r}:lock").Err() }
	if _, err := Run(a.ctx, store, list, state{}); !errors.Is(err, ErrLeaseLost) {
		t.Errorf("err = %v, want ErrLeaseLost", err)
	}
	if got := keys(t, rdb); got != "" {
		t.Errorf("keys %q, want none", got)
	}
}

func TestALostLeaseSavesNothing(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t)
	var n redistest.Counter
	a := begin(t, rdb, "r")
	rdb.AddHook(&n)
	var tr trail
	list := tr.phases("1", "2")
	list[0].Run = func(context.Context, *state) error { a.Lose(errors.New("evicted")); return nil }
	if _, err := Run(a.ctx, store, list, state{}); !errors.Is(err, ErrLeaseLost) {
		t.Errorf("err = %v, want ErrLeaseLost", err)
	}
	if n.Commands() != 0 || tr.String() != "" {
		t.Errorf("%d commands, phases %q; want none", n.Commands(), &tr)
	}
	if _, err := Run(a.ctx, store, list, state{}); !errors.Is(err, ErrLeaseLost) {
		t.Errorf("Run on a lost lease: %v, want ErrLeaseLost", err)
	}
	// What the phase said of it stays visible.
	b := begin(t, rdb, "r")
	list[0].Run = func(context.Context, *state) error { b.Lose(errors.New("evicted")); return errBoom }
	if _, err := Run(b.ctx, store, list, state{}); !errors.Is(err, ErrLeaseLost) || !errors.Is(err, errBoom) {
		t.Errorf("err = %v, want ErrLeaseLost and boom", err)
	}
}
