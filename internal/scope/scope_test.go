package scope_test

import (
	"context"
	"sync"
	"testing"

	"github.com/nexuscore/onceq/internal/scope"
)

func open(t *testing.T, ctx context.Context, phase, step string) (context.Context, *scope.Scope) {
	t.Helper()
	ctx = scope.New(ctx, phase, step)
	s, ok := scope.FromContext(ctx)
	if !ok || s.Phase != phase || s.Step != step {
		t.Fatalf("FromContext = %v, %v; want phase %q, step %q", s, ok, phase, step)
	}
	return ctx, s
}

func TestInnermostScopeCountsOnItsOwn(t *testing.T) {
	t.Parallel()
	if _, ok := scope.FromContext(t.Context()); ok {
		t.Fatal("a scope in an empty context")
	}
	ctx, phase := open(t, t.Context(), "planning", "")
	_, step := open(t, ctx, "planning", "risks")
	a, b := [32]byte{1}, [32]byte{2}
	for i, c := range []struct {
		s    *scope.Scope
		hash [32]byte
		want int
	}{{phase, a, 0}, {phase, a, 1}, {step, a, 0}, {phase, b, 0}, {phase, a, 2}} {
		if got := c.s.Ordinal(c.hash); got != c.want {
			t.Errorf("call %d: ordinal %d, want %d", i, got, c.want)
		}
	}
}

func TestGiveBack(t *testing.T) {
	t.Parallel()
	_, s := open(t, t.Context(), "p", "")
	h := [32]byte{1}
	s.GiveBack(h, 0) // never taken
	for want := range 3 {
		if got := s.Ordinal(h); got != want {
			t.Fatalf("ordinal %d, want %d", got, want)
		}
	}
	s.GiveBack(h, 2)
	s.GiveBack(h, 0)
	s.GiveBack(h, 0) // twice is once
	s.GiveBack(h, 9) // never taken
	s.GiveBack(h, -1)
	for _, want := range []int{0, 2, 3, 4} {
		if got := s.Ordinal(h); got != want {
			t.Errorf("ordinal %d, want %d", got, want)
		}
	}
}

func TestOrdinalsAreUniqueUnderFanOut(t *testing.T) {
	t.Parallel()
	_, s := open(t, t.Context(), "p", "")
	var mu sync.Mutex
	seen := map[int]bool{}
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			n := s.Ordinal([32]byte{7})
			mu.Lock()
			defer mu.Unlock()
			if n < 0 || n >= 64 || seen[n] {
				t.Errorf("ordinal %d twice or out of range", n)
			}
			seen[n] = true
		})
	}
	wg.Wait()
}
