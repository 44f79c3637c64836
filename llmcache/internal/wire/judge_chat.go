package wire

import "encoding/json"

// chatJudge judges OpenAI's chat completions and legacy completions.
type chatJudge struct {
	choices int // asked for; a stream must finish as many
}

type chatAnswer struct {
	Error   json.RawMessage `json:"error"`
	Model   string          `json:"model"`
	Choices []chatChoice    `json:"choices"`
	Usage   *openAIUsage    `json:"usage"`
}

type chatChoice struct {
	Index        int         `json:"index"`
	FinishReason string      `json:"finish_reason"`
	Text         string      `json:"text"`
	Message      chatMessage `json:"message"`
	Delta        chatMessage `json:"delta"`
}

// chatMessage leaves reasoning out: thoughts without an answer are no answer.
type chatMessage struct {
	Content      json.RawMessage `json:"content"`
	Refusal      string          `json:"refusal"`
	ToolCalls    []struct{}      `json:"tool_calls"`
	FunctionCall json.RawMessage `json:"function_call"`
	Audio        json.RawMessage `json:"audio"`
	Images       []struct{}      `json:"images"`
}

func (m chatMessage) filled() bool {
	return filled(m.Content) || len(m.ToolCalls) > 0 || len(m.Images) > 0 || present(m.FunctionCall) || present(m.Audio)
}

// openAIUsage is the usage of every OpenAI API: they differ in the names.
type openAIUsage struct {
	PromptTokens     count        `json:"prompt_tokens"`
	CompletionTokens count        `json:"completion_tokens"`
	InputTokens      count        `json:"input_tokens"`
	OutputTokens     count        `json:"output_tokens"`
	PromptDetails    openAIDetail `json:"prompt_tokens_details"`
	InputDetails     openAIDetail `json:"input_tokens_details"`
	CacheHitTokens   count        `json:"prompt_cache_hit_tokens"` // DeepSeek
}

type openAIDetail struct {
	Cached count `json:"cached_tokens"`
}

func (u *openAIUsage) read(dst *Usage) {
	if u == nil || !u.PromptTokens.ok && !u.InputTokens.ok && !u.CompletionTokens.ok && !u.OutputTokens.ok {
		return
	}
	*dst = Usage{Known: true}
	u.PromptTokens.take(&dst.Input)
	u.InputTokens.take(&dst.Input)
	u.CompletionTokens.take(&dst.Output)
	u.OutputTokens.take(&dst.Output)
	u.CacheHitTokens.take(&dst.Cached)
	u.PromptDetails.Cached.take(&dst.Cached)
	u.InputDetails.Cached.take(&dst.Cached)
}

func (chatJudge) Whole(body []byte) Outcome {
	s := chatStream{}
	if !s.read(body) {
		return s.o.failed(reasonNotJSON)
	}
	// A server that ignores n says all it has to say in one document.
	return s.outcome(true)
}

func (j chatJudge) Stream() StreamJudge { return &chatStream{want: max(j.choices, 1)} }

type chatStream struct {
	o       Outcome
	want    int
	done    bool // [DONE] was seen
	fault   string
	choices []choiceState // by index
}

type choiceState struct {
	seen, filled, refused bool
	finish                finish
}

var doneMark = []byte("[DONE]")

func (s *chatStream) Event(name string, data []byte) {
	switch {
	case string(data) == string(doneMark):
		s.done = true
	case name == "error":
		s.fail(reasonError)
	case len(data) > 0 && !s.read(data):
		s.fail("an event is not JSON")
	}
}

func (s *chatStream) fail(reason string) {
	if s.fault == "" {
		s.fault = reason
	}
}

func (s *chatStream) read(data []byte) bool {
	var a chatAnswer
	if !decode(data, &a) {
		return false
	}
	if present(a.Error) {
		s.fail(reasonError)
	}
	if a.Model != "" {
		s.o.Model = a.Model
	}
	a.Usage.read(&s.o.Usage)
	for _, c := range a.Choices {
		if c.Index < 0 || c.Index >= maxChoices {
			s.fail("a choice out of range")
			continue
		}
		for len(s.choices) <= c.Index {
			s.choices = append(s.choices, choiceState{})
		}
		st := &s.choices[c.Index]
		st.seen = true
		st.filled = st.filled || c.Text != "" || c.Delta.filled() || c.Message.filled()
		st.refused = st.refused || c.Delta.Refusal != "" || c.Message.Refusal != ""
		if f := readFinish(c.FinishReason); f != finishNone {
			st.finish = f
		}
	}
	return true
}

func (s *chatStream) Outcome(bool) Outcome { return s.outcome(s.done) }

// doneOutcome is the Outcome once [DONE] will have been told.
func (s *chatStream) doneOutcome() Outcome { return s.outcome(true) }

func (s *chatStream) outcome(done bool) Outcome {
	o, finished, reason := s.o, 0, s.fault
	for _, c := range s.choices {
		if !c.seen {
			continue // an index that was left out is no choice that was begun
		}
		switch c.finish {
		case finishNone:
			reason = firstReason(reason, reasonNoFinish)
		case finishFailed:
			reason = firstReason(reason, reasonError)
		default:
			finished++
		}
		o.apply(c.finish)
		o.Refused = o.Refused || c.refused
		o.Empty = o.Empty || !c.filled && !c.refused && c.finish != finishRefused
	}
	if finished == 0 || finished < s.want {
		reason = firstReason(reason, reasonNoFinish)
	}
	if !done {
		reason = firstReason(s.fault, reasonNoEnd)
	}
	o.Complete, o.Reason = reason == "", reason
	return o
}

func firstReason(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
