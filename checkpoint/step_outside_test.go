package checkpoint

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/nexuscore/onceq/internal/logtest"
	"github.com/nexuscore/onceq/internal/scope"
)

func TestStepOutsideOfARun(t *testing.T) {
	t.Parallel()
	for range 2 {
		got, err := Step(t.Context(), "a", func(context.Context) (int, error) { return 1, errBoom })
		if got != 1 || err != errBoom {
			t.Errorf("Step = %d, %v; want fn's own", got, err)
		}
	}
}

// What is written first when a handler of three slow calls is wrapped.
func TestAStepUnderALeaseOutsideOfARunIsNoticed(t *testing.T) {
	var l logtest.Log
	was := slog.Default()
	slog.SetDefault(l.Logger())
	t.Cleanup(func() { slog.SetDefault(was) })
	saidOutside = sync.Once{} // it is once per process
	one := func(context.Context) (int, error) { return 1, nil }
	if _, err := Step(t.Context(), "a", one); err != nil || l.Count(slog.LevelWarn) != 0 {
		t.Fatalf("without a lease: %v, log\n%s\nwant none", err, &l)
	}
	rdb, store := mini(t)
	a := begin(t, rdb, "r")
	if _, err := Run(a.ctx, store, []Phase[state]{{Name: "1", Run: func(ctx context.Context, _ *state) error {
		_, err := Step(ctx, "a", one)
		return err
	}}}, state{}); err != nil || l.Count(slog.LevelWarn) != 0 {
		t.Fatalf("in a phase: %v, log\n%s\nwant none", err, &l)
	}
	for range 2 {
		if got, err := Step(a.ctx, "a", one); got != 1 || err != nil {
			t.Errorf("Step = %d, %v", got, err)
		}
	}
	if l.Count(slog.LevelWarn) != 1 || !strings.Contains(l.String(), "step=a run=r") {
		t.Errorf("log\n%s\nwant one WARN line with the step and the run", &l)
	}
}

func TestAStepThatOutlivesItsPhase(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t)
	a := begin(t, rdb, "r")
	started, release, late := make(chan struct{}), make(chan struct{}), make(chan error, 2)
	_, err := Run(a.ctx, store, []Phase[state]{
		{Name: "p", Run: func(ctx context.Context, _ *state) error {
			go func() {
				_, err := Step(ctx, "slow", func(context.Context) (int, error) { close(started); <-release; return 1, nil })
				late <- err
				_, err = Step(ctx, "after", func(context.Context) (int, error) { return 1, nil })
				late <- err
			}()
			<-started
			return nil
		}},
		{Name: "q", Run: func(context.Context, *state) error {
			close(release)
			if err := <-late; err != nil {
				t.Errorf("slow step: %v, want its result and nothing kept", err)
			}
			if err := <-late; !errors.Is(err, ErrInvalid) {
				t.Errorf("step after its phase: %v, want ErrInvalid", err)
			}
			return nil
		}},
	}, state{})
	if err != nil || strings.Contains(keys(t, rdb), "steps") {
		t.Errorf("%v, keys %q; want no steps left", err, keys(t, rdb))
	}
}

func TestScopesSayWhereACallIs(t *testing.T) {
	t.Parallel()
	_, store := mini(t)
	var seen []string
	look := func(ctx context.Context) {
		s, ok := scope.FromContext(ctx)
		if !ok {
			t.Fatal("no scope")
		}
		seen = append(seen, s.Phase+"/"+s.Step)
	}
	_, err := Run(t.Context(), store, []Phase[state]{{Name: "p", Run: func(ctx context.Context, _ *state) error {
		look(ctx)
		_, err := Step(ctx, "s", func(ctx context.Context) (int, error) { look(ctx); return 0, nil })
		look(ctx)
		return err
	}}}, state{})
	if got := strings.Join(seen, " "); err != nil || got != "p/ p/s p/" {
		t.Errorf("scopes %q, %v; want p/ p/s p/", got, err)
	}
}
