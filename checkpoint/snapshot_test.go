package checkpoint

import (
	"bytes"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/nexuscore/onceq/internal/lease"
)

const ckpt = "onceq:{r}:ckpt"

// stored runs phases 1 and 2, fails in 3, and returns the snapshot.
func stored(t *testing.T, opts ...Option) ([]byte, func(b []byte, more ...Option) (string, state, Stats)) {
	t.Helper()
	rdb, store := mini(t, opts...)
	var tr trail
	list := tr.phases("1", "2", "3")
	a := begin(t, rdb, "r")
	if _, err := Run(a.ctx, store, failing(list, "3"), state{}); !errors.Is(err, errBoom) {
		t.Fatal(err)
	}
	b, err := rdb.Get(t.Context(), ckpt).Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return b, func(b []byte, more ...Option) (string, state, Stats) {
		t.Helper()
		if err := rdb.Set(t.Context(), ckpt, b, 0).Err(); err != nil {
			t.Fatal(err)
		}
		store := newStore(t, rdb, opts...)
		tr.reset()
		c := begin(t, rdb, "r", again)
		got, err := Run(c.ctx, store, list, state{}, more...)
		if err != nil {
			t.Fatal(err)
		}
		c.End()
		return tr.String(), got, store.Stats()
	}
}

// C7
func TestOddSnapshotsAreDiscardedWhole(t *testing.T) {
	t.Parallel()
	good, resume := stored(t)
	if ran, _, s := resume(good); ran != "3" || s.Resumes != 1 {
		t.Fatalf("an untouched snapshot: ran %q, %+v; want 3", ran, s)
	}
	flip := func(bit int) []byte {
		b := bytes.Clone(good)
		b[bit/8] ^= 1 << (bit % 8)
		return b
	}
	odd := map[string][]byte{
		"empty": {}, "null": []byte("\x00null"), "{}": []byte("\x00{}"), "[]": []byte("\x00[]"), "bare null": []byte("null"),
		"trailing byte": append(bytes.Clone(good), ' '), "trailing object": append(bytes.Clone(good), "{}"...),
		"twice": append(bytes.Clone(good), good...), "header only": good[:1], "no header": good[1:],
		"random": []byte("\x02\x28\xb5\x2f\xfd\x00\x00\x00"),
	}
	// Every cut and every bit is refused; a few go through a whole run.
	cfg, r := defaults(), &run{ref: Ref{Base: "onceq:{r}"}}
	if _, _, err := cfg.decode(good, r.bound("snapshot")); err != nil {
		t.Fatal(err)
	}
	for n := range len(good) {
		if _, _, err := cfg.decode(good[:n], r.bound("snapshot")); err == nil {
			t.Errorf("cut to %d: accepted", n)
		}
		if n%41 == 0 {
			odd[fmt.Sprintf("cut to %d", n)] = good[:n]
		}
	}
	for bit := range 8 * len(good) {
		if _, _, err := cfg.decode(flip(bit), r.bound("snapshot")); err == nil {
			t.Errorf("bit %d flipped: accepted", bit)
		}
		if bit%97 == 0 {
			odd[fmt.Sprintf("bit %d flipped", bit)] = flip(bit)
		}
	}
	for what, b := range odd {
		ran, got, s := resume(b)
		if ran != "1 2 3" || strings.Join(got.Trail, " ") != "1 2 3" {
			t.Errorf("%s: ran %q on %v, want a full run on a new state", what, ran, got.Trail)
		}
		n := int64(0)
		for _, d := range s.Discards {
			n += d
		}
		if n != 1 {
			t.Errorf("%s: %d discards counted, want 1", what, n)
		}
	}
}

func TestADiscardIsLoggedAndTold(t *testing.T) {
	t.Parallel()
	var l logs
	var events []Event
	good, resume := stored(t, WithLogger(l.logger()), WithObserver(func(e Event) { events = append(events, e) }))
	events = nil
	resume(good[:20])
	if out := l.String(); strings.Count(out, "snapshot discarded") != 1 || !strings.Contains(out, "reason=corrupt") || !strings.Contains(out, "run=r") {
		t.Errorf("log %s, want one line with the reason", out)
	}
	if e := events[0]; e.Kind != Discarded || e.Reason != Corrupt || e.Run != "r" || e.Total != 3 || e.Err == nil {
		t.Errorf("first event %+v, want the discard", e)
	}
}

func TestLargeStatesAreCompressed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		n    int
		form byte
	}{{1 << 10, formRaw}, {511 << 10, formRaw}, {512 << 10, formZstd}} {
		rdb, store := mini(t)
		list := []Phase[[]string]{
			{Name: "1", Run: func(_ context.Context, s *[]string) error { *s = []string{strings.Repeat("x", c.n)}; return nil }},
			{Name: "2", Run: func(context.Context, *[]string) error { return errBoom }},
		}
		a := begin(t, rdb, "r")
		if _, err := Run(a.ctx, store, list, nil); !errors.Is(err, errBoom) {
			t.Fatal(err)
		}
		b, _ := rdb.Get(t.Context(), ckpt).Bytes()
		if len(b) == 0 || b[0] != c.form {
			t.Fatalf("%d bytes: %d stored, header %#x; want %#x", c.n, len(b), b[0], c.form)
		}
		list[1].Run = func(_ context.Context, s *[]string) error {
			if len(*s) != 1 || len((*s)[0]) != c.n {
				t.Errorf("%d bytes: not restored", c.n)
			}
			return nil
		}
		b2 := begin(t, rdb, "r", again)
		if _, err := Run(b2.ctx, store, list, nil); err != nil || store.Stats().Resumes != 1 {
			t.Errorf("%d bytes: %v, %+v", c.n, err, store.Stats())
		}
	}
}

func TestZlibIsRead(t *testing.T) {
	t.Parallel()
	good, resume := stored(t)
	pack := func(plain []byte) []byte {
		var b bytes.Buffer
		b.WriteByte(formZlib)
		w := zlib.NewWriter(&b)
		_, _ = w.Write(plain)
		_ = w.Close()
		return b.Bytes()
	}
	if ran, _, _ := resume(pack(good[1:])); ran != "3" {
		t.Errorf("zlib: ran %q, want 3", ran)
	}
	if ran, _, s := resume(append(pack(good[1:]), 0)); ran != "1 2 3" || s.Discards[Corrupt] != 1 {
		t.Errorf("zlib with a trailing byte: ran %q, %+v; want a discard", ran, s)
	}
}

func TestDecompressionIsBounded(t *testing.T) {
	t.Parallel()
	bomb := bytes.Repeat([]byte(" "), 300<<10)
	var z bytes.Buffer
	z.WriteByte(formZlib)
	w := zlib.NewWriter(&z)
	_, _ = w.Write(bomb)
	_ = w.Close()
	_, resume := stored(t, WithMaxSize(100<<10))
	for what, b := range map[string][]byte{
		"zlib": z.Bytes(), "zstd": append([]byte{formZstd}, encoder().EncodeAll(bomb, nil)...), "raw": append([]byte{formRaw}, bomb[:100<<10+1]...),
	} {
		if ran, _, s := resume(b); ran != "1 2 3" || s.Discards[Oversize] != 1 {
			t.Errorf("%s bomb: ran %q, discards %v; want oversize", what, ran, s.Discards)
		}
	}
}

// C8: the type of a field changed, and nobody raised the version.
func TestChangedStateTypes(t *testing.T) {
	t.Parallel()
	type before struct {
		A string
		B []string
		C map[string]int
		D [2]int
		E struct{ X string }
	}
	full := before{"aGk=", []string{"b"}, map[string]int{"c": 1}, [2]int{1, 2}, struct{ X string }{"x"}}
	same := func(s before) bool { return s.A == full.A && s.D == full.D && s.E.X == "x" }
	check[before](t, "unchanged", full, true, same)
	check[struct {
		before
		New []int
	}](t, "field added, embedded", full, true, func(s struct {
		before
		New []int
	}) bool {
		return same(s.before) && s.New == nil
	})
	type nested struct {
		A string
		B []string
		C map[string]int
		D [2]int
		E struct{ X, Y string }
	}
	check[nested](t, "nested field added", full, true, func(s nested) bool { return s.E.X == "x" && s.E.Y == "" })
	check[struct {
		A []byte // JSON decodes the string as base64
		B []string
		C map[string]int
		D [2]int
		E struct{ X string }
	}](t, "string to []byte", full, false, nil)
	check[struct {
		A string
		B []string
		C map[string]int
		D [1]int
		E struct{ X string }
	}](t, "shorter array", full, false, nil)
	check[struct {
		A string
		B []string
		C map[string]int
		D [2]int
		E map[string]string
	}](t, "struct to map", full, false, nil)
	check[struct {
		A2 string
		B  []string
		C  map[string]int
		D  [2]int
		E  struct{ X string }
	}](t, "renamed", full, false, nil)
	check[struct {
		A string
		B []string
		C map[string]int
		D [2]int
	}](t, "removed", full, false, nil)
	check[struct {
		A string
		B []string
		C map[string]string
		D [2]int
		E struct{ X string }
	}](t, "element type", full, false, nil)
	check[struct {
		A any
		B []string
		C map[string]int
		D [2]int
		E struct{ X string }
	}](t, "string to any", full, false, nil)
	check[string](t, "another type altogether", full, false, nil)
	type m map[string]any
	check[m](t, "struct to map of any", full, false, nil)
}

// check saves old after phase 1 and resumes with state type S.
func check[S, Old any](t *testing.T, what string, old Old, restored bool, ok func(S) bool) {
	t.Helper()
	rdb, store := mini(t)
	a := begin(t, rdb, "r")
	_, err := Run(a.ctx, store, []Phase[Old]{
		{Name: "1", Run: func(context.Context, *Old) error { return nil }},
		{Name: "2", Run: func(context.Context, *Old) error { return errBoom }},
	}, old)
	if !errors.Is(err, errBoom) {
		t.Fatal(err)
	}
	ran := ""
	b := begin(t, rdb, "r", again)
	var zero, seen S
	_, err = Run(b.ctx, store, []Phase[S]{
		{Name: "1", Run: func(_ context.Context, s *S) error { ran += "1"; seen = *s; return nil }},
		{Name: "2", Run: func(_ context.Context, s *S) error { ran += "2"; seen = *s; return nil }},
	}, zero)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if restored && (ran != "2" || !ok(seen)) {
		t.Errorf("%s: ran %q on %+v, want it resumed", what, ran, seen)
	}
	if !restored && (ran != "12" || fmt.Sprint(seen) != fmt.Sprint(zero) || store.Stats().Discards[Undecodable] != 1) {
		t.Errorf("%s: ran %q on %+v, discards %v; want all discarded", what, ran, seen, store.Stats().Discards)
	}
}

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
		var l logs
		rdb, store := mini(t, WithLogger(l.logger()))
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
		if l.lines("ERROR") != 1 || !strings.Contains(out, strings.ReplaceAll(c.names, `"`, `\"`)) || !strings.Contains(out, "phase=2") {
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

// C10
func TestChangedPhaseLists(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what, list, byDefault, missing string
		discarded                      bool // by default
	}{
		{"unchanged", "1 2 3", "3", "3", false},
		{"appended", "1 2 3 4 5", "3 4 5", "3 4 5", false},
		{"shortened to what is done", "1 2", "", "", false},
		{"undone one renamed", "1 2 x", "x", "x", false},
		{"inserted after", "1 2 x 3", "x 3", "x 3", false},
		{"done one renamed", "1 x 3", "1 x 3", "x 3", true},
		{"done one removed", "2 3", "2 3", "3", true},
		{"done ones reordered", "2 1 3", "2 1 3", "3", true},
		{"inserted before", "0 1 2 3", "0 1 2 3", "0 3", true},
		{"inserted between", "1 x 2 3", "1 x 2 3", "x 3", true},
		{"undone one moved to the front", "3 1 2", "3 1 2", "3", true},
		{"cut below what is done", "1", "1", "", true},
		{"all others", "x y", "x y", "x y", true},
	} {
		for _, missing := range []bool{false, true} {
			rdb, store := mini(t)
			var tr trail
			a := begin(t, rdb, "r")
			if _, err := Run(a.ctx, store, failing(tr.phases("1", "2", "3"), "3"), state{}); !errors.Is(err, errBoom) {
				t.Fatal(err)
			}
			opts, want, before := []Option{}, c.byDefault, "1 2 "
			if missing {
				opts, want = append(opts, WithRunMissing()), c.missing
			} else if c.discarded {
				before = ""
			}
			tr.reset()
			b := begin(t, rdb, "r", again)
			got, err := Run(b.ctx, store, tr.phases(strings.Fields(c.list)...), state{}, opts...)
			if err != nil || tr.String() != want {
				t.Errorf("%s, missing %v: ran %q, %v; want %q", c.what, missing, &tr, err, want)
			}
			if s := strings.Join(got.Trail, " "); s != strings.TrimSpace(before+want) {
				t.Errorf("%s, missing %v: state %q, want %q", c.what, missing, s, before+want)
			}
			// A crash now: everything in the list has run, nothing is repeated.
			tr.reset()
			d := begin(t, rdb, "r", again)
			if _, err := Run(d.ctx, store, tr.phases(strings.Fields(c.list)...), state{}, opts...); err != nil {
				t.Fatal(err)
			}
			if tr.String() != "" {
				t.Errorf("%s, missing %v: %q ran again", c.what, missing, &tr)
			}
		}
	}
}

// C11
func TestAnotherPayload(t *testing.T) {
	t.Parallel()
	for what, mod := range map[string]func(*lease.Config){
		"stamp":       func(c *lease.Config) { c.Stamp = "from scratch" },
		"fingerprint": func(c *lease.Config) { c.Fingerprint = "another" },
	} {
		rdb, store := mini(t)
		var tr trail
		a := begin(t, rdb, "r")
		_, _ = Run(a.ctx, store, failing(tr.phases("1", "2"), "2"), state{})
		tr.reset()
		b := begin(t, rdb, "r", again, mod)
		if _, err := Run(b.ctx, store, tr.phases("1", "2"), state{}); err != nil || tr.String() != "1 2" || store.Stats().Discards[Input] != 1 {
			t.Errorf("another %s: ran %q, %v, %v; want a fresh run", what, &tr, err, store.Stats().Discards)
		}
	}
	// Without a lease the initial state is the payload.
	_, store := mini(t)
	ctx := WithKey(t.Context(), "r")
	var tr trail
	run := func(want string, s state, opts ...Option) {
		t.Helper()
		tr.reset()
		_, _ = Run(ctx, store, failing(tr.phases("1", "2"), "2"), s, opts...)
		if tr.String() != want {
			t.Errorf("ran %q, want %q", &tr, want)
		}
	}
	run("1 2", state{Notes: map[string]int{"goal": 1}})
	run("2", state{Notes: map[string]int{"goal": 1}})
	run("1 2", state{Notes: map[string]int{"goal": 2}})
	run("1 2", state{Notes: map[string]int{"now": 1}}, WithFingerprint("same"))
	run("2", state{Notes: map[string]int{"now": 2}}, WithFingerprint("same"))
}

// C12
func TestAStateOverTheLimit(t *testing.T) {
	t.Parallel()
	var l logs
	rdb, store := mini(t, WithMaxSize(4096), WithLogger(l.logger()))
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
		if e.Kind == Unsaved {
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
	if s := store.Stats(); s.Oversize != 1 || s.Saves != 4 || l.lines("ERROR") != 1 {
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

// C14
func TestASnapshotOfTomorrow(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"schema version", "format"} {
		rdb, store := mini(t)
		var tr trail
		list := tr.phases("1", "2", "3")
		a := begin(t, rdb, "r")
		_, _ = Run(a.ctx, store, failing(list, "3"), state{}, WithVersion(2))
		snapshot := rdb.Get(t.Context(), ckpt).Val()
		if what == "format" {
			snapshot = "\x20" + snapshot[1:]
			rdb.Set(t.Context(), ckpt, snapshot, 0)
		}
		tr.reset()
		b := begin(t, rdb, "r", again)
		old := failing(list, "1") // yesterday's worker fails before it saved anything
		if _, err := Run(b.ctx, store, old, state{}); !errors.Is(err, errBoom) || tr.String() != "1" {
			t.Fatalf("%s: yesterday's worker ran %q, %v; want a run from the start", what, &tr, err)
		}
		if store.Stats().Discards[Version] != 1 || rdb.Get(t.Context(), ckpt).Val() != snapshot {
			t.Errorf("%s: %v; want it discarded as version and left in place", what, store.Stats().Discards)
		}
		if what == "format" {
			continue
		}
		tr.reset()
		c := begin(t, rdb, "r", again)
		if _, err := Run(c.ctx, store, list, state{}, WithVersion(2)); err != nil || tr.String() != "3" {
			t.Errorf("tomorrow's worker ran %q, %v; want 3", &tr, err)
		}
	}
}
