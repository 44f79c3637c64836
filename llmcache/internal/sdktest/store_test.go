package sdktest

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/nexuscore/onceq/llmcache"
)

// spy remembers all that a store is given.
type spy struct {
	llmcache.Store
	mu sync.Mutex
	b  strings.Builder
}

func (s *spy) note(v ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(&s.b, "%s\n", v)
}

func (s *spy) seen() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func (s *spy) Begin(ctx context.Context, slot llmcache.Slot, c llmcache.Claim) (llmcache.Begun, error) {
	s.note(slot, c)
	return s.Store.Begin(ctx, slot, c)
}

func (s *spy) Finish(ctx context.Context, slot llmcache.Slot, owner string, a llmcache.Stored) (bool, error) {
	s.note(slot, owner, a)
	return s.Store.Finish(ctx, slot, owner, a)
}
