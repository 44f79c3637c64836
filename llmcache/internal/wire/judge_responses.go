package wire

import "encoding/json"

// responsesJudge judges OpenAI's Responses API.
type responsesJudge struct{}

type response struct {
	Error      json.RawMessage `json:"error"`
	Status     string          `json:"status"`
	Model      string          `json:"model"`
	Incomplete struct {
		Reason string `json:"reason"`
	} `json:"incomplete_details"`
	Output []responseItem `json:"output"`
	Usage  *openAIUsage   `json:"usage"`
}

type responseItem struct {
	Type    string `json:"type"`
	Content []struct {
		Type    string `json:"type"`
		Text    string `json:"text"`
		Refusal string `json:"refusal"`
	} `json:"content"`
}

// state tells what an item of the output holds. Reasoning alone is no answer.
func (i responseItem) state() (filled, refused bool) {
	switch i.Type {
	case "", "reasoning":
		return false, false
	case "message":
		for _, c := range i.Content {
			filled = filled || c.Text != ""
			refused = refused || c.Type == "refusal" || c.Refusal != ""
		}
		return filled, refused
	}
	return true, false
}

func (responsesJudge) Whole(body []byte) Outcome {
	var r response
	if !decode(body, &r) {
		return Outcome{Reason: reasonNotJSON}
	}
	s := responsesStream{}
	s.finish(r)
	return s.Outcome(true)
}

func (responsesJudge) Stream() StreamJudge { return &responsesStream{} }

type responsesStream struct {
	o               Outcome
	ended           bool // a terminal event was seen
	filled, refused bool
	fault           string
}

type responsesEvent struct {
	typed
	Delta    json.RawMessage `json:"delta"`
	Item     responseItem    `json:"item"`
	Response *response       `json:"response"`
}

func (s *responsesStream) Event(name string, data []byte) {
	e, kind := readTyped[responsesEvent](name, data, &s.fault)
	switch kind {
	case "error":
	case "response.output_text.delta":
		s.filled = s.filled || filled(e.Delta)
	case "response.refusal.delta":
		s.refused = true
	case "response.output_item.done":
		s.note(e.Item)
	case "response.completed", "response.incomplete", "response.failed", "response.cancelled":
		s.end(kind, e.Response)
	default:
		if e.Response != nil && e.Response.Model != "" {
			s.o.Model = e.Response.Model
		}
	}
}

func (s *responsesStream) note(i responseItem) {
	filled, refused := i.state()
	s.filled = s.filled || filled
	s.refused = s.refused || refused
}

func (s *responsesStream) end(kind string, last *response) {
	if last == nil {
		s.fault = firstReason(s.fault, "a terminal event without its response")
		return
	}
	r := *last
	if r.Status == "" {
		r.Status = kind[len("response."):]
	}
	s.finish(r)
}

// finish notes the response as it is at its end.
func (s *responsesStream) finish(r response) {
	s.ended = true
	if r.Model != "" {
		s.o.Model = r.Model
	}
	r.Usage.read(&s.o.Usage)
	for _, i := range r.Output {
		s.note(i)
	}
	switch {
	case present(r.Error):
		s.fault = firstReason(s.fault, reasonError)
	case r.Status == "incomplete":
		f := readFinish(r.Incomplete.Reason)
		if f != finishLength && f != finishRefused {
			s.fault = firstReason(s.fault, "incomplete")
		}
		s.o.apply(f)
	case r.Status != "completed":
		s.fault = firstReason(s.fault, "status is not completed")
	}
}

func (s *responsesStream) Outcome(bool) Outcome {
	o := s.o
	o.Refused = o.Refused || s.refused
	o.Empty = !s.filled && !o.Refused
	o.Reason = s.fault
	if !s.ended {
		o.Reason = firstReason(o.Reason, reasonNoEnd)
	}
	o.Complete = o.Reason == ""
	return o
}
