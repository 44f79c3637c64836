package modelserver

import (
	"context"
	"slices"
	"time"
)

// maxCalls bounds the record. A full record refuses calls rather than forget
// some: a count that is silently too small is worse than an error.
const maxCalls = 50_000

// Outcome says how a call ended.
type Outcome string

// The outcomes. All but Open and Refused are paid: the provider did the work.
const (
	Open      Outcome = "open"      // not ended yet
	Completed Outcome = "completed" // the whole answer was written and the client was still there
	Left      Outcome = "left"      // the client went away first
	Cut       Outcome = "cut"       // the server broke it off: a fault, or Close
	Refused   Outcome = "refused"   // answered with an error
)

// Call is one chat completion as the server saw it. Bodies are not kept.
type Call struct {
	Seq   int       `json:"seq"` // from 1, in order of arrival
	Start time.Time `json:"start"`
	End   time.Time `json:"end,omitzero"` // zero while open

	Hash  string `json:"hash"` // hex SHA-256 of the body: equal for equal calls
	Model string `json:"model"`
	Task  string `json:"task"`  // from the marker; "" without one
	Phase string `json:"phase"` // from the marker; "" without one

	IdempotencyKey string `json:"idempotency_key,omitempty"` // the header, cut at 200 bytes
	Retry          string `json:"retry,omitempty"`           // X-Stainless-Retry-Count: the SDK's own retries
	Client         string `json:"client,omitempty"`          // User-Agent, cut at 200 bytes

	Stream  bool    `json:"stream"`
	Status  int     `json:"status"` // 0 if nothing was answered
	Outcome Outcome `json:"outcome"`
	Fault   string  `json:"fault,omitempty"` // the kind of the fault that was told to happen
	Repeat  bool    `json:"repeat"`          // paid although an equal call had been completed before

	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
}

// Paid says whether a provider would charge for the call.
func (c Call) Paid() bool { return c.Outcome == Completed || c.Outcome == Left || c.Outcome == Cut }

// Summary counts calls.
type Summary struct {
	Calls            int `json:"calls"`
	Open             int `json:"open"`
	Paid             int `json:"paid"`        // completed + interrupted
	Repeated         int `json:"repeated"`    // paid although an equal call had been completed before
	Interrupted      int `json:"interrupted"` // paid, but the client or the connection went away
	Refused          int `json:"refused"`
	Distinct         int `json:"distinct"` // hashes
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
}

// Calls returns all calls so far, in order of arrival.
func (s *Server) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// Summary counts the calls so far.
func (s *Server) Summary() Summary { return summarise(s.Calls()) }

func summarise(calls []Call) Summary {
	n := Summary{Calls: len(calls)}
	distinct := map[string]bool{}
	for _, c := range calls {
		distinct[c.Hash] = true
		switch c.Outcome {
		case Open:
			n.Open++
		case Refused:
			n.Refused++
		case Left, Cut:
			n.Interrupted++
		}
		if c.Paid() {
			n.Paid++
			n.PromptTokens += c.PromptTokens
			n.CompletionTokens += c.CompletionTokens
		}
		if c.Repeat {
			n.Repeated++
		}
	}
	n.Distinct = len(distinct)
	return n
}

// Counts returns how many paid calls each hash had.
func (s *Server) Counts() map[string]int {
	counts := map[string]int{}
	for _, c := range s.Calls() {
		if c.Paid() {
			counts[c.Hash]++
		}
	}
	return counts
}

// Await returns the first call that match accepts, now or when it comes; a call
// is looked at when it arrives and when it ends. It returns the context's cause
// if that ends first.
func (s *Server) Await(ctx context.Context, match func(Call) bool) (Call, error) {
	for {
		s.mu.Lock()
		calls, changed := slices.Clone(s.calls), s.changed
		s.mu.Unlock()
		if i := slices.IndexFunc(calls, match); i >= 0 {
			return calls[i], nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Call{}, context.Cause(ctx)
		}
	}
}

// Reset forgets all calls. Those that are open end unrecorded.
func (s *Server) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = nil
	clear(s.answered)
	clear(s.paid)
	s.wake()
}

// wake tells Await that calls changed. s.mu is held.
func (s *Server) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// arrive records a call and, if it is valid, takes the fault that applies to it.
// It reports false if the record is full.
func (s *Server) arrive(c Call, valid bool) (*ticket, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.calls) >= maxCalls {
		return nil, false
	}
	t := &ticket{s: s, latency: s.latency, hanging: s.hanging}
	if valid {
		t.fault = s.take(c)
	}
	c.Seq, c.Start, c.Outcome, c.Fault = len(s.calls)+1, time.Now(), Open, string(t.fault.Kind)
	if valid && !t.fault.refuses() {
		s.answered[c.Hash]++
		if s.samples {
			t.sample = s.answered[c.Hash]
		}
	}
	s.calls = append(s.calls, c)
	t.seq, t.start = c.Seq, c.Start
	s.wake()
	return t, true
}

// ticket is what an open call knows of itself.
type ticket struct {
	s       *Server
	seq     int
	start   time.Time // tells the call from another with its number after a Reset
	sample  int       // 0 unless WithSamples
	fault   Fault
	latency latency
	hanging chan struct{}
}

// end records how the call ended.
func (t *ticket) end(status int, o Outcome, prompt, completion int) {
	s := t.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.seq > len(s.calls) || !s.calls[t.seq-1].Start.Equal(t.start) {
		return // Reset in between
	}
	c := &s.calls[t.seq-1]
	c.End, c.Status, c.Outcome = time.Now(), status, o
	c.PromptTokens, c.CompletionTokens = prompt, completion
	c.Repeat = c.Paid() && s.paid[c.Hash]
	if o == Completed {
		s.paid[c.Hash] = true
	}
	s.log.Debug("modelserver: call", "seq", c.Seq, "phase", c.Phase, "task", c.Task,
		"outcome", string(o), "status", status, "repeat", c.Repeat, "took", c.End.Sub(c.Start))
	s.wake()
}
