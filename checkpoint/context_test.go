package checkpoint

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/nexuscore/onceq/internal/lease"
	"github.com/nexuscore/onceq/internal/redistest"
)

func TestWithoutALease(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t)
	var tr trail
	list := tr.phases("1", "2")
	ctx := ContextWithKey(t.Context(), "direct")
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
	ctx := ContextWithKey(t.Context(), "r")
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
