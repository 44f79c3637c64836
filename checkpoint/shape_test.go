package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

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
	if !restored && (ran != "12" || fmt.Sprint(seen) != fmt.Sprint(zero) || store.Stats().Discards[ReasonUndecodable] != 1) {
		t.Errorf("%s: ran %q on %+v, discards %v; want all discarded", what, ran, seen, store.Stats().Discards)
	}
}
