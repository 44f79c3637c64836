package modelserver

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Kind of a [Fault].
type Kind string

// The kinds, as the admin endpoint and the flag spell them.
const (
	KindRateLimit Kind = "rate_limit" // 429 with Retry-After
	KindError     Kind = "error"      // an error status, 500 by default
	KindCut       Kind = "cut"        // the connection breaks after some bytes of the body
	KindTruncate  Kind = "truncate"   // the body ends early, but cleanly: no error for the client to see
	KindHang      Kind = "hang"       // no answer until released
	KindDrop      Kind = "drop"       // the request is read, then the connection closed without an answer
)

var kinds = []Kind{KindRateLimit, KindError, KindCut, KindTruncate, KindHang, KindDrop}

// Fault is one way to fail. Build it with [RateLimit] and its neighbours.
type Fault struct {
	Kind       Kind          `json:"kind"`
	RetryAfter time.Duration `json:"retry_after,omitempty"` // rate_limit: rounded up to seconds in the header
	Status     int           `json:"status,omitempty"`      // error: 400 to 599; 0 means 500
	Bytes      int           `json:"bytes,omitempty"`       // cut, truncate: of the body that are still written
	Phase      string        `json:"phase,omitempty"`       // only calls of this phase; "" any
	Task       string        `json:"task,omitempty"`        // only calls of this task; "" any
}

// RateLimit answers 429 and asks to come back after d.
func RateLimit(d time.Duration) Fault { return Fault{Kind: KindRateLimit, RetryAfter: d} }

// Error answers with the given status, 400 to 599.
func Error(status int) Fault { return Fault{Kind: KindError, Status: status} }

// CutAfter breaks the connection after n bytes of the body.
func CutAfter(n int) Fault { return Fault{Kind: KindCut, Bytes: n} }

// TruncateAfter ends the body cleanly after n bytes, as a proxy that gave up does.
func TruncateAfter(n int) Fault { return Fault{Kind: KindTruncate, Bytes: n} }

// Hang withholds the answer until [Server.Release]; then it is given as usual.
func Hang() Fault { return Fault{Kind: KindHang} }

// Drop accepts the request and closes the connection.
func Drop() Fault { return Fault{Kind: KindDrop} }

// In limits the fault to a phase and a task; "" means any.
func (f Fault) In(phase, task string) Fault {
	f.Phase, f.Task = phase, task
	return f
}

// refuses says that no answer is begun, so that nothing is paid.
func (f Fault) refuses() bool { return f.Kind == KindRateLimit || f.Kind == KindError }

// planned is a fault that is to happen n times.
type planned struct {
	n int
	f Fault
}

func (p planned) check() error {
	f := p.f
	switch {
	case p.n < 1 || p.n > maxCalls:
		return fmt.Errorf("modelserver: fault %q: n is %d, allowed are 1 to %d", f.Kind, p.n, maxCalls)
	case !slices.Contains(kinds, f.Kind):
		return fmt.Errorf("modelserver: kind of fault is %.40q, allowed are %s", f.Kind, kindNames())
	case f.RetryAfter < 0 || f.RetryAfter > 24*time.Hour:
		return fmt.Errorf("modelserver: fault %q: retry_after is %v, allowed are 0 to 24h", f.Kind, f.RetryAfter)
	case f.Status != 0 && (f.Status < 400 || f.Status > 599):
		return fmt.Errorf("modelserver: fault %q: status is %d, allowed are 400 to 599", f.Kind, f.Status)
	case f.Bytes < 0:
		return fmt.Errorf("modelserver: fault %q: bytes is %d, allowed are 0 and more", f.Kind, f.Bytes)
	}
	return nil
}

func kindNames() string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = string(k)
	}
	return strings.Join(names, ", ")
}

// Fail makes the next n calls that f applies to fail with it. Faults are used up
// in the order in which they were told; a call takes the first that applies.
func (s *Server) Fail(n int, f Fault) error {
	p := planned{n, f}
	if err := p.check(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.faults) >= 1000 {
		return fmt.Errorf("modelserver: 1000 faults are planned already")
	}
	s.faults = append(s.faults, p)
	return nil
}

// Heal forgets all planned faults and lets go of calls that hang.
func (s *Server) Heal() {
	s.mu.Lock()
	s.faults = nil
	s.mu.Unlock()
	s.Release()
}

// Release lets go of all calls that hang now.
func (s *Server) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.hanging)
	s.hanging = make(chan struct{})
}

// take uses up the fault that applies to c; zero if none does. s.mu is held.
func (s *Server) take(c Call) Fault {
	for i := range s.faults {
		f := s.faults[i].f
		if f.Phase != "" && f.Phase != c.Phase || f.Task != "" && f.Task != c.Task {
			continue
		}
		if s.faults[i].n--; s.faults[i].n == 0 {
			s.faults = slices.Delete(s.faults, i, i+1)
		}
		return f
	}
	return Fault{}
}
