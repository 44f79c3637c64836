// Package scope says where in a run a context is: the phase, the step, and how
// often the same call was made there in this attempt.
//
// package checkpoint opens scopes; package llmcache reads them, so that an
// attempt that resumes at phase k replays phase k's answers and no others.
package scope

import (
	"context"
	"slices"
	"sync"
)

// Scope is one place in one attempt. It is safe for concurrent use.
type Scope struct {
	Phase string // "" outside any phase
	Step  string // "" outside any step

	mu    sync.Mutex
	calls map[[32]byte]*ordinals // guarded by mu
}

// ordinals of the calls with one hash.
type ordinals struct {
	next int
	free []int // given back, in order
}

type ctxKey struct{}

// New opens a scope for a phase, or for a step of it when step is not "". Each
// call opens a new one: ordinals start again at 0.
func New(ctx context.Context, phase, step string) context.Context {
	return context.WithValue(ctx, ctxKey{}, &Scope{Phase: phase, Step: step})
}

// FromContext returns the innermost open scope.
func FromContext(ctx context.Context) (*Scope, bool) {
	s, ok := ctx.Value(ctxKey{}).(*Scope)
	return s, ok
}

// Ordinal returns the lowest number, from 0, that no call with this hash in the
// scope has: how many there were before, unless one was given back.
func (s *Scope) Ordinal(hash [32]byte) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == nil {
		s.calls = map[[32]byte]*ordinals{}
	}
	o := s.calls[hash]
	if o == nil {
		o = &ordinals{}
		s.calls[hash] = o
	}
	if len(o.free) > 0 {
		n := o.free[0]
		o.free = o.free[1:]
		return n
	}
	o.next++
	return o.next - 1
}

// GiveBack returns the ordinal of a call that failed, for the call that repeats
// it: a client that retries makes the same call again and not another one.
func (s *Scope) GiveBack(hash [32]byte, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.calls[hash]
	if o == nil || n < 0 || n >= o.next {
		return
	}
	if i, found := slices.BinarySearch(o.free, n); !found {
		o.free = slices.Insert(o.free, i, n)
	}
}
