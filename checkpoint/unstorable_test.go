package checkpoint

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"strings"
	"testing"

	"github.com/nexuscore/onceq/internal/logtest"
)

type shouter interface{ Shout() string }
type loud struct{ S string }

func (l loud) Shout() string { return l.S }

type odd struct{}

func (o odd) MarshalJSON() ([]byte, error) { return []byte(`{"v":1}`), nil }
func (o *odd) UnmarshalJSON([]byte) error  { return errors.New("cannot") }

type panicky struct{}

func (panicky) MarshalJSON() ([]byte, error) { panic("in MarshalJSON") }

// bad is a state that phases can spoil.
type bad struct {
	Score  float64
	List   []any
	Any    any
	Face   shouter
	Self   *bad
	Text   string
	Odd    *odd
	Panics *panicky
}

// C9
func TestStatesThatCannotBeStored(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what, names string
		spoil       func(*bad)
	}{
		{"NaN", "bad.Score", func(b *bad) { b.Score = math.NaN() }},
		{"Inf", "bad.List[1]", func(b *bad) { b.List = []any{1, math.Inf(-1)} }},
		{"func", "bad.Any", func(b *bad) { b.Any = func() {} }},
		{"channel", "bad.Any[", func(b *bad) { b.Any = map[string]any{"k": make(chan int)} }},
		{"cycle", "(a cycle)", func(b *bad) { b.Self = b }},
		{"interface", "Face", func(b *bad) { b.Face = loud{"x"} }},
		{"not UTF-8", "bad.Text", func(b *bad) { b.Text = "a\xffb" }},
		{"own methods", "cannot", func(b *bad) { b.Odd = &odd{} }},
		{"panic", "in MarshalJSON", func(b *bad) { b.Panics = &panicky{} }},
	} {
		var l logtest.Log
		rdb, store := mini(t, WithLogger(l.Logger()))
		list := []Phase[bad]{
			{Name: "1", Run: func(context.Context, *bad) error { return nil }},
			{Name: "2", Run: func(_ context.Context, b *bad) error { c.spoil(b); return nil }},
			{Name: "3", Run: func(_ context.Context, b *bad) error { *b = bad{Text: "well"}; return nil }},
		}
		a := begin(t, rdb, "r")
		if _, err := Run(a.ctx, store, list[:2], bad{}); err != nil {
			t.Errorf("%s: %v, want the run to go on", c.what, err)
		}
		out := l.String()
		if l.Count(slog.LevelError) != 1 || !strings.Contains(out, strings.ReplaceAll(c.names, `"`, `\"`)) || !strings.Contains(out, "phase=2") {
			t.Errorf("%s: log\n%s\nwant one ERROR line that names %s", c.what, out, c.names)
		}
		if s := store.Stats(); s.Unserialisable != 1 || s.Saves != 1 {
			t.Errorf("%s: %+v, want phase 1 saved and phase 2 counted", c.what, s)
		}
		// The snapshot of phase 1 is still good, and a later phase is saved again.
		b := begin(t, rdb, "r", again)
		if _, err := Run(b.ctx, store, list, bad{}); err != nil || store.Stats().Resumes != 1 || store.Stats().Saves != 2 {
			t.Errorf("%s: next attempt %v, %+v", c.what, err, store.Stats())
		}
		// Strict: once, and no retry.
		_, err := Run(begin(t, rdb, "s").ctx, store, list, bad{}, WithStrict())
		var se *StateError
		if !errors.Is(err, ErrState) || !errors.As(err, &se) || se.Phase != "2" || !se.Permanent() {
			t.Errorf("%s, strict: %v, want a permanent ErrState of phase 2", c.what, err)
		}
	}
}

type panickingCodec struct{ Codec }

func (panickingCodec) Marshal(any) ([]byte, error) { panic(errBoom) }

func TestTheErrorOfAPanicStaysVisible(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t)
	var tr trail
	_, err := Run(begin(t, rdb, "r").ctx, store, tr.phases("1"), state{}, WithStrict(), WithCodec(panickingCodec{JSON}))
	if !errors.Is(err, ErrState) || !errors.Is(err, errBoom) {
		t.Errorf("%v, want ErrState and boom", err)
	}
}

func TestAReplacementCharacterIsNoError(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"\ufffd", `\ufffd`, `a\\ufffd`} {
		b, err := JSON.Marshal(&s)
		var back string
		if err == nil {
			err = JSON.Unmarshal(b, &back)
		}
		if err != nil || back != s {
			t.Errorf("%q came back as %q, %v", s, back, err)
		}
	}
}

func TestDeepStatesAreRefusedNotLooped(t *testing.T) {
	t.Parallel()
	type node struct{ Next *node }
	var n node
	for range 10500 { // encoding/json writes it and cannot read it
		n = node{&node{n.Next}}
	}
	rdb, store := mini(t)
	a := begin(t, rdb, "r")
	if _, err := Run(a.ctx, store, []Phase[node]{{Name: "1", Run: func(context.Context, *node) error { return nil }}}, n); err != nil {
		t.Fatal(err)
	}
	if s := store.Stats(); s.Unserialisable != 1 || s.Saves != 0 {
		t.Errorf("%+v, want the state refused", s)
	}
}

// C12
func TestAStateOverTheLimit(t *testing.T) {
	t.Parallel()
	var l logtest.Log
	rdb, store := mini(t, WithMaxSize(4096), WithLogger(l.Logger()))
	var tr trail
	list := tr.phases("1", "2", "3", "4", "5", "6")
	grown := append([]Phase[state](nil), list...)
	grown[3].Run = func(ctx context.Context, s *state) error {
		s.Notes = map[string]int{strings.Repeat("x", 5000): 1}
		return list[3].Run(ctx, s)
	}
	grown[4].Run = func(ctx context.Context, s *state) error {
		if got := rdb.Get(ctx, ckpt).Val(); !strings.Contains(got, `"last_done":"3"`) {
			t.Errorf("snapshot in phase 5: %.200s, want that of phase 3", got)
		}
		s.Notes = nil
		return list[4].Run(ctx, s)
	}
	var unsaved []Event
	a := begin(t, rdb, "r")
	_, err := Run(a.ctx, store, failing(grown, "6"), state{}, WithObserver(func(e Event) {
		if e.Kind == EventUnsaved {
			unsaved = append(unsaved, e)
		}
	}))
	if !errors.Is(err, errBoom) || tr.String() != "1 2 3 4 5 6" {
		t.Fatalf("ran %q, %v; want the run to go on", &tr, err)
	}
	var se *SizeError
	if len(unsaved) != 1 || !errors.Is(unsaved[0].Err, ErrTooLarge) || !errors.As(unsaved[0].Err, &se) || se.Phase != "4" || se.Limit != 4096 || se.Size < 5000 {
		t.Errorf("told %+v, want a SizeError of phase 4", unsaved)
	}
	if s := store.Stats(); s.Oversize != 1 || s.Saves != 4 || l.Count(slog.LevelError) != 1 {
		t.Errorf("%+v, log %s; want one oversize, four saves, one line", s, &l)
	}
	tr.reset()
	b := begin(t, rdb, "r", again)
	if _, err := Run(b.ctx, store, list, state{}); err != nil || tr.String() != "6" {
		t.Errorf("resumed with %q, %v; want 6", &tr, err)
	}
	if _, err := Run(begin(t, rdb, "s").ctx, store, grown, state{}, WithStrict()); !errors.Is(err, ErrTooLarge) {
		t.Errorf("strict: %v, want ErrTooLarge", err)
	}
}
