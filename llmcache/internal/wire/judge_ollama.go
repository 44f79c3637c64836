package wire

import "encoding/json"

// ollamaJudge judges Ollama's chat and generate.
type ollamaJudge struct{}

type ollamaAnswer struct {
	Error    json.RawMessage `json:"error"`
	Model    string          `json:"model"`
	Response string          `json:"response"`
	Message  struct {
		Content   string            `json:"content"`
		ToolCalls []json.RawMessage `json:"tool_calls"`
		Images    []json.RawMessage `json:"images"`
	} `json:"message"`
	Done       bool   `json:"done"`
	DoneReason string `json:"done_reason"`
	Prompt     count  `json:"prompt_eval_count"`
	Eval       count  `json:"eval_count"`
}

func (ollamaJudge) Whole(body []byte) Outcome {
	s := &ollamaStream{}
	if !s.read(body) {
		return Outcome{Reason: reasonNotJSON}
	}
	return s.Outcome(true)
}

func (ollamaJudge) Stream() StreamJudge { return &ollamaStream{} }

type ollamaStream struct {
	o      Outcome
	finish finish
	done   bool
	filled bool
	fault  string
}

func (s *ollamaStream) Event(name string, data []byte) {
	switch {
	case name == "error":
		s.fault = firstReason(s.fault, reasonError)
	case !s.read(data):
		s.fault = firstReason(s.fault, "a line is not JSON")
	}
}

func (s *ollamaStream) read(data []byte) bool {
	var a ollamaAnswer
	if !decode(data, &a) {
		return false
	}
	if filled(a.Error) {
		s.fault = firstReason(s.fault, reasonError)
	}
	if a.Model != "" {
		s.o.Model = a.Model
	}
	s.filled = s.filled || a.Response != "" || a.Message.Content != "" || len(a.Message.ToolCalls) > 0 || len(a.Message.Images) > 0
	if a.Done {
		s.done, s.finish = true, readFinish(a.DoneReason)
	}
	if a.Prompt.ok || a.Eval.ok {
		// A prompt that Ollama still has in memory is not counted.
		s.o.Usage = Usage{Known: true, Input: a.Prompt.n, Output: a.Eval.n}
	}
	return true
}

func (s *ollamaStream) Outcome(bool) Outcome {
	o := s.o
	o.apply(s.finish)
	o.Empty = !s.filled && !o.Refused
	o.Reason = s.fault
	switch {
	case !s.done:
		o.Reason = firstReason(o.Reason, reasonNoEnd)
	case s.finish == finishFailed:
		o.Reason = firstReason(o.Reason, reasonError)
	}
	o.Complete = o.Reason == ""
	return o
}

// ollamaEmbedJudge judges embed and the older embeddings.
type ollamaEmbedJudge struct{ inputs int }

type ollamaEmbedAnswer struct {
	Error      json.RawMessage   `json:"error"`
	Model      string            `json:"model"`
	Embeddings []json.RawMessage `json:"embeddings"`
	Embedding  json.RawMessage   `json:"embedding"`
	Prompt     count             `json:"prompt_eval_count"`
}

func (j ollamaEmbedJudge) Whole(body []byte) Outcome {
	var a ollamaEmbedAnswer
	if !decode(body, &a) {
		return Outcome{Reason: reasonNotJSON}
	}
	o := Outcome{Model: a.Model, Usage: Usage{Known: a.Prompt.ok, Input: a.Prompt.n}}
	if a.Embedding != nil {
		a.Embeddings = append(a.Embeddings, a.Embedding)
	}
	vectors := 0
	for _, e := range a.Embeddings {
		if filled(e) {
			vectors++
		}
	}
	return o.data(filled(a.Error), vectors, len(a.Embeddings), j.inputs)
}

func (ollamaEmbedJudge) Stream() StreamJudge { return noStream{} }
