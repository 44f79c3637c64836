package notifytest

import (
	"strconv"
	"time"
)

// limit is a sliding window.
type limit struct {
	n    int
	per  time.Duration
	past []time.Time
}

// Limit lets n calls of the method through in any span of per and answers 429
// with Retry-After in whole seconds to the rest, as Slack does (about one
// message a second for each channel). n of 0 lifts it. It panics for a method that
// [Slack.Script] does not know.
func (s *Slack) Limit(method string, n int, per time.Duration) {
	mustKnow(method)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.limits, method)
	if n > 0 {
		s.limits[method] = &limit{n: n, per: per}
	}
}

// limited says whether the call is one too many.
func (s *Slack) limited(method string) (Fault, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.limits[method]
	if l == nil {
		return None, false
	}
	now := time.Now()
	for len(l.past) > 0 && now.Sub(l.past[0]) >= l.per {
		l.past = l.past[1:]
	}
	if len(l.past) < l.n {
		l.past = append(l.past, now)
		return None, false
	}
	wait := l.per - now.Sub(l.past[0])
	seconds := int((wait + time.Second - 1) / time.Second)
	return RateLimited(strconv.Itoa(max(seconds, 1))), true
}
