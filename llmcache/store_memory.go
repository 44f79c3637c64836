package llmcache

import (
	"context"
	"sync"
	"time"
)

// MemoryStore is a Store in the process, for tests and for programs without
// Redis. It keeps expired entries until they are looked at or another is
// written, and has no bound of its own.
type MemoryStore struct {
	mu      sync.Mutex // guards the fields below
	answers map[string]memoryAnswer
	leases  map[string]memoryMark // by Slot.lease
	flights map[string]map[string]memoryMark
	books   map[string]memoryBook
	once    map[string]memoryMark
	swept   time.Time
}

type memoryAnswer struct {
	Stored
	owner string
	until time.Time
}

// memoryMark is a text that lives until a moment.
type memoryMark struct {
	owner, note string
	fence       int64
	until       time.Time
}

type memoryBook struct {
	Account
	until time.Time
}

// NewMemoryStore returns an empty store.
func NewMemoryStore() *MemoryStore {
	return &MemoryStore{
		answers: map[string]memoryAnswer{}, leases: map[string]memoryMark{}, once: map[string]memoryMark{},
		flights: map[string]map[string]memoryMark{}, books: map[string]memoryBook{},
	}
}

// Begin implements Store.
func (s *MemoryStore) Begin(_ context.Context, slot Slot, c Claim) (Begun, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.sweep()
	if a, ok := s.answers[slot.Key]; ok && !c.Renew {
		a.until = later(a.until, now.Add(c.Touch))
		s.answers[slot.Key] = a
		s.count(slot.Book, slot.once(c.Owner), Account{Saved: a.Cost}, c.Keep)
		return Begun{State: StateFound, Data: a.Data, TTL: a.until.Sub(now)}, nil
	}
	mine := memoryMark{owner: c.Owner, fence: c.Fence, until: now.Add(c.Lease)}
	if l, ok := s.leases[slot.lease()]; ok && (l.fence == 0 || l.fence >= c.Fence) {
		if l.owner != c.Owner {
			return Begun{State: StateHeld, TTL: l.until.Sub(now)}, nil
		}
		s.leases[slot.lease()] = mine
		return Begun{State: StateMine}, nil
	}
	flights := s.flights[slot.flights()]
	before, interrupted := flights[slot.ID]
	if interrupted && c.Refuse {
		return Begun{State: StateAmbiguous, Note: before.note}, nil
	}
	if slot.Book != "" {
		sums := s.books[slot.Book].Account
		if c.Limit.over(sums, int64(len(flights))) != "" {
			return Begun{State: StateSpent, Totals: s.sums(slot.Book)}, nil
		}
		if interrupted {
			s.add(slot.Book, Account{Wasted: Sum{Calls: 1}}, c.Keep)
		}
	}
	s.leases[slot.lease()] = mine
	if flights == nil {
		flights = map[string]memoryMark{}
		s.flights[slot.flights()] = flights
	}
	flights[slot.ID] = memoryMark{owner: c.Owner, note: c.Note, fence: c.Fence, until: now.Add(c.Keep)}
	return Begun{State: StateMine, Note: before.note}, nil
}

// Extend implements Store.
func (s *MemoryStore) Extend(_ context.Context, slot Slot, owner string, ttl time.Duration) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.sweep()
	l, held := s.leases[slot.lease()]
	if held && l.owner != owner || !held && s.flights[slot.flights()][slot.ID].owner != owner {
		return false, nil
	}
	s.leases[slot.lease()] = memoryMark{owner: owner, fence: s.flights[slot.flights()][slot.ID].fence, until: now.Add(ttl)}
	return true, nil
}

// Finish implements Store.
func (s *MemoryStore) Finish(_ context.Context, slot Slot, owner string, answer Stored) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.sweep()
	there, stored := s.answers[slot.Key]
	if stored && there.owner == owner {
		return true, nil
	}
	l, held := s.leases[slot.lease()]
	flight, open := s.flights[slot.flights()][slot.ID]
	ours := open && flight.owner == owner
	if l.owner != owner && (held || open && !ours || !open && stored) {
		return false, nil
	}
	s.answers[slot.Key] = memoryAnswer{answer, owner, now.Add(answer.TTL)}
	s.end(slot, owner)
	if slot.Book != "" {
		s.add(slot.Book, Account{Paid: answer.Cost}, answer.Keep)
	}
	return true, nil
}

// Abandon implements Store.
func (s *MemoryStore) Abandon(_ context.Context, slot Slot, owner string, cost Account, keep time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep()
	if s.end(slot, owner) && slot.Book != "" && !cost.zero() {
		s.add(slot.Book, cost, keep)
	}
	return nil
}

// end drops what the owner holds, and reports whether that was the in-flight record.
func (s *MemoryStore) end(slot Slot, owner string) bool {
	if s.leases[slot.lease()].owner == owner {
		delete(s.leases, slot.lease())
	}
	flights := s.flights[slot.flights()]
	if flights[slot.ID].owner != owner {
		return false
	}
	delete(flights, slot.ID)
	return true
}

// Count implements Store.
func (s *MemoryStore) Count(_ context.Context, key, id string, add Account, ttl time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep()
	s.count(key, key+":once:"+id, add, ttl)
	return nil
}

// Sums implements Store.
func (s *MemoryStore) Sums(_ context.Context, key string) (Account, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep()
	return s.sums(key), nil
}

func (s *MemoryStore) sums(key string) Account {
	a := s.books[key].Account
	for id, f := range s.flights[key+":flights"] {
		o := openCall(id, f.note)
		_, o.Held = s.leases[key+":"+id+":lease"]
		a.Open = append(a.Open, o)
	}
	sortOpen(a.Open)
	return a
}

func (s *MemoryStore) count(book, once string, add Account, ttl time.Duration) {
	if _, counted := s.once[once]; counted || book == "" {
		return
	}
	s.once[once] = memoryMark{until: time.Now().Add(time.Minute)}
	s.add(book, add, ttl)
}

func (s *MemoryStore) add(book string, a Account, ttl time.Duration) {
	b := s.books[book]
	s.books[book] = memoryBook{b.plus(a), time.Now().Add(ttl)}
}

// sweep drops what has expired, and returns the time it went by.
func (s *MemoryStore) sweep() time.Time {
	now := time.Now()
	if !now.After(s.swept) {
		return now
	}
	s.swept = now
	for k, v := range s.answers {
		if !now.Before(v.until) {
			delete(s.answers, k)
		}
	}
	for k, v := range s.books {
		if !now.Before(v.until) {
			delete(s.books, k)
		}
	}
	sweepMarks(s.leases, now)
	sweepMarks(s.once, now)
	for k, flights := range s.flights {
		if sweepMarks(flights, now); len(flights) == 0 {
			delete(s.flights, k)
		}
	}
	return now
}

func sweepMarks(marks map[string]memoryMark, now time.Time) {
	for k, m := range marks {
		if !now.Before(m.until) {
			delete(marks, k)
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
