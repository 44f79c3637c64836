package wire

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
)

// Outcome is what is known of an answer.
type Outcome struct {
	Complete   bool   // the provider said that this was all, and nothing went wrong
	Truncated  bool   // it stopped at a length limit, not at its end
	Refused    bool   // the model or a filter declined
	Empty      bool   // it holds nothing: no text, no call, no data, and no refusal
	Perishable bool   // it holds links that expire within the hour
	Reason     string // why it is not Complete; "" when it is
	Model      string // as the answer names it
	Usage      Usage
}

// Usage counts tokens. Of an answer that was cut it is what had been said so far.
type Usage struct {
	Known      bool  // the provider said
	Input      int64 // all input tokens, cached ones included
	Output     int64 // all output tokens, reasoning included
	Cached     int64 // of Input: read from the provider's prompt cache
	CacheWrite int64 // of Input: written to it
}

// WhyNot returns why the answer must not be stored, "" when it may. shared is
// about answers that other runs will see: those that were cut off by a length
// limit or hold expiring links serve no one else. refusals says that refused
// answers may be stored.
func (o Outcome) WhyNot(shared, refusals bool) string {
	switch {
	case !o.Complete:
		return o.Reason
	case o.Empty:
		return "empty"
	case o.Refused && !refusals:
		return "refused"
	case o.Truncated && shared:
		return "cut off by length"
	case o.Perishable && shared:
		return "holds links that expire"
	}
	return ""
}

// Judge decides whether an answer to a 2xx is a complete success. It must be safe
// for concurrent use; what StreamJudge returns need not be.
type Judge interface {
	// Whole judges an answer that came in one piece.
	Whole(body []byte) Outcome
	// Stream returns a judge for one answer that comes in events.
	Stream() StreamJudge
}

// StreamJudge watches the events of one answer in their order.
type StreamJudge interface {
	// Event is told one event: its name, where the framing has names, and its
	// data, which is valid only during the call.
	Event(name string, data []byte)
	// Outcome returns what is known so far. ended says that the stream has ended
	// in order and nothing can follow; a provider whose last event is
	// unmistakable does not wait for it.
	Outcome(ended bool) Outcome
}

// Assess judges an answer that came in one piece. Of an answer that is no
// success it still reads the usage.
func (c Call) Assess(status int, h http.Header, body []byte) Outcome {
	if reason := notSuccess(status, h); reason != "" {
		return Outcome{Reason: reason}
	}
	if c.Judge == nil {
		return Outcome{Reason: "no judge"}
	}
	return c.Judge.Whole(body)
}

func notSuccess(status int, h http.Header) string {
	if status < 200 || status > 299 || status == http.StatusPartialContent {
		return "status " + strconv.Itoa(status)
	}
	if e := h.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return "the answer is encoded as " + e
	}
	return ""
}

// Reasons that several judges give.
const (
	reasonNotJSON  = "not one whole JSON document"
	reasonError    = "the provider reports an error"
	reasonNoEnd    = "the stream has not reached its terminal event"
	reasonNoFinish = "no finish reason"
	reasonNoData   = "no data"
)

// maxChoices bounds how many answers of one call are told apart.
const maxChoices = 4096

// decode reads JSON into v. A member of another type than expected is as good as
// absent; what is no JSON at all is reported.
func decode(data []byte, v any) bool {
	err := json.Unmarshal(data, v)
	if _, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return true
	}
	return err == nil
}

// present reports whether a member is there and not null.
func present(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// filled reports whether a member is there and holds something.
func filled(raw json.RawMessage) bool {
	switch string(raw) {
	case "", "null", `""`, "[]", "{}":
		return false
	}
	return true
}

// count is a number of tokens. It never fails to decode: what cannot be read is
// absent, for a price is no reason to lose an answer.
type count struct {
	n  int64
	ok bool
}

func (c *count) UnmarshalJSON(b []byte) error {
	s := strings.Trim(string(b), `"`)
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(f) || f < 0 || f > 1<<53 {
		return nil
	}
	*c = count{n: int64(f), ok: true}
	return nil
}

// take overwrites dst when c was given.
func (c count) take(dst *int64) {
	if c.ok {
		*dst = c.n
	}
}

// finish is why an answer ended.
type finish int

const (
	finishNone finish = iota
	finishStop
	finishLength
	finishRefused
	finishFailed
)

// finishes reads finish reasons of all providers; one that is not listed is an
// ordinary end.
var finishes = map[string]finish{
	"": finishNone, "null": finishNone,
	"length": finishLength, "max_tokens": finishLength, "max_output_tokens": finishLength,
	"model_length": finishLength, "model_context_window_exceeded": finishLength,
	"content_filter": finishRefused, "refusal": finishRefused, "safety": finishRefused,
	"error": finishFailed, "abort": finishFailed, "aborted": finishFailed, "cancelled": finishFailed,
	"insufficient_system_resource": finishFailed, "network_error": finishFailed,
}

func readFinish(reason string) finish {
	if f, ok := finishes[strings.ToLower(reason)]; ok {
		return f
	}
	return finishStop
}

// apply notes why one of the answers ended.
func (o *Outcome) apply(f finish) {
	switch f {
	case finishLength:
		o.Truncated = true
	case finishRefused:
		o.Refused = true
	}
}

// failed returns o as the outcome of an answer that is no success.
func (o Outcome) failed(reason string) Outcome {
	o.Complete, o.Reason = false, reason
	return o
}
