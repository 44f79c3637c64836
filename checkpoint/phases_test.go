package checkpoint

import (
	"errors"
	"strings"
	"testing"
)

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
