package orchestrator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/hibiken/asynq"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/database"
)

// Status is where a run is, as the table has it.
type Status string

// The statuses. SUCCESS is terminal, FAILED is until a rerun.
const (
	StatusPending  Status = "PENDING"  // accepted, no attempt of this generation has begun
	StatusRunning  Status = "RUNNING"  // an attempt has begun; its worker may have died since
	StatusRetrying Status = "RETRYING" // an attempt failed, another will follow
	StatusSuccess  Status = "SUCCESS"
	StatusFailed   Status = "FAILED" // no retry is left, or none could help
)

// Ended reports whether nothing more will happen to the run by itself.
func (s Status) Ended() bool { return s == StatusSuccess || s == StatusFailed }

var unfinished = []Status{StatusPending, StatusRunning, StatusRetrying}

// JSON is a JSON document in a text column; "" for none.
type JSON string

// MarshalJSON returns the document, null for none.
func (j JSON) MarshalJSON() ([]byte, error) {
	if j == "" {
		return []byte("null"), nil
	}
	return []byte(j), nil
}

// UnmarshalJSON keeps the document in compact form; null becomes "".
func (j *JSON) UnmarshalJSON(b []byte) error {
	var buf bytes.Buffer
	if err := json.Compact(&buf, b); err != nil {
		return err
	}
	if *j = JSON(buf.String()); *j == "null" {
		*j = ""
	}
	return nil
}

// Millis is a point in time as the tables have it: UTC epoch milliseconds, 0 for never.
// In JSON it is RFC 3339 with milliseconds, and "" for never.
type Millis int64

// Time returns the zero time for never.
func (m Millis) Time() time.Time {
	if m == 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(m)).UTC()
}

// MarshalText implements encoding.TextMarshaler, and with it JSON.
func (m Millis) MarshalText() ([]byte, error) {
	if m == 0 {
		return nil, nil
	}
	return m.Time().AppendFormat(nil, "2006-01-02T15:04:05.000Z07:00"), nil
}

// UnmarshalText reads what MarshalText wrote, or any other RFC 3339 time.
func (m *Millis) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*m = 0
		return nil
	}
	t, err := time.Parse(time.RFC3339, string(b))
	if err == nil {
		*m = Millis(t.UnixMilli())
	}
	return err
}

// Run is a row of the table. Hosts may read the table with it; they must not write it.
// Its JSON form is what [Dispatcher.HTTP] answers: what only this package needs is left
// out.
type Run struct {
	ID          int64  `gorm:"column:id;primaryKey;autoIncrement" json:"id"`
	RunID       string `gorm:"column:run_id" json:"run_id"` // unique; see NewRun
	Requirement string `gorm:"column:requirement" json:"requirement"`
	Parameters  JSON   `gorm:"column:parameters" json:"parameters,omitempty"` // an object, or ""
	Status      Status `gorm:"column:status" json:"status"`
	Generation  int    `gorm:"column:generation" json:"generation"`     // 1, and one more with each rerun
	Token       int64  `gorm:"column:token" json:"-"`                   // of the last attempt that wrote here; 0 before the first
	Attempts    int    `gorm:"column:attempts" json:"attempts"`         // begun in this generation
	Phase       string `gorm:"column:phase" json:"phase,omitempty"`     // where the run is, or where it ended
	PhasesDone  int    `gorm:"column:phases_done" json:"phases_done"`   // of this run, earlier attempts' included
	PhasesTotal int    `gorm:"column:phases_total" json:"phases_total"` // 0 before the first phase began
	Error       string `gorm:"column:error" json:"error,omitempty"`     // of the last attempt that failed; at most 2,000 bytes
	Result      JSON   `gorm:"column:result" json:"result,omitempty"`   // what Orchestration.Result returned
	FromScratch bool   `gorm:"column:from_scratch" json:"-"`            // of the last rerun
	Settled     bool   `gorm:"column:settled" json:"-"`                 // it has ended and people were told: the sweeper skips it
	Revision    int64  `gorm:"column:revision" json:"-"`                // grows with every write of the row
	CreatedAt   Millis `gorm:"column:created_at;autoCreateTime:false" json:"created_at"`
	UpdatedAt   Millis `gorm:"column:updated_at;autoUpdateTime:false" json:"updated_at"`
	StartedAt   Millis `gorm:"column:started_at" json:"started_at,omitempty"` // of the generation's first attempt
	FinishedAt  Millis `gorm:"column:finished_at" json:"finished_at,omitempty"`
}

// Limits on what identifies and describes a run.
const (
	MaxRunIDLen = 128      // bytes; fits every database's index and the run key
	maxError    = 2000     // bytes
	maxDetail   = 1000     // bytes
	maxResult   = 64 << 10 // bytes
)

// FieldError says which field of what a caller gave is not allowed, and why. It
// matches idempotent.ErrInvalid.
type FieldError struct {
	Field  string // as it is called in JSON, for example "run_id"
	Reason string // with the limit
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Reason }

// Is matches idempotent.ErrInvalid.
func (e *FieldError) Is(target error) bool { return target == idempotent.ErrInvalid }

func fieldf(field, format string, args ...any) error {
	return &FieldError{field, fmt.Sprintf(format, args...)}
}

// checkRunID refuses what databases would not tell apart or not store, and what
// has no place in the path of a URL.
func checkRunID(id string) error {
	const field = "run_id"
	switch {
	case id == "":
		return fieldf(field, "it is empty")
	case len(id) > MaxRunIDLen:
		return fieldf(field, "it has %d bytes, at most %d are allowed", len(id), MaxRunIDLen)
	case !utf8.ValidString(id):
		return fieldf(field, "%q is not valid UTF-8", id)
	case strings.TrimSpace(id) != id:
		return fieldf(field, "%q begins or ends with a space", id)
	case strings.ContainsFunc(id, unicode.IsControl):
		return fieldf(field, "%q contains a control character", id)
	case id == "." || id == "..":
		return fieldf(field, "%q is a relative path", id)
	}
	return nil
}

// checkInput refuses a requirement or parameters that cannot be stored, and
// returns the parameters in compact form.
func checkInput(requirement string, parameters json.RawMessage, limit int) (JSON, error) {
	switch {
	case strings.TrimSpace(requirement) == "":
		return "", fieldf("requirement", "it is empty")
	case len(requirement) > limit:
		return "", fieldf("requirement", "it has %d bytes, at most %d are allowed", len(requirement), limit)
	case !utf8.ValidString(requirement):
		return "", fieldf("requirement", "it is not valid UTF-8")
	case strings.ContainsRune(requirement, 0):
		return "", fieldf("requirement", "it contains a NUL character")
	case len(parameters) > limit:
		return "", fieldf("parameters", "they have %d bytes, at most %d are allowed", len(parameters), limit)
	case len(parameters) == 0:
		return "", nil
	case !utf8.Valid(parameters):
		return "", fieldf("parameters", "they are not valid UTF-8")
	}
	var p JSON
	if err := p.UnmarshalJSON(parameters); err != nil {
		return "", fieldf("parameters", "they are not JSON: %v", err)
	}
	if p != "" && p[0] != '{' {
		return "", fieldf("parameters", "they must be a JSON object, or null")
	}
	return p, nil
}

// input identifies what a run is asked to do, whatever the order of its parameters.
func (r *Run) input() string {
	b, err := json.Marshal(struct {
		Requirement string `json:"requirement"`
		Parameters  JSON   `json:"parameters"`
	}{r.Requirement, r.Parameters})
	if err != nil { // a row that was damaged by hand
		b = []byte(r.Requirement + "\x00" + string(r.Parameters))
	}
	return idempotent.Fingerprint("input", b)
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	// idempotent.Permanent's mark is for asynq and says nothing to people.
	return database.Storable(strings.ReplaceAll(err.Error(), ": "+asynq.SkipRetry.Error(), ""), maxError)
}

// databaseError (cannot tell) says that the database did not answer as it should:
// a write may or may not have taken effect. It matches idempotent.ErrUnavailable.
type databaseError struct {
	doing string
	err   error
}

func cannotTell(doing string, err error) error { return &databaseError{doing, err} }

func (e *databaseError) Error() string        { return "onceq: database, " + e.doing + ": " + e.err.Error() }
func (e *databaseError) Unwrap() error        { return e.err }
func (e *databaseError) Is(target error) bool { return target == idempotent.ErrUnavailable }

// ErrNotFound (no): the table has no run of that id.
var ErrNotFound = errors.New("onceq: no such run")

// ErrSchema is wrapped by errors that say that the tables are not what this
// package needs, and why. See [Runs.Migrate].
var ErrSchema = errors.New("onceq: the runs tables are not usable")

// StaleError (lost): an attempt wanted to write to the row of a run that belongs
// to a later attempt, to a later generation or to the outcome by now. It was not
// written. It matches idempotent.ErrLeaseLost.
type StaleError struct {
	RunID      string
	Token      int64 // of the attempt that was refused
	Generation int
	Has        Run // the row as it is
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("onceq: attempt with token %d, generation %d, of run %q is stale: the row is %s, token %d, generation %d",
		e.Token, e.Generation, e.RunID, e.Has.Status, e.Has.Token, e.Has.Generation)
}

// Unwrap returns idempotent.ErrLeaseLost.
func (e *StaleError) Unwrap() error { return idempotent.ErrLeaseLost }
