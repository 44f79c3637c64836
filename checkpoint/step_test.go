package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/nexuscore/onceq/internal/lease"
	"github.com/nexuscore/onceq/internal/redistest"
)

// steps returns a phase that calls n steps, and fails after fail of them.
func (tr *trail) steps(n, fail int) func(context.Context, *state) error {
	return func(ctx context.Context, s *state) error {
		for i := range n {
			if i == fail {
				return errBoom
			}
			name := fmt.Sprint("s", i)
			got, err := Step(ctx, name, func(context.Context) (string, error) {
				tr.add(name)
				return "result of " + name, nil
			})
			if err != nil {
				return err
			}
			if got != "result of "+name {
				return fmt.Errorf("step %s = %q", name, got)
			}
			s.Trail = append(s.Trail, name)
		}
		return nil
	}
}

func TestARepeatedPhaseRepeatsNoFinishedStep(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t)
	var tr trail
	before := tr.phases("before")[0]
	a := begin(t, rdb, "r")
	if _, err := Run(a.ctx, store, []Phase[state]{before, {Name: "p", Run: tr.steps(5, 3)}}, state{}); !errors.Is(err, errBoom) {
		t.Fatal(err)
	}
	if got := strings.Join(a.StepKeys(), " "); got != "onceq:{r}:steps:p" {
		t.Errorf("finish would drop %q, want the steps of p", got)
	}
	if d := rdb.PTTL(t.Context(), "onceq:{r}:steps:p").Val(); d <= 0 {
		t.Errorf("steps live for %v, want a TTL", d)
	}
	tr.reset()
	b := begin(t, rdb, "r", again)
	got, err := Run(b.ctx, store, []Phase[state]{before, {Name: "p", Run: tr.steps(5, -1)}}, state{})
	if err != nil || tr.String() != "s3 s4" || len(got.Trail) != 6 {
		t.Errorf("second attempt ran %q, state %v, %v; want s3 s4", &tr, got.Trail, err)
	}
	if k := keys(t, rdb); strings.Contains(k, "steps") || len(b.StepKeys()) != 0 {
		t.Errorf("keys %q, held %v; want the steps dropped with the save", k, b.StepKeys())
	}
	if s := store.Stats(); s.Steps != 5 || s.Replays != 3 {
		t.Errorf("%+v, want 5 steps kept and 3 replayed", s)
	}
}

func TestStepBudget(t *testing.T) {
	t.Parallel()
	rdb := redistest.Real(t).Client()
	store := newStore(t, rdb)
	var tr trail
	list := func(fail int) []Phase[state] {
		return append(tr.phases("before"), Phase[state]{Name: "p", Run: tr.steps(1000, fail)})
	}
	warm := begin(t, rdb, "warm")
	_, _ = Run(warm.ctx, store, append(list(1), tr.phases("x")...), state{})
	warm = begin(t, rdb, "warm", again)
	_, _ = Run(warm.ctx, store, append(list(1), tr.phases("x")...), state{})
	var n redistest.Counter
	rdb.AddHook(&n)
	a := begin(t, rdb, "r")
	n.Reset()
	if _, err := Run(a.ctx, store, list(900), state{}); !errors.Is(err, errBoom) {
		t.Fatal(err)
	}
	if n.Commands() != 1+900 {
		t.Errorf("first attempt: %d commands, want 1 save and 900 steps", n.Commands())
	}
	b := begin(t, rdb, "r", again)
	n.Reset()
	if _, err := Run(b.ctx, store, list(-1), state{}); err != nil {
		t.Fatal(err)
	}
	if n.Commands() != 1+100+1 || n.RoundTrips() != 1+100+1 {
		t.Errorf("second attempt: %d commands, want 1 load, 100 steps, 1 save", n.Commands())
	}
}

// C15
func TestStepNames(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t)
	a := begin(t, rdb, "r")
	one := func(context.Context) (int, error) { return 1, nil }
	_, err := Run(a.ctx, store, []Phase[state]{
		{Name: "p", Run: func(ctx context.Context, _ *state) error {
			if _, err := Step(ctx, "a", one); err != nil {
				t.Error(err)
			}
			ran := false
			_, err := Step(ctx, "a", func(context.Context) (int, error) { ran = true; return 2, nil })
			var d *DuplicateStepError
			if !errors.As(err, &d) || d.Phase != "p" || d.Step != "a" || !d.Permanent() || ran {
				t.Errorf("second use: %v, ran %v; want a DuplicateStepError", err, ran)
			}
			for _, name := range []string{"", strings.Repeat("x", 257), "\xff"} {
				if _, err := Step(ctx, name, one); !errors.Is(err, ErrInvalid) {
					t.Errorf("name %.5q: %v, want ErrInvalid", name, err)
				}
			}
			if _, err := Step[int](ctx, "nil", nil); !errors.Is(err, ErrInvalid) {
				t.Errorf("nil function: %v, want ErrInvalid", err)
			}
			for i := range 2 { // a failure is not kept, the name is free again
				got, err := Step(ctx, "again", func(context.Context) (int, error) {
					if i == 0 {
						return 7, errBoom
					}
					return 8, nil
				})
				if i == 0 && err != errBoom || i == 1 && (err != nil || got != 8) {
					t.Errorf("try %d: %v, %v", i, got, err)
				}
			}
			func() {
				defer func() { _ = recover() }()
				_, _ = Step(ctx, "panics", func(context.Context) (int, error) { panic("x") })
			}()
			if _, err := Step(ctx, "panics", one); err != nil {
				t.Errorf("after a panic: %v, want the name free", err)
			}
			return nil
		}},
		{Name: "q", Run: func(ctx context.Context, _ *state) error {
			_, err := Step(ctx, "a", one) // another phase's name is no duplicate
			return err
		}},
	}, state{})
	if err != nil {
		t.Error(err)
	}
}

func TestStepsInGoroutinesAndInMapOrder(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t)
	var tr trail
	work := map[string]int{}
	for i := range 50 {
		work[fmt.Sprint("k", i)] = i
	}
	phase := func(fail bool) []Phase[state] {
		return []Phase[state]{{Name: "p", Run: func(ctx context.Context, s *state) error {
			var wg sync.WaitGroup
			var mu sync.Mutex
			s.Notes = map[string]int{}
			for name, v := range work {
				wg.Go(func() {
					got, err := Step(ctx, name, func(context.Context) (int, error) {
						if fail && v%2 == 1 {
							return 0, errBoom
						}
						tr.add(name)
						return v, nil
					})
					if err == nil && got != v {
						t.Errorf("%s = %d, want %d", name, got, v)
					}
					mu.Lock()
					s.Notes[name] = got
					mu.Unlock()
				})
			}
			wg.Wait()
			if fail {
				return errBoom
			}
			return nil
		}}}
	}
	a := begin(t, rdb, "r")
	_, _ = Run(a.ctx, store, phase(true), state{})
	tr.reset()
	b := begin(t, rdb, "r", again)
	got, err := Run(b.ctx, store, phase(false), state{})
	if err != nil || len(got.Notes) != 50 || len(strings.Fields(tr.String())) != 25 {
		t.Errorf("%v, %d results, %d steps ran; want 50 and the 25 that failed", err, len(got.Notes), len(strings.Fields(tr.String())))
	}
}

// The steps of a snapshot that is discarded were computed from its state.
func TestStepsOfADiscardedSnapshotAreNotUsed(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		mod  func(*lease.Config)
		opts []Option
		harm bool
	}{
		"corrupt":          {harm: true},
		"newer version":    {opts: []Option{WithVersion(2)}},
		"rerun":            {mod: func(c *lease.Config) { c.Stamp = "from scratch" }},
		"another payload":  {mod: func(c *lease.Config) { c.Fingerprint = "g" }},
		"snapshot is gone": {mod: func(c *lease.Config) { c.Snapshot = nil }},
	} {
		rdb, store := mini(t)
		var tr trail
		list := func(fail int) []Phase[state] {
			return append(tr.phases("1"), Phase[state]{Name: "p", Run: tr.steps(3, fail)})
		}
		a := begin(t, rdb, "r")
		_, _ = Run(a.ctx, store, list(2), state{})
		if c.harm {
			rdb.Set(t.Context(), ckpt, "\x00{}", 0)
		}
		tr.reset()
		mod := c.mod
		if mod == nil {
			mod = func(*lease.Config) {}
		}
		b := begin(t, rdb, "r", again, mod)
		if _, err := Run(b.ctx, store, list(-1), state{}, c.opts...); err != nil || tr.String() != "1 s0 s1 s2" {
			t.Errorf("%s: ran %q, %v; want all of it", what, &tr, err)
		}
	}
}

func TestStepsOfTheFirstPhaseOutliveADiscard(t *testing.T) {
	t.Parallel()
	// The snapshot is discarded in each attempt until a phase is saved: what the
	// first phase kept meanwhile is good.
	rdb, store := mini(t)
	rdb.Set(t.Context(), ckpt, "rubbish", 0)
	var tr trail
	a := begin(t, rdb, "r", again)
	_, _ = Run(a.ctx, store, []Phase[state]{{Name: "p", Run: tr.steps(3, 2)}}, state{})
	b := begin(t, rdb, "r", again)
	_, err := Run(b.ctx, store, []Phase[state]{{Name: "p", Run: tr.steps(3, -1)}}, state{})
	if err != nil || tr.String() != "s0 s1 s2" {
		t.Errorf("ran %q, %v; want each step once", &tr, err)
	}
}

func TestStepsOfAnotherInputAreNotUsed(t *testing.T) {
	t.Parallel()
	// There is no snapshot yet whose stamp could tell.
	for what, mod := range map[string]func(*lease.Config){
		"stamp":       func(c *lease.Config) { c.Stamp = "from scratch" },
		"fingerprint": func(c *lease.Config) { c.Fingerprint = "another" },
	} {
		rdb, store := mini(t)
		var tr trail
		a := begin(t, rdb, "r")
		_, _ = Run(a.ctx, store, []Phase[state]{{Name: "p", Run: tr.steps(3, 2)}}, state{})
		tr.reset()
		b := begin(t, rdb, "r", again, mod)
		_, err := Run(b.ctx, store, []Phase[state]{{Name: "p", Run: tr.steps(3, -1)}}, state{})
		if err != nil || tr.String() != "s0 s1 s2" {
			t.Errorf("another %s: ran %q, %v; want all steps", what, &tr, err)
		}
	}
}

func TestStepsSurviveInTheSameAttempt(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t)
	var tr trail
	a := begin(t, rdb, "r")
	_, _ = Run(a.ctx, store, []Phase[state]{{Name: "p", Run: tr.steps(3, 2)}}, state{})
	_, err := Run(a.ctx, store, []Phase[state]{{Name: "p", Run: tr.steps(3, -1)}}, state{})
	if err != nil || tr.String() != "s0 s1 s2" {
		t.Errorf("ran %q, %v; want each step once", &tr, err)
	}
}

func TestAStepWhoseTypeChangedRunsAgain(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t)
	a := begin(t, rdb, "r")
	_, _ = Run(a.ctx, store, []Phase[state]{{Name: "p", Run: func(ctx context.Context, _ *state) error {
		_, _ = Step(ctx, "a", func(context.Context) (string, error) { return "aGk=", nil })
		return errBoom
	}}}, state{})
	b := begin(t, rdb, "r", again)
	var got []byte
	_, err := Run(b.ctx, store, []Phase[state]{{Name: "p", Run: func(ctx context.Context, _ *state) (err error) {
		got, err = Step(ctx, "a", func(context.Context) ([]byte, error) { return []byte("new"), nil })
		return err
	}}}, state{})
	if err != nil || string(got) != "new" || store.Stats().Discards[ReasonUndecodable] != 1 {
		t.Errorf("got %q, %v, %v; want the step to run again", got, err, store.Stats().Discards)
	}
}

func TestAStepOfALostLease(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t)
	var tr trail
	a := begin(t, rdb, "r")
	_, err := Run(a.ctx, store, []Phase[state]{{Name: "p", Run: func(ctx context.Context, _ *state) error {
		got, err := Step(ctx, "a", func(context.Context) (int, error) {
			begin(t, rdb, "r", again)
			return 7, nil
		})
		if got != 7 || !errors.Is(err, ErrLeaseLost) {
			t.Errorf("step = %d, %v; want 7 and ErrLeaseLost", got, err)
		}
		_, err = Step(ctx, "b", func(context.Context) (int, error) { tr.add("b"); return 0, nil })
		if !errors.Is(err, ErrLeaseLost) || tr.String() != "" {
			t.Errorf("next step: %v, ran %q; want it refused", err, &tr)
		}
		return nil
	}}}, state{})
	if !errors.Is(err, ErrLeaseLost) {
		t.Errorf("err = %v, want ErrLeaseLost", err)
	}
	if k := keys(t, rdb); k != "onceq:{r}:lock" {
		t.Errorf("keys %q, want the other's lock alone", k)
	}
}

func TestStepsThatCannotBeStored(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t, WithMaxSize(1000))
	list := []Phase[state]{{Name: "p", Run: func(ctx context.Context, _ *state) error {
		f, err := Step(ctx, "func", func(context.Context) (func() int, error) { return func() int { return 3 }, nil })
		if err != nil {
			return err
		}
		s, err := Step(ctx, "large", func(context.Context) (string, error) { return strings.Repeat("x", 2000), nil })
		if err == nil && (f() != 3 || len(s) != 2000) {
			t.Error("the result did not come back")
		}
		return err
	}}}
	if _, err := Run(begin(t, rdb, "r").ctx, store, list, state{}); err != nil {
		t.Error(err)
	}
	if s := store.Stats(); s.Unserialisable != 1 || s.Oversize != 1 || s.Steps != 0 {
		t.Errorf("%+v, want one of each counted", s)
	}
	var se *StateError
	if _, err := Run(begin(t, rdb, "s").ctx, store, list, state{}, WithStrict()); !errors.As(err, &se) || se.Step != "func" {
		t.Errorf("strict: %v, want a StateError of the step", err)
	}
}
