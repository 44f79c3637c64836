package llmcache

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/nexuscore/onceq/internal/canonical"
	"github.com/nexuscore/onceq/internal/setting"
)

// Request is everything that changes the answer of a call made with [Do]. Two
// requests have one answer if and only if all their fields are equal, JSON
// compared by value: the order of members does not matter, 1 and 1.0 are one
// number, and large integers are exact. Leave credentials, trace IDs and the like
// out.
type Request struct {
	Provider string // who answers: "openai"
	Path     string // what is called there, when that matters
	Model    string // also names the price
	Task     string // what the call is for; put the prompt's version here
	System   string // system prompt or instructions
	Messages any    // the conversation: any value with a JSON form
	Tools    any    // tool definitions
	Params   any    // sampling parameters and limits: temperature, max_tokens, seed, stop...
	Extra    any    // whatever else changes the answer
	Stream   bool
}

// hash is the call's key, without scope and tenant.
func (r Request) hash() ([32]byte, error) {
	h := canonical.NewHasher("onceq llm do v1")
	for _, f := range []string{r.Provider, r.Path, r.Model, r.Task, r.System} {
		h.WriteString(f)
	}
	for _, f := range []struct {
		name  string
		value any
	}{{"Messages", r.Messages}, {"Tools", r.Tools}, {"Params", r.Params}, {"Extra", r.Extra}} {
		form, err := jsonForm(f.value)
		if err != nil {
			return [32]byte{}, setting.Invalidf("Request.%s has no key: %w", f.name, err)
		}
		h.Write(form)
	}
	h.WriteString(fmt.Sprint(r.Stream))
	return h.Sum(), nil
}

// jsonForm is the canonical JSON of v. encoding/json writes \ufffd where a string
// is no valid UTF-8: two prompts could have one key, so that is refused.
func jsonForm(v any) ([]byte, error) {
	raw, given := v.(json.RawMessage)
	if !given || raw == nil {
		var err error
		if raw, err = json.Marshal(v); err != nil {
			return nil, err
		}
		if bytes.Contains(raw, []byte(`\ufffd`)) {
			return nil, fmt.Errorf("a string in it is not valid UTF-8")
		}
	}
	return canonical.JSON(nil, raw)
}
