package wire

import (
	"encoding/json"
	"strings"
)

// geminiJudge judges generateContent and streamGenerateContent.
type geminiJudge struct{ candidates int }

type geminiAnswer struct {
	Error      json.RawMessage   `json:"error"`
	Model      string            `json:"modelVersion"`
	Candidates []geminiCandidate `json:"candidates"`
	Feedback   struct {
		BlockReason json.RawMessage `json:"blockReason"`
	} `json:"promptFeedback"`
	Usage *geminiUsage `json:"usageMetadata"`
}

type geminiCandidate struct {
	Index        int             `json:"index"`
	FinishReason json.RawMessage `json:"finishReason"`
	Content      struct {
		Parts []geminiPart `json:"parts"`
	} `json:"content"`
}

type geminiPart struct {
	Text     string          `json:"text"`
	Thought  bool            `json:"thought"`
	Function json.RawMessage `json:"functionCall"`
	Inline   json.RawMessage `json:"inlineData"`
	File     json.RawMessage `json:"fileData"`
	Code     json.RawMessage `json:"executableCode"`
	Result   json.RawMessage `json:"codeExecutionResult"`
}

func (p geminiPart) filled() bool {
	return !p.Thought && (p.Text != "" || present(p.Function) || present(p.Inline) ||
		present(p.File) || present(p.Code) || present(p.Result))
}

type geminiUsage struct {
	Prompt     count `json:"promptTokenCount"`
	ToolPrompt count `json:"toolUsePromptTokenCount"`
	Candidates count `json:"candidatesTokenCount"`
	Thoughts   count `json:"thoughtsTokenCount"`
	Cached     count `json:"cachedContentTokenCount"`
}

func (u *geminiUsage) read(dst *Usage) {
	if u == nil || !u.Prompt.ok && !u.Candidates.ok {
		return
	}
	*dst = Usage{Known: true, Input: u.Prompt.n + u.ToolPrompt.n, Output: u.Candidates.n + u.Thoughts.n, Cached: u.Cached.n}
}

// geminiFinishes reads finish reasons by name and, since some clients ask for
// enums as integers, by number. From 5 on the numbers mean different things in
// AI Studio and Vertex; those of which one meaning is a failure count as failed.
var geminiFinishes = map[string]finish{
	"": finishNone, "null": finishNone,
	"STOP": finishStop, "1": finishStop,
	"MAX_TOKENS": finishLength, "2": finishLength,
	"SAFETY": finishRefused, "3": finishRefused,
	"RECITATION": finishRefused, "4": finishRefused,
	"LANGUAGE": finishRefused, "BLOCKLIST": finishRefused, "PROHIBITED_CONTENT": finishRefused, "SPII": finishRefused,
	"6": finishRefused, "7": finishRefused, "8": finishRefused,
	"IMAGE_SAFETY": finishRefused, "IMAGE_PROHIBITED_CONTENT": finishRefused, "IMAGE_RECITATION": finishRefused,
	"MODEL_ARMOR": finishRefused,
}

// readGeminiFinish takes every reason it does not know for a failure: Gemini's
// further ones are malformed calls, unexpected tools and the like.
func readGeminiFinish(raw json.RawMessage) finish {
	if f, ok := geminiFinishes[strings.Trim(string(raw), `"`)]; ok {
		return f
	}
	return finishFailed
}

func (geminiJudge) Whole(body []byte) Outcome {
	s := geminiStream{}
	if !s.read(body) {
		return Outcome{Reason: reasonNotJSON}
	}
	return s.Outcome(true)
}

func (j geminiJudge) Stream() StreamJudge { return &geminiStream{want: max(j.candidates, 1)} }

type geminiStream struct {
	o          Outcome
	want       int
	blocked    bool // the prompt was refused: there are no candidates
	fault      string
	candidates []choiceState
}

func (s *geminiStream) Event(name string, data []byte) {
	switch {
	case name == "error":
		s.fault = firstReason(s.fault, reasonError)
	case len(data) > 0 && !s.read(data):
		s.fault = firstReason(s.fault, "an event is not JSON")
	}
}

func (s *geminiStream) read(data []byte) bool {
	var a geminiAnswer
	if !decode(data, &a) {
		return false
	}
	if present(a.Error) {
		s.fault = firstReason(s.fault, reasonError)
	}
	if a.Model != "" {
		s.o.Model = a.Model
	}
	a.Usage.read(&s.o.Usage)
	switch strings.Trim(string(a.Feedback.BlockReason), `"`) {
	case "", "null", "0", "BLOCK_REASON_UNSPECIFIED", "BLOCKED_REASON_UNSPECIFIED":
	default:
		s.blocked = true
	}
	for _, c := range a.Candidates {
		s.note(c)
	}
	return true
}

func (s *geminiStream) note(c geminiCandidate) {
	if c.Index < 0 || c.Index >= maxChoices {
		s.fault = firstReason(s.fault, "a candidate out of range")
		return
	}
	for len(s.candidates) <= c.Index {
		s.candidates = append(s.candidates, choiceState{})
	}
	st := &s.candidates[c.Index]
	st.seen = true
	for _, p := range c.Content.Parts {
		st.filled = st.filled || p.filled()
	}
	if f := readGeminiFinish(c.FinishReason); f != finishNone {
		st.finish = f
	}
}

// Outcome waits for the end: Gemini has no event that says it is the last, and
// candidates finish one by one.
func (s *geminiStream) Outcome(ended bool) Outcome {
	o, finished, reason := s.o, 0, s.fault
	for _, c := range s.candidates {
		if !c.seen {
			continue
		}
		switch c.finish {
		case finishNone:
			reason = firstReason(reason, reasonNoFinish)
		case finishFailed:
			reason = firstReason(reason, "a candidate failed")
		default:
			finished++
		}
		o.apply(c.finish)
		o.Empty = o.Empty || !c.filled && c.finish != finishRefused
	}
	switch {
	case s.blocked && len(s.candidates) == 0:
		o.Refused = true
	case finished == 0 || finished < s.want:
		reason = firstReason(reason, reasonNoFinish)
	}
	if !ended {
		reason = firstReason(s.fault, reasonNoEnd)
	}
	o.Complete, o.Reason = reason == "", reason
	return o
}

// geminiEmbedJudge judges embedContent, batchEmbedContents and predict.
type geminiEmbedJudge struct{ inputs int }

type geminiVector struct {
	Values json.RawMessage `json:"values"`
}

type geminiEmbedAnswer struct {
	Error       json.RawMessage   `json:"error"`
	Embedding   *geminiVector     `json:"embedding"`
	Embeddings  []geminiVector    `json:"embeddings"`
	Predictions []json.RawMessage `json:"predictions"`
	Usage       *geminiUsage      `json:"usageMetadata"`
}

func (j geminiEmbedJudge) Whole(body []byte) Outcome {
	var a geminiEmbedAnswer
	if !decode(body, &a) {
		return Outcome{Reason: reasonNotJSON}
	}
	var o Outcome
	a.Usage.read(&o.Usage)
	vectors, n := 0, len(a.Embeddings)+len(a.Predictions)
	if a.Embedding != nil {
		n++
		a.Embeddings = append(a.Embeddings, *a.Embedding)
	}
	for _, v := range a.Embeddings {
		if filled(v.Values) {
			vectors++
		}
	}
	for _, p := range a.Predictions {
		if filled(p) {
			vectors++
		}
	}
	return o.data(present(a.Error), vectors, n, j.inputs)
}

func (geminiEmbedJudge) Stream() StreamJudge { return noStream{} }
