package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/nexuscore/onceq/internal/logtest"
)

// fickleSealer is a sealer whose key service may be away.
type fickleSealer struct {
	Sealer
	seal error
	open func() error // nil for none
}

func (f *fickleSealer) Seal(plain, bound []byte) ([]byte, error) {
	if f.seal != nil {
		return nil, f.seal
	}
	return f.Sealer.Seal(plain, bound)
}

func (f *fickleSealer) Open(sealed, bound []byte) ([]byte, error) {
	if f.open != nil {
		if err := f.open(); err != nil {
			return nil, err
		}
	}
	return f.Sealer.Open(sealed, bound)
}

// What a sealer cannot do says nothing of the state: it is trouble, also in strict mode.
func TestASealerThatFailsPassesThrough(t *testing.T) {
	t.Parallel()
	var l logtest.Log
	s := &fickleSealer{Sealer: sealer(t, "a")}
	rdb, store := mini(t, WithSealer(s), WithStrict(), WithLogger(l.Logger()))
	var tr trail
	list := tr.phases("1", "2", "3", "4")
	list[1].Run = func(ctx context.Context, _ *state) error {
		s.seal = errBoom
		got, err := Step(ctx, "s", func(context.Context) (int, error) { return 7, nil })
		if got != 7 {
			t.Errorf("step = %d", got)
		}
		return err
	}
	list[3].Run = func(context.Context, *state) error { s.seal = nil; return nil }
	var unsaved []string
	observe := WithObserver(func(e Event) {
		if e.Kind == EventUnsaved && errors.Is(e.Err, errBoom) {
			unsaved = append(unsaved, e.Phase)
		}
	})
	a := begin(t, rdb, "r")
	if _, err := Run(a.ctx, store, list, state{}, observe); err != nil || tr.String() != "1 3" {
		t.Errorf("ran %q, %v; want the run to go on", &tr, err)
	}
	if s := store.Stats(); s.Saves != 2 || s.PassThroughs != 3 || s.Unserialisable != 0 {
		t.Errorf("%+v, want phases 1 and 4 saved, a step and two phases passed through", s)
	}
	if got := strings.Join(unsaved, " "); got != "2 3" {
		t.Errorf("unsaved phases %q, want 2 3", got)
	}
	if out := l.String(); l.Count(slog.LevelWarn, slog.LevelError) != 1 || strings.Count(out, "sealer works again") != 1 {
		t.Errorf("want one line for each transition:\n%s", out)
	}
}

// "Cannot tell" is not "no": what is there is kept for an attempt that can open it.
func TestASealerThatCannotTellEndsTheAttempt(t *testing.T) {
	t.Parallel()
	s := &fickleSealer{Sealer: sealer(t, "a")}
	rdb, store := mini(t, WithSealer(s))
	var tr trail
	list := func(fail int) []Phase[state] {
		return append(tr.phases("1"), Phase[state]{Name: "p", Run: tr.steps(2, fail)})
	}
	if _, err := Run(begin(t, rdb, "r").ctx, store, list(1), state{}); !errors.Is(err, errBoom) {
		t.Fatal(err)
	}
	before := rdb.Get(t.Context(), ckpt).Val()
	opens := 0
	for what, able := range map[string]int{"the snapshot": 0, "a step's result": 1} {
		tr.reset()
		opens = 0
		s.open = func() error {
			if opens++; opens > able {
				return fmt.Errorf("key service: %w", ErrUnavailable)
			}
			return nil
		}
		_, err := Run(begin(t, rdb, "r", again).ctx, store, list(-1), state{}, WithStrict())
		var final interface{ Permanent() bool }
		if !errors.Is(err, ErrUnavailable) || errors.As(err, &final) || tr.String() != "" {
			t.Errorf("%s: ran %q, %v; want nothing run and ErrUnavailable, which is retried", what, &tr, err)
		}
		if got := rdb.Get(t.Context(), ckpt).Val(); got != before {
			t.Errorf("%s: the snapshot was changed", what)
		}
	}
	s.open = nil
	if _, err := Run(begin(t, rdb, "r", again).ctx, store, list(-1), state{}); err != nil || tr.String() != "s1" {
		t.Errorf("when it can be opened: ran %q, %v; want the step that failed", &tr, err)
	}
	if d := store.Stats().Discards; len(d) != 0 {
		t.Errorf("discards %v, want none", d)
	}
}
