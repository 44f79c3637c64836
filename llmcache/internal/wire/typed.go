package wire

import (
	"cmp"
	"encoding/json"
)

// typed is embedded by events that say in themselves what they are: those of
// Anthropic's messages and of OpenAI's responses.
type typed struct {
	Type  string          `json:"type"`
	Error json.RawMessage `json:"error"`
}

// kind is the event's type, for one without a type its name, and "error" for
// whatever reports one.
func (t typed) kind(name string) string {
	if name == "error" || present(t.Error) {
		return "error"
	}
	return cmp.Or(t.Type, name)
}

// readTyped reads one event and says of what kind it is. An error, and what is no
// JSON, is noted in fault; an event that says nothing is the zero E.
func readTyped[E interface{ kind(name string) string }](name string, data []byte, fault *string) (e E, kind string) {
	if len(data) == 0 || string(data) == string(doneMark) {
		return e, ""
	}
	if !decode(data, &e) {
		*fault = firstReason(*fault, "an event is not JSON")
		var none E
		return none, ""
	}
	if kind = e.kind(name); kind == "error" {
		*fault = firstReason(*fault, reasonError)
	}
	return e, kind
}
