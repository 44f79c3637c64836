// Package scope says where in a run a context is: the phase, the step, and how
// often the same call was made there in this attempt.
//
// package checkpoint opens scopes; package llmcache reads them, so that an
// attempt that resumes at phase k replays phase k's answers and no others.
package scope

import (
	"context"
	"sync"
)

// Scope is one place in one attempt. It is safe for concurrent use.
type Scope struct {
	Phase string // "" outside any phase
	Step  string // "" outside any step

	mu    sync.Mutex
	calls map[[32]byte]int // guarded by mu
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

// Ordinal returns how many calls with this hash were made in the scope before,
// and counts one more.
func (s *Scope) Ordinal(hash [32]byte) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == nil {
		s.calls = map[[32]byte]int{}
	}
	n := s.calls[hash]
	s.calls[hash] = n + 1
	return n
}
