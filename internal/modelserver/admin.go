package modelserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

func (s *Server) routes() *http.ServeMux {
	m := http.NewServeMux()
	m.HandleFunc("POST /v1/chat/completions", s.chat)
	m.HandleFunc("GET /v1/models", s.models)
	m.HandleFunc("GET /_calls", func(w http.ResponseWriter, _ *http.Request) {
		calls := s.Calls()
		reply(w, http.StatusOK, map[string]any{"summary": summarise(calls), "calls": calls})
	})
	m.HandleFunc("DELETE /_calls", done(s.Reset))
	m.HandleFunc("POST /_faults", s.addFault)
	m.HandleFunc("DELETE /_faults", done(s.Heal))
	m.HandleFunc("POST /_release", done(s.Release))
	m.HandleFunc("POST /_latency", s.changeLatency)
	m.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		apiError(w, http.StatusNotFound, "invalid_request_error", fmt.Sprintf("no script for %s %.100q", r.Method, r.URL.Path))
	})
	return m
}

func done(f func()) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		f()
		w.WriteHeader(http.StatusNoContent)
	}
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	reply(w, http.StatusOK, map[string]any{"object": "list", "data": []any{
		map[string]any{"id": Model, "object": "model", "created": 0, "owned_by": "onceq examples: " + honesty},
	}})
}

func (s *Server) addFault(w http.ResponseWriter, r *http.Request) {
	var f struct {
		N            int    `json:"n"`
		Kind         Kind   `json:"kind"`
		RetryAfterMS int64  `json:"retry_after_ms"`
		Status       int    `json:"status"`
		Bytes        int    `json:"bytes"`
		Phase        string `json:"phase"`
		Task         string `json:"task"`
	}
	f.N = 1
	if !readJSON(w, r, &f) {
		return
	}
	err := s.Fail(f.N, Fault{
		Kind: f.Kind, RetryAfter: millis(f.RetryAfterMS), Status: f.Status,
		Bytes: f.Bytes, Phase: f.Phase, Task: f.Task,
	})
	acknowledge(w, err)
}

func (s *Server) changeLatency(w http.ResponseWriter, r *http.Request) {
	var l struct {
		CallMS  int64 `json:"call_ms"`
		ChunkMS int64 `json:"chunk_ms"`
	}
	if readJSON(w, r, &l) {
		acknowledge(w, s.SetLatency(millis(l.CallMS), millis(l.ChunkMS)))
	}
}

// millis keeps a number that is out of any range out of range, where a plain
// product could overflow into it.
func millis(n int64) time.Duration {
	const day = 24 * 60 * 60 * 1000
	return time.Duration(max(-1, min(n, day+1))) * time.Millisecond
}

func readJSON(w http.ResponseWriter, r *http.Request, v any) bool {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		acknowledge(w, fmt.Errorf("the body is not what is wanted: %w", err))
		return false
	}
	return true
}

func acknowledge(w http.ResponseWriter, err error) {
	if err != nil {
		apiError(w, http.StatusBadRequest, "invalid_request_error", err.Error())
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
