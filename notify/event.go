package notify

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/nexuscore/onceq/internal/canonical"
	"github.com/nexuscore/onceq/internal/panics"
)

// ErrInvalidEvent is wrapped by every error that [Outbox.Enqueue] returns about
// the event itself; it wraps [ErrInvalid]. The same event will never be accepted.
var ErrInvalidEvent = fmt.Errorf("%w event", ErrInvalid)

// Limits on what identifies an event, in bytes. They fit a MySQL index.
const (
	maxName  = 64
	maxRunID = 512
)

// Event is something that people are told once. RunID, Type and Generation
// identify it, per destination: a second event with the same three is the same
// event, and what it says is ignored.
type Event struct {
	// RunID is the run that it is about. Required, at most 512 bytes, no control
	// characters, no space at either end.
	RunID string
	// Type says what happened, for example "orchestrator_complete". Required, at
	// most 64 bytes, otherwise as RunID.
	Type string
	// Generation tells reruns of a run apart. 0 means that of the attempt to
	// which the context belongs, and 1 outside any attempt.
	Generation int
	// Payload is data about the event, encoded as JSON when it is enqueued. Nil
	// for none.
	Payload any
	// Content is what people read. A destination may need Text.
	Content
	// Destinations names who is told. Empty means all that the outbox has.
	Destinations []string
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalidEvent}, args...)...)
}

// checkName refuses what databases would not tell apart or not store: MySQL
// ignores spaces at the end when it compares, PostgreSQL stores no NUL.
func checkName(field, s string, limit int) error {
	switch {
	case s == "":
		return invalid("%s is empty", field)
	case len(s) > limit:
		return invalid("%s has %d bytes, allowed are %d", field, len(s), limit)
	case !utf8.ValidString(s):
		return invalid("%s %q is not valid UTF-8", field, s)
	case strings.TrimSpace(s) != s:
		return invalid("%s %q begins or ends with a space", field, s)
	case strings.ContainsFunc(s, unicode.IsControl):
		return invalid("%s %q contains a control character", field, s)
	}
	return nil
}

func (e *Event) check() error {
	if err := checkName("RunID", e.RunID, maxRunID); err != nil {
		return err
	}
	if err := checkName("Type", e.Type, maxName); err != nil {
		return err
	}
	if e.Generation < 0 || e.Generation > math.MaxInt32 {
		return invalid("Generation is %d, allowed are 0 to %d", e.Generation, math.MaxInt32)
	}
	if len(e.Blocks) > 0 {
		var blocks []json.RawMessage
		if err := json.Unmarshal(e.Blocks, &blocks); err != nil {
			return invalid("Blocks is not a JSON array: %w", err)
		}
	}
	return nil
}

// encode returns the columns payload and content, together at most limit bytes.
func (e *Event) encode(limit int) (payload, content string, err error) {
	// Size first: what is far too large is not worth encoding.
	raw, isRaw := e.Payload.(json.RawMessage)
	if n := len(raw) + len(e.Text) + len(e.Blocks) + len(e.Thread) + len(e.Link); n > limit {
		return "", "", tooLarge(n, limit)
	}
	if e.Payload != nil && (!isRaw || len(raw) > 0) {
		if payload, err = encodeJSON("Payload", e.Payload); err != nil {
			return "", "", err
		}
	}
	if content, err = encodeJSON("Content", e.Content); err != nil {
		return "", "", err
	}
	if n := len(payload) + len(content); n > limit {
		return "", "", tooLarge(n, limit)
	}
	return payload, content, nil
}

func tooLarge(n, limit int) error {
	return invalid("Payload and Content have %d bytes as JSON, allowed are %d (WithMaxPayload)", n, limit)
}

func encodeJSON(field string, v any) (s string, err error) {
	defer func() {
		if r := recover(); r != nil { // a MarshalJSON of the host's
			s, err = "", invalid("%s cannot be encoded: %w", field, panics.Error(r))
		}
	}()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // what the host wrote is what is sent
	if err := enc.Encode(v); err != nil {
		return "", invalid("%s cannot be encoded: %w", field, err)
	}
	if !utf8.Valid(b.Bytes()) {
		return "", invalid("%s is not valid UTF-8", field)
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// messageID names a message to its destination. A changed result would make
// every message in doubt impossible to find: see the golden test.
func messageID(destination, runID, event string, generation int) string {
	h := canonical.NewHasher("onceq/notify/1")
	h.WriteString(destination)
	h.WriteString(runID)
	h.WriteString(event)
	h.WriteString(strconv.Itoa(generation))
	sum := h.Sum()
	return hex.EncodeToString(sum[:16])
}
