package orchestrator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/nexuscore/onceq/idempotent"
)

// problem is the body of an error, after RFC 9457.
type problem struct {
	Type       string `json:"type"`
	Title      string `json:"title"`
	Status     int    `json:"status"`
	Detail     string `json:"detail"`
	Field      string `json:"field,omitempty"`  // what is not allowed
	RunID      string `json:"run_id,omitempty"` // of the run that is in the way
	State      string `json:"state,omitempty"`
	RetryAfter int64  `json:"retry_after,omitempty"` // seconds
}

// requestError is what is wrong with a request as such.
type requestError struct {
	status int
	detail string
}

func (e *requestError) Error() string { return e.detail }

// refuse answers with a problem. What the database or Redis said, and which process
// has a run, is not told to strangers.
func (a *api) refuse(w http.ResponseWriter, err error, run *Run) {
	status, after := idempotent.HTTPStatus(err)
	p := problem{Type: "about:blank", Detail: err.Error()}
	if req, ok := errors.AsType[*requestError](err); ok {
		status = req.status
	}
	if field, ok := errors.AsType[*FieldError](err); ok {
		p.Field = field.Field
	}
	if dup, ok := errors.AsType[*idempotent.DuplicateError](err); ok {
		p.State, p.Detail = dup.State.String(), fmt.Sprintf("the run is %s already", dup.State)
		if dup.State == idempotent.StateFailed {
			p.Detail = "the run has failed; a rerun starts it again"
		}
	}
	if other, ok := errors.AsType[*idempotent.PayloadMismatchError](err); ok {
		p.State, p.Detail = other.State.String(), "the ID is that of a run with another input: use a new one for other work"
	}
	switch {
	case errors.Is(err, ErrNotFound):
		status = http.StatusNotFound
	case status >= 500:
		a.d.runs.logger.Error("onceq: request not answered", "err", err)
		p.Detail = "no answer from the queue or the database; the request may or may not have been accepted: repeat it with the same Idempotency-Key"
		if status == http.StatusInternalServerError {
			p.Detail = "internal error"
		}
	}
	if run != nil {
		p.RunID = run.RunID
	}
	p.Title, p.Status = http.StatusText(status), status
	idempotent.SetRetryAfter(w.Header(), after)
	p.RetryAfter, _ = strconv.ParseInt(w.Header().Get("Retry-After"), 10, 64) // 0 without
	writeJSON(w, status, "application/problem+json", p)
}

func writeJSON(w http.ResponseWriter, status int, contentType string, v any) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil { // a row damaged by hand: its JSON column is none
		status, contentType = http.StatusInternalServerError, "application/problem+json"
		b.Reset()
		b.WriteString(`{"type":"about:blank","title":"Internal Server Error","status":500,"detail":"internal error"}`)
	}
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // a caller who hung up is told nothing
}

// readJSON reads one JSON object of at most limit bytes.
func readJSON(w http.ResponseWriter, r *http.Request, limit int64, mayBeEmpty bool, into any) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &requestError{http.StatusRequestEntityTooLarge, fmt.Sprintf("body: it is larger than the %d bytes that are allowed", tooLarge.Limit)}
	}
	if err != nil {
		return &requestError{http.StatusBadRequest, "body: it could not be read"}
	}
	body = bytes.TrimSpace(body)
	if len(body) == 0 && mayBeEmpty {
		return nil
	}
	if !utf8.Valid(body) { // the decoder would change it
		return fieldf("body", "it is not valid UTF-8")
	}
	if len(body) == 0 || body[0] != '{' {
		return fieldf("body", "it must be a JSON object")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return explain(err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return fieldf("body", "there is something after the JSON object")
	}
	return nil
}

// explain names the field that the decoder stumbled on.
func explain(err error) error {
	if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fieldf(t.Field, "it is a JSON %s, a %s is needed", t.Value, jsonType(t.Type.Kind().String()))
	}
	if s, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fieldf("body", "it is not JSON, at byte %d: %s", s.Offset, strings.TrimPrefix(s.Error(), "json: "))
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return fieldf(strings.Trim(name, `"`), "there is no such field")
	}
	return fieldf("body", "it is not JSON: %s", strings.TrimPrefix(err.Error(), "json: "))
}

func jsonType(kind string) string {
	if kind == "bool" {
		return "boolean"
	}
	return kind
}

// idempotencyKey reads the header as the IETF draft has it, a quoted string, and as
// most clients send it, without the quotes.
func idempotencyKey(h http.Header) (string, error) {
	const field = "Idempotency-Key"
	list := h.Values(field)
	if len(list) == 0 {
		return "", nil
	}
	if len(list) > 1 {
		return "", fieldf(field, "the header is there %d times", len(list))
	}
	key := list[0]
	if len(key) > 1 && key[0] == '"' && key[len(key)-1] == '"' {
		key = strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(key[1 : len(key)-1])
	}
	if err := checkRunID(key); err != nil {
		f, _ := errors.AsType[*FieldError](err)
		return "", fieldf(field, "%s", f.Reason)
	}
	return key, nil
}
