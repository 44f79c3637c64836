package main

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// entry is something that a worker did, or that was done to it, as seen by whoever
// outlives it. Times are of one clock.
type entry struct {
	At      time.Time `json:"at"`
	Kind    string    `json:"kind"` // see below
	Run     string    `json:"run,omitempty"`
	Phase   string    `json:"phase,omitempty"`
	Step    string    `json:"step,omitempty"`
	Attempt int       `json:"attempt,omitempty"`
	Token   int64     `json:"token,omitempty"`
	Process string    `json:"process"`
	Detail  string    `json:"detail,omitempty"`
	Refused bool      `json:"refused,omitempty"`
	MS      int64     `json:"ms,omitempty"` // stalled: for how long
}

// Kinds of entries.
const (
	began    = "began"    // an attempt holds its run
	started  = "started"  // a phase
	step     = "step"     // a step was run
	finished = "finished" // the effect of a phase
	returned = "returned" // the handler; Detail is its error
	// without a run
	stalled = "stalled" // the process got no time for so long
	opened  = "opened"  // its LLM cache passes calls through
	closed  = "closed"  // and again not
	bye     = "bye"     // it has ended in order; Detail names what it left
)

// witness keeps what workers tell. It is the outside world that a fencing token is
// for: it refuses an attempt once it has seen a later one of the same run.
type witness struct {
	srv  *http.Server
	addr string

	mu     sync.Mutex // guards the fields below
	log    []entry
	tokens map[string]int64 // the largest seen, by run
	file   *os.File
}

func newWitness(file string) (*witness, error) {
	f, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &witness{addr: l.Addr().String(), tokens: map[string]int64{}, file: f}
	w.srv = &http.Server{Handler: http.HandlerFunc(w.serve), ReadHeaderTimeout: time.Minute}
	go func() { _ = w.srv.Serve(l) }() // ends with Close
	return w, nil
}

func (w *witness) close() {
	_ = w.srv.Close()
	_ = w.file.Close()
}

func (w *witness) serve(rw http.ResponseWriter, r *http.Request) {
	var e entry
	if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	if !w.add(e) {
		rw.WriteHeader(http.StatusConflict)
		return
	}
	rw.WriteHeader(http.StatusNoContent)
}

// add reports whether the entry counts.
func (w *witness) add(e entry) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	e.At = time.Now()
	if e.Run != "" {
		if e.Token < w.tokens[e.Run] {
			e.Refused = true
		} else {
			w.tokens[e.Run] = e.Token
		}
	}
	w.log = append(w.log, e)
	_ = json.NewEncoder(w.file).Encode(e) // for the reader of a failed proof
	return !e.Refused
}

func (w *witness) entries() []entry {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]entry(nil), w.log...)
}
