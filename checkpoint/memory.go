package checkpoint

import (
	"bytes"
	"context"
	"maps"
	"sync"
	"time"
)

// MemoryStore is a [Store] in memory, for tests and for runs that need not
// outlive the process. The zero value is ready. What has outlived its TTL is
// dropped as the store is written to.
//
// It cannot see leases in Redis: of two attempts the one with the larger token
// counts as the holder from its first call on.
type MemoryStore struct {
	count counters

	mu   sync.Mutex // guards the fields below
	runs map[string]*memoryRun
	full int // how many runs make the next write look for expired ones
}

type memoryRun struct {
	owner    string
	token    int64
	expires  time.Time // of all below, and of the fence itself
	snapshot []byte    // nil when there is none
	steps    map[string]*memorySteps
}

type memorySteps struct {
	basis   string
	results map[string][]byte
}

// NewMemoryStore returns an empty store.
func NewMemoryStore() *MemoryStore { return new(MemoryStore) }

// Stats returns what happened on this store since it was built.
func (s *MemoryStore) Stats() Stats { return s.count.stats() }

func (s *MemoryStore) shared() (config, *counters) { return defaults(), &s.count }

// enter returns the run's data under the lock, or nil when there is none. It
// registers the attempt of a Ref with a lease.
func (s *MemoryStore) enter(run Ref) (*memoryRun, error) {
	r := s.runs[run.Base]
	if r != nil && !time.Now().Before(r.expires) {
		delete(s.runs, run.Base)
		r = nil
	}
	if run.Owner == "" {
		return r, nil
	}
	switch {
	case r == nil:
		r = s.create(run)
	case run.Token < r.token, run.Token == r.token && run.Owner != r.owner:
		return nil, ErrLeaseLost
	}
	r.owner, r.token = run.Owner, run.Token
	return r, nil
}

func (s *MemoryStore) create(run Ref) *memoryRun {
	if s.runs == nil {
		s.runs = map[string]*memoryRun{}
	}
	now := time.Now()
	if len(s.runs) >= max(s.full, 64) {
		maps.DeleteFunc(s.runs, func(_ string, r *memoryRun) bool { return !now.Before(r.expires) })
		s.full = 2 * len(s.runs)
	}
	r := &memoryRun{expires: now.Add(run.TTL)}
	s.runs[run.Base] = r
	return r
}

// change is enter for a write: there is always a run then, and it lives on.
func (s *MemoryStore) change(run Ref) (*memoryRun, error) {
	r, err := s.enter(run)
	if err != nil {
		return nil, err
	}
	if r == nil {
		r = s.create(run)
	}
	r.expires = time.Now().Add(run.TTL)
	return r, nil
}

// Load implements [Store].
func (s *MemoryStore) Load(_ context.Context, run Ref) ([]byte, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.enter(run)
	if err != nil || r == nil || r.snapshot == nil {
		return nil, false, err
	}
	return bytes.Clone(r.snapshot), true, nil
}

// Save implements [Store].
func (s *MemoryStore) Save(_ context.Context, run Ref, phase string, snapshot []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.change(run)
	if err != nil {
		return err
	}
	r.snapshot = append([]byte{}, snapshot...) // not nil, even when empty
	delete(r.steps, phase)
	return nil
}

// LoadSteps implements [Store].
func (s *MemoryStore) LoadSteps(_ context.Context, run Ref, phase, basis string) (map[string][]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.enter(run)
	if err != nil || r == nil || r.steps[phase] == nil || r.steps[phase].basis != basis {
		return nil, err
	}
	results := make(map[string][]byte, len(r.steps[phase].results))
	for name, b := range r.steps[phase].results {
		results[name] = bytes.Clone(b)
	}
	return results, nil
}

// SaveStep implements [Store].
func (s *MemoryStore) SaveStep(_ context.Context, run Ref, phase, basis, step string, result []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.change(run)
	if err != nil {
		return err
	}
	if r.steps == nil {
		r.steps = map[string]*memorySteps{}
	}
	if r.steps[phase] == nil || r.steps[phase].basis != basis {
		r.steps[phase] = &memorySteps{basis, map[string][]byte{}}
	}
	r.steps[phase].results[step] = bytes.Clone(result)
	return nil
}

// Clear implements [Store]. The fence stays for the TTL, so that an attempt that
// was overtaken cannot write after the run is over.
func (s *MemoryStore) Clear(_ context.Context, run Ref, _ []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.enter(run)
	if err != nil || r == nil {
		return err
	}
	r.snapshot, r.steps = nil, nil
	return nil
}
