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
	if len(kinds) != 2 || kinds[1] != Failed {
		t.Errorf("events %v, want started, failed", kinds)
	}
	if strings.Contains(keys(t, rdb), "ckpt") {
		t.Error("the phase that panicked was saved")
	}
}

func TestWithoutALease(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t)
	var tr trail
	list := tr.phases("1", "2")
	ctx := WithKey(t.Context(), "direct")
	if _, err := Run(ctx, store, failing(list, "2"), state{}); !errors.Is(err, errBoom) {
		t.Fatal(err)
	}
	if keys(t, rdb) != "onceq:{direct}:ckpt" {
		t.Fatalf("keys %q after a failure, want the snapshot", keys(t, rdb))
	}
	tr.reset()
	got, err := Run(ctx, store, list, state{})
	if err != nil || tr.String() != "2" || len(got.Trail) != 2 {
		t.Errorf("resume ran %q, %v, %v; want 2", &tr, got.Trail, err)
	}
	if keys(t, rdb) != "" {
		t.Errorf("keys %q after success, want none", keys(t, rdb))
	}
}

func TestWithoutAKeyNothingIsStored(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t)
	var n redistest.Counter
	rdb.AddHook(&n)
	var tr trail
	got, err := Run(t.Context(), store, tr.phases("1", "2"), state{})
	if err != nil || tr.String() != "1 2" || len(got.Trail) != 2 || n.Commands() != 0 {
		t.Errorf("ran %q, %v, %v, %d commands; want 1 2 and none", &tr, got.Trail, err, n.Commands())
	}
}

func TestARunWithoutALeaseYieldsToOneWith(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t)
	var tr trail
	ctx := WithKey(t.Context(), "r")
	list := tr.phases("1", "2")
	list[0].Run = func(context.Context, *state) error { begin(t, rdb, "r"); return nil }
	if _, err := Run(ctx, store, list, state{}); !errors.Is(err, ErrHeld) || tr.String() != "" {
		t.Errorf("save against a lease: %v, ran %q; want ErrHeld", err, &tr)
	}
	if _, err := Run(ctx, store, tr.phases("1"), state{}); !errors.Is(err, ErrHeld) || tr.String() != "" {
		t.Errorf("start against a lease: %v, ran %q; want ErrHeld", err, &tr)
	}
	if strings.Contains(keys(t, rdb), "ckpt") {
		t.Error("a run without a lease wrote over one with")
	}
}

func TestKillSwitch(t *testing.T) {
	rdb, store := mini(t)
	var tr trail
	a := begin(t, rdb, "r")
	if _, err := Run(a.ctx, store, failing(tr.phases("1", "2"), "2"), state{}); !errors.Is(err, errBoom) {
		t.Fatal(err)
	}
	t.Setenv(EnvSwitch, "0")
	var n redistest.Counter
	rdb.AddHook(&n)
	tr.reset()
	if _, err := Run(a.ctx, store, tr.phases("1", "2"), state{}); err != nil || tr.String() != "1 2" || n.Commands() != 0 {
		t.Errorf("switched off: ran %q, %v, %d commands; want 1 2, nil, 0", &tr, err, n.Commands())
	}
	a.Lose(errBoom)
	if _, err := Run(a.ctx, store, tr.phases("1", "2"), state{}); !errors.Is(err, ErrLeaseLost) {
		t.Errorf("switched off with a lost lease: %v, want ErrLeaseLost", err)
	}
}

func TestInvalidArguments(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t)
	var tr trail
	ok := tr.phases("1")
	for _, c := range []struct {
		what  string
		run   func() error
		wants string
	}{
		{"no phases", func() error { _, err := Run(t.Context(), store, nil, state{}); return err }, "phases: 0 given, 1 to 1000"},
		{"empty name", func() error { _, err := Run(t.Context(), store, tr.phases("a", ""), state{}); return err }, "phases[1]: the name is empty"},
		{"long name", func() error {
			_, err := Run(t.Context(), store, tr.phases(strings.Repeat("x", 257)), state{})
			return err
		}, "257 bytes, at most 256"},
		{"not UTF-8", func() error { _, err := Run(t.Context(), store, tr.phases("\xff"), state{}); return err }, "UTF-8"},
		{"same name", func() error { _, err := Run(t.Context(), store, tr.phases("a", "b", "a"), state{}); return err }, `phases[2]: the name "a" is that of phases[0]`},
		{"nil Run", func() error { _, err := Run(t.Context(), store, []Phase[state]{{Name: "a"}}, state{}); return err }, `phases[0] "a": Run is nil`},
		{"nil store", func() error { _, err := Run(t.Context(), nil, ok, state{}); return err }, "store is nil"},
		{"empty key", func() error { _, err := Run(WithKey(t.Context(), ""), store, ok, state{}); return err }, "WithKey: run key is empty"},
		{"nil option", func() error { _, err := Run(t.Context(), store, ok, state{}, nil); return err }, "option is nil"},
		{"breaker for Run", func() error {
			_, err := Run(t.Context(), store, ok, state{}, WithBreaker(1, time.Second))
			return err
		}, "NewRedisStore"},
		{"nil client", func() error { _, err := NewRedisStore(nil); return err }, "client is nil"},
		{"ttl", func() error { _, err := NewRedisStore(rdb, WithTTL(0)); return err }, "WithTTL: 0s, at least 1ms"},
		{"ttl under 1 ms", func() error { _, err := NewRedisStore(rdb, WithTTL(time.Microsecond)); return err }, "1ms"},
		{"timeout", func() error { _, err := NewRedisStore(rdb, WithTimeout(-1)); return err }, "WithTimeout"},
		{"size", func() error { _, err := NewRedisStore(rdb, WithMaxSize(0)); return err }, "WithMaxSize"},
		{"version", func() error { _, err := NewRedisStore(rdb, WithVersion(0)); return err }, "WithVersion: 0"},
		{"prefix", func() error { _, err := NewRedisStore(rdb, WithPrefix("a:b")); return err }, "WithPrefix"},
		{"logger", func() error { _, err := NewRedisStore(rdb, WithLogger(nil)); return err }, "WithLogger"},
		{"codec", func() error { _, err := NewRedisStore(rdb, WithCodec(nil)); return err }, "WithCodec"},
		{"observer", func() error { _, err := NewRedisStore(rdb, WithObserver(nil)); return err }, "WithObserver"},
		{"migration", func() error { _, err := NewRedisStore(rdb, WithMigration()); return err }, "WithMigration"},
		{"breaker", func() error { _, err := NewRedisStore(rdb, WithBreaker(0, time.Second)); return err }, "WithBreaker"},
		{"aes key", func() error { _, err := NewAESGCM([]byte("short")); return err }, "5 bytes, 16, 24 or 32"},
	} {
		err := c.run()
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.wants) {
			t.Errorf("%s: %v, want ErrInvalid with %q", c.what, err, c.wants)
			continue
		}
		if p, ok := errors.AsType[interface {
			error
			Permanent() bool
		}](err); !ok || !p.Permanent() {
			t.Errorf("%s: not permanent", c.what)
		}
	}
	if tr.String() != "" {
		t.Errorf("phases %q ran", &tr)
	}
}

func TestRunInsideRun(t *testing.T) {
	t.Parallel()
	_, store := mini(t)
	ctx := WithKey(t.Context(), "r")
	var inner error
	_, err := Run(ctx, store, []Phase[state]{{Name: "outer", Run: func(ctx context.Context, s *state) error {
		var tr trail
		_, inner = Run(ctx, store, tr.phases("x"), *s)
		if _, err := Run(WithKey(ctx, "another"), store, tr.phases("x"), *s); err != nil {
			t.Errorf("another run inside: %v, want nil", err)
		}
		return nil
	}}}, state{})
	if err != nil || !errors.Is(inner, ErrInvalid) || !strings.Contains(inner.Error(), `"outer"`) {
		t.Errorf("outer %v, inner %v; want nil and ErrInvalid naming the outer phase", err, inner)
	}
}

func TestPosition(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t)
	var seen []Position
	look := func(ctx context.Context, _ *state) error {
		seen = append(seen, MustFromContext(ctx))
		return nil
	}
	list := []Phase[state]{{Name: "1", Run: look}, {Name: "2", Run: look}}
	a := begin(t, rdb, "r", func(c *lease.Config) { c.Token = 7 })
	if _, err := Run(a.ctx, store, list[:1], state{}); err != nil {
		t.Fatal(err)
	}
	b := begin(t, rdb, "r", again, func(c *lease.Config) { c.Token = 8 })
	if _, err := Run(b.ctx, store, list, state{}); err != nil {
		t.Fatal(err)
	}
	want := []Position{
		{Run: "r", Attempt: 1, Token: 7, Phase: "1", Index: 0, Total: 1},
		{Run: "r", Attempt: 2, Token: 8, Phase: "2", Index: 1, Total: 2, Resumed: true},
	}
	if len(seen) != 2 || seen[0] != want[0] || seen[1] != want[1] {
		t.Errorf("positions %+v, want %+v", seen, want)
	}
	if _, ok := FromContext(t.Context()); ok {
		t.Error("FromContext outside a phase: ok")
	}
	defer func() {
		if r, _ := recover().(string); !strings.Contains(r, "checkpoint.Run") {
			t.Errorf("MustFromContext panics with %q, want the missing function named", r)
		}
	}()
	MustFromContext(t.Context())
}
