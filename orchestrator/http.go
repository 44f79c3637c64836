package orchestrator

import (
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/nexuscore/onceq/idempotent"
)

// HTTP offers the dispatcher to programs in any language:
//
//	POST /runs               accept a run: {"requirement": "...", "parameters": {...}, "run_id": "..."}
//	GET  /runs               the newest runs; ?status=FAILED&limit=50&before=<id>
//	GET  /runs/{id}          one run
//	GET  /runs/{id}/history  what happened to it
//	POST /runs/{id}/rerun    start a failed run again; {"from_scratch": true}
//
// An Idempotency-Key header names the run, as run_id does, so that a request that
// is sent twice starts one run. Answers: 202 accepted; 200 that run has succeeded,
// with its result; 409 it is queued, running, waiting for a retry or has failed, with
// Retry-After where waiting helps; 422 that key was used for something else; 400 and
// 413 with the field and the limit; 404; 405; 503 cannot tell, ask again with the same key.
// Errors are application/problem+json. Nothing here asks who is calling: put it
// behind what does, and under http.StripPrefix where it has another place.
func (d *Dispatcher) HTTP() http.Handler {
	a := &api{d}
	mux := http.NewServeMux()
	for path, methods := range map[string]map[string]http.HandlerFunc{
		"/runs":              {"GET": a.list, "POST": a.create},
		"/runs/{id}":         {"GET": a.status},
		"/runs/{id}/history": {"GET": a.history},
		"/runs/{id}/rerun":   {"POST": a.rerun},
	} {
		for method, serve := range methods {
			mux.HandleFunc(method+" "+path, serve)
		}
		mux.HandleFunc(path, a.notAllowed(methods))
	}
	mux.HandleFunc("/", a.notFound)
	return mux
}

type api struct{ d *Dispatcher }

// notFound and notAllowed stand in for the mux's own answers, which are plain text.

func (a *api) notFound(w http.ResponseWriter, r *http.Request) {
	a.refuse(w, &requestError{http.StatusNotFound, "there is nothing at this path"}, nil)
}

func (a *api) notAllowed(methods map[string]http.HandlerFunc) http.HandlerFunc {
	allowed := strings.Join(slices.Sorted(maps.Keys(methods)), ", ")
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", allowed)
		a.refuse(w, &requestError{http.StatusMethodNotAllowed, "allowed here: " + allowed}, nil)
	}
}

func (a *api) create(w http.ResponseWriter, r *http.Request) {
	var n NewRun
	// A character may be written as an escape six times as long.
	if err := readJSON(w, r, int64(6*2*a.d.runs.maxInput+4096), false, &n); err != nil {
		a.refuse(w, err, nil)
		return
	}
	key, err := idempotencyKey(r.Header)
	switch {
	case err != nil:
		a.refuse(w, err, nil)
		return
	case key != "" && n.RunID != "" && n.RunID != key:
		a.refuse(w, fieldf("run_id", "it differs from the Idempotency-Key header: give one of them"), nil)
		return
	case key != "":
		n.RunID = key
	}
	run, err := a.d.Create(r.Context(), n)
	// Relative, because we may stand under any prefix. A caller who is told to ask again
	// gets none: its run may have been withdrawn.
	if status, _ := idempotent.HTTPStatus(err); run.RunID != "" && status < 500 {
		w.Header().Set("Location", "runs/"+url.PathEscape(run.RunID))
	}
	a.answer(w, run, err)
}

// answer says what became of a run that was asked for. A run that has succeeded is
// no problem but the result that the caller wants.
func (a *api) answer(w http.ResponseWriter, run Run, err error) {
	if err != nil && !errors.Is(err, idempotent.ErrAlreadySucceeded) {
		a.refuse(w, err, &run)
		return
	}
	status, _ := idempotent.HTTPStatus(err)
	writeJSON(w, status, "application/json", run)
}

func (a *api) status(w http.ResponseWriter, r *http.Request) {
	run, err := a.d.Status(r.Context(), r.PathValue("id"))
	if err != nil {
		a.refuse(w, err, nil)
		return
	}
	writeJSON(w, http.StatusOK, "application/json", run)
}

func (a *api) list(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	f := Filter{Status: Status(q.Get("status"))}
	for name, to := range map[string]func(int64){
		"limit":  func(n int64) { f.Limit = int(min(n, 1<<20)) },
		"before": func(n int64) { f.Before = n },
	} {
		s := q.Get(name)
		if s == "" {
			continue
		}
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < 1 {
			a.refuse(w, fieldf(name, "%.40q is not a number from 1", s), nil)
			return
		}
		to(n)
	}
	runs, err := a.d.runs.List(r.Context(), f)
	if err != nil {
		a.refuse(w, err, nil)
		return
	}
	writeJSON(w, http.StatusOK, "application/json", map[string]any{"runs": append([]Run{}, runs...)}) // none are [], not null
}

func (a *api) history(w http.ResponseWriter, r *http.Request) {
	run, err := a.d.Status(r.Context(), r.PathValue("id"))
	if err != nil {
		a.refuse(w, err, nil)
		return
	}
	list, err := a.d.runs.History(r.Context(), run.RunID)
	if err != nil {
		a.refuse(w, err, nil)
		return
	}
	writeJSON(w, http.StatusOK, "application/json", map[string]any{"run_id": run.RunID, "history": append([]HistoryEntry{}, list...)})
}

func (a *api) rerun(w http.ResponseWriter, r *http.Request) {
	var how struct {
		FromScratch bool `json:"from_scratch"`
	}
	if err := readJSON(w, r, 1024, true, &how); err != nil {
		a.refuse(w, err, nil)
		return
	}
	run, err := a.d.Rerun(r.Context(), r.PathValue("id"), how.FromScratch)
	a.answer(w, run, err)
}
