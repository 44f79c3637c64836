package checkpoint

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nexuscore/onceq/internal/lease"
	"github.com/nexuscore/onceq/internal/redistest"
)

func TestRunResumesAfterTheLastSavedPhase(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t)
	var tr trail
	list := tr.phases("a", "b", "c")
	a := begin(t, rdb, "r")
	got, err := Run(a.ctx, store, failing(list, "c"), state{})
	var pe *PhaseError
	if !errors.Is(err, errBoom) || !errors.As(err, &pe) || pe.Phase != "c" || pe.Index != 2 {
		t.Fatalf("first attempt: %v, want boom in phase c", err)
	}
	if strings.Join(got.Trail, " ") != "a b c" {
		t.Errorf("state of a failed run = %v, for inspection a b c", got.Trail)
	}
	tr.reset()
	b := begin(t, rdb, "r", again)
	got, err = Run(b.ctx, store, list, state{})
	if err != nil || tr.String() != "c" || strings.Join(got.Trail, " ") != "a b c" {
		t.Fatalf("second attempt: ran %q, state %v, %v; want c on a b", &tr, got.Trail, err)
	}
	// A worker that died between the last save and finish repeats no phase.
	tr.reset()
	c := begin(t, rdb, "r", again)
	got, err = Run(c.ctx, store, list, state{})
	if err != nil || tr.String() != "" || strings.Join(got.Trail, " ") != "a b c" {
		t.Fatalf("third attempt: ran %q, state %v, %v; want nothing", &tr, got.Trail, err)
	}
	if s := store.Stats(); s.Saves != 3 || s.Resumes != 2 {
		t.Errorf("stats %+v, want 3 saves and 2 resumes", s)
	}
	if !strings.Contains(keys(t, rdb), "onceq:{r}:ckpt") {
		t.Error("Run dropped the snapshot although the success was not recorded")
	}
}

func TestRoundTripBudget(t *testing.T) {
	t.Parallel()
	srv := redistest.Real(t)
	rdb := srv.Client()
	store := newStore(t, rdb)
	var tr trail
	warm := begin(t, rdb, "warm") // scripts are loaded once for each server
	if _, err := Run(warm.ctx, store, tr.phases("w"), state{}); err != nil {
		t.Fatal(err)
	}
	var n redistest.Counter
	rdb.AddHook(&n)
	list := tr.phases("1", "2", "3", "4", "5", "6", "7")
	count := func(what string, want int64, a attempt, list []Phase[state]) {
		t.Helper()
		n.Reset()
		_, _ = Run(a.ctx, store, list, state{})
		if n.Commands() != want || n.RoundTrips() != want {
			t.Errorf("%s: %d commands in %d round trips, want %d", what, n.Commands(), n.RoundTrips(), want)
		}
	}
	count("seven phases", 7, begin(t, rdb, "r"), list)
	count("all done", 0, begin(t, rdb, "r", again), list)
	count("first attempt fails in 5", 4, begin(t, rdb, "s"), failing(list, "5"))
	count("second attempt", 3, begin(t, rdb, "s", again), list)
}

func TestASaveExtendsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Bubble(t)
		store := newStore(t, rdb)
		a := begin(t, rdb, "r")
		_, err := Run(a.ctx, store, []Phase[state]{{Name: "a", Run: func(context.Context, *state) error {
			time.Sleep(20 * time.Second)
			return nil
		}}}, state{})
		if err != nil {
			t.Fatal(err)
		}
		if d := rdb.PTTL(t.Context(), "onceq:{r}:lock").Val(); d != 30*time.Second {
			t.Errorf("lock lives for %v after a save, want 30s", d)
		}
		if d := rdb.PTTL(t.Context(), "onceq:{r}:ckpt").Val(); d != 24*time.Hour {
			t.Errorf("snapshot lives for %v, want 24h", d)
		}
		if d := a.Remaining(); d != 27*time.Second {
			t.Errorf("lease remains for %v after a save, want 27s", d)
		}
		a.End()
	})
}

func TestTheLeaseIsToldOfProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Bubble(t)
		store := newStore(t, rdb, WithTTL(time.Second)) // less than the run may rest: raised
		a := begin(t, rdb, "r", func(c *lease.Config) { c.Rest = time.Hour })
		start := time.Now()
		_, err := Run(a.ctx, store, []Phase[state]{{Name: "a", Run: func(ctx context.Context, _ *state) error {
			time.Sleep(5 * time.Second)
			_, err := Step(ctx, "s", func(context.Context) (int, error) { return 0, nil })
			if got := a.LastProgress().Sub(start); got != 5*time.Second {
				t.Errorf("progress at %v after a step, want 5s", got)
			}
			if d := rdb.PTTL(ctx, "onceq:{r}:lock").Val(); d != 30*time.Second || a.Remaining() != 27*time.Second {
				t.Errorf("after a step the lock lives for %v, the lease for %v; want 30s and 27s", d, a.Remaining())
			}
			time.Sleep(10 * time.Second)
			return err
		}}}, state{})
		if err != nil {
			t.Fatal(err)
		}
		if got := a.LastProgress().Sub(start); got != 15*time.Second {
			t.Errorf("progress at %v after the phase, want 15s", got)
		}
		if d := rdb.PTTL(t.Context(), ckpt).Val(); d != time.Hour+30*time.Second {
			t.Errorf("snapshot lives for %v, want the lease's 30s and the hour the run may rest", d)
		}
		a.End()
	})
}

// C5
func TestCancelBetweenTheEndOfAPhaseAndItsSave(t *testing.T) {
	t.Parallel()
	for _, last := range []string{"2", "3"} {
		rdb, store := mini(t)
		var tr trail
		list := tr.phases("1", "2", "3")
		a := begin(t, rdb, "r")
		why := errors.New("shutdown")
		ctx, cancel := context.WithCancelCause(a.ctx)
		defer cancel(nil)
		for i, p := range list {
			if p.Name == last {
				list[i].Run = func(ctx context.Context, s *state) error { defer cancel(why); return p.Run(ctx, s) }
			}
		}
		_, err := Run(ctx, store, list, state{})
		if !errors.Is(err, context.Canceled) || !errors.Is(err, why) {
			t.Errorf("cancelled at the end of %s: %v, want context.Canceled with its cause", last, err)
		}
		if !strings.HasSuffix(tr.String(), last) {
			t.Errorf("ran %q, want nothing after %s", &tr, last)
		}
		tr.reset()
		b := begin(t, rdb, "r", again)
		got, err := Run(b.ctx, store, tr.phases("1", "2", "3"), state{})
		if want := map[string]string{"2": "3", "3": ""}[last]; err != nil || tr.String() != want {
			t.Errorf("next attempt ran %q, %v; want %q: the save was lost", &tr, err, want)
		}
		if strings.Join(got.Trail, " ") != "1 2 3" {
			t.Errorf("state %v", got.Trail)
		}
	}
}

func TestACancelledContextStartsNothing(t *testing.T) {
	t.Parallel()
	_, store := mini(t)
	var tr trail
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, store, tr.phases("1"), state{}); !errors.Is(err, context.Canceled) || tr.String() != "" {
		t.Errorf("ran %q, %v; want nothing and context.Canceled", &tr, err)
	}
}

// C6
func TestRetrySeesTheStateAfterTheLastSaveExactly(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t)
	release, done := make(chan struct{}), make(chan struct{})
	list := []Phase[state]{
		{Name: "1", Run: func(_ context.Context, s *state) error {
			s.Trail = append(make([]string, 0, 8), "one")
			s.Notes = map[string]int{"one": 1}
			return nil
		}},
		{Name: "2", Run: func(_ context.Context, s *state) error {
			go func() { // outlives its phase
				defer close(done)
				<-release
				s.Notes["late"] = 1
				s.Trail[0] = "late"
			}()
			return nil
		}},
		{Name: "3", Run: func(_ context.Context, s *state) error {
			close(release)
			<-done
			s.Trail = append(s.Trail, "three")
			s.Notes["three"] = 3
			return errBoom
		}},
	}
	a := begin(t, rdb, "r")
	for range 2 { // in a new attempt, and in the same one again
		_, err := Run(a.ctx, store, list, state{})
		if !errors.Is(err, errBoom) {
			t.Fatal(err)
		}
		list[2].Run = func(_ context.Context, s *state) error {
			if len(s.Trail) != 1 || s.Trail[0] != "one" || len(s.Notes) != 1 || s.Notes["one"] != 1 {
				t.Errorf("phase 3 starts on %+v, want what phase 2 left", *s)
			}
			s.Notes["three"] = 3
			s.Trail = append(s.Trail, "three")
			return errBoom
		}
	}
	b := begin(t, rdb, "r", again)
	if _, err := Run(b.ctx, store, list, state{}); !errors.Is(err, errBoom) {
		t.Fatal(err)
	}
}

func TestPanicsPassThrough(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t)
	var kinds []EventKind
	a := begin(t, rdb, "r")
	func() {
		defer func() {
			if r := recover(); r != "boom" {
				t.Errorf("recovered %v, want boom", r)
			}
		}()
		_, _ = Run(a.ctx, store, []Phase[state]{{Name: "1", Run: func(context.Context, *state) error { panic("boom") }}},
			state{}, WithObserver(func(e Event) { kinds = append(kinds, e.Kind) }))
	}()
	if len(kinds) != 2 || kinds[1] != EventFailed {
		t.Errorf("events %v, want started, failed", kinds)
	}
	if strings.Contains(keys(t, rdb), "ckpt") {
		t.Error("the phase that panicked was saved")
	}
}
