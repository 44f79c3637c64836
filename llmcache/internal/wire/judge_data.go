package wire

import "encoding/json"

// embeddingJudge judges OpenAI's embeddings.
type embeddingJudge struct{ inputs int }

type embeddingAnswer struct {
	Error json.RawMessage `json:"error"`
	Model string          `json:"model"`
	Data  []struct {
		Embedding json.RawMessage `json:"embedding"`
	} `json:"data"`
	Usage *openAIUsage `json:"usage"`
}

func (j embeddingJudge) Whole(body []byte) Outcome {
	var a embeddingAnswer
	if !decode(body, &a) {
		return Outcome{Reason: reasonNotJSON}
	}
	o := Outcome{Model: a.Model}
	a.Usage.read(&o.Usage)
	vectors := 0
	for _, d := range a.Data {
		if filled(d.Embedding) {
			vectors++
		}
	}
	return o.data(present(a.Error), vectors, len(a.Data), j.inputs)
}

// data judges an answer of n items, filled of which hold something. want is how
// many the request asked for, 0 for any.
func (o Outcome) data(failed bool, filled, n, want int) Outcome {
	switch {
	case failed:
		return o.failed(reasonError)
	case n == 0:
		o.Empty = true
		return o.failed(reasonNoData)
	case filled < n || n < want:
		return o.failed("fewer answers than were asked for")
	}
	o.Complete = true
	return o
}

func (j embeddingJudge) Stream() StreamJudge { return noStream{} }

// noStream judges streams of APIs that have none.
type noStream struct{}

func (noStream) Event(string, []byte) {}

func (noStream) Outcome(bool) Outcome { return Outcome{Reason: "this API does not stream"} }

// imageJudge judges OpenAI's images.
type imageJudge struct{ images int }

type image struct {
	URL string          `json:"url"`
	B64 json.RawMessage `json:"b64_json"`
}

type imageAnswer struct {
	Error json.RawMessage `json:"error"`
	Data  []image         `json:"data"`
	Usage *openAIUsage    `json:"usage"`
}

func (imageJudge) Whole(body []byte) Outcome {
	var a imageAnswer
	if !decode(body, &a) {
		return Outcome{Reason: reasonNotJSON}
	}
	var o Outcome
	a.Usage.read(&o.Usage)
	images := 0
	for _, d := range a.Data {
		if filled(d.B64) || d.URL != "" {
			images++
		}
		o.Perishable = o.Perishable || d.URL != "" && !filled(d.B64)
	}
	// Images that a filter withheld are not there; what is there is all.
	return o.data(present(a.Error), images, len(a.Data), 0)
}

func (j imageJudge) Stream() StreamJudge { return &dataStream{want: max(j.images, 1)} }

// audioJudge judges transcriptions and translations.
type audioJudge struct {
	plain bool // the answer is text or subtitles, no JSON
}

type audioAnswer struct {
	Error json.RawMessage `json:"error"`
	Text  string          `json:"text"`
	Usage *openAIUsage    `json:"usage"`
}

func (j audioJudge) Whole(body []byte) Outcome {
	if j.plain {
		// Nothing in the text says that it is whole: the transport must have seen
		// the body end in order.
		return Outcome{Complete: true, Empty: len(body) == 0}
	}
	var a audioAnswer
	if !decode(body, &a) {
		return Outcome{Reason: reasonNotJSON}
	}
	var o Outcome
	a.Usage.read(&o.Usage)
	if present(a.Error) {
		return o.failed(reasonError)
	}
	o.Complete, o.Empty = true, a.Text == ""
	return o
}

func (audioJudge) Stream() StreamJudge { return &dataStream{want: 1} }

// dataStream judges streams that end with an event for each finished piece of
// data: images and transcripts.
type dataStream struct {
	o      Outcome
	want   int
	done   int
	filled int
	fault  string
}

type dataEvent struct {
	Type  string          `json:"type"`
	Error json.RawMessage `json:"error"`
	B64   json.RawMessage `json:"b64_json"`
	Text  string          `json:"text"`
	Usage *openAIUsage    `json:"usage"`
}

func (s *dataStream) Event(name string, data []byte) {
	if len(data) == 0 || string(data) == string(doneMark) {
		return
	}
	var e dataEvent
	if !decode(data, &e) {
		s.fault = firstReason(s.fault, "an event is not JSON")
		return
	}
	if name == "error" || e.Type == "error" || present(e.Error) {
		s.fault = firstReason(s.fault, reasonError)
		return
	}
	switch e.Type {
	case "image_generation.completed", "image_edit.completed", "transcript.text.done":
		s.done++
		if filled(e.B64) || e.Text != "" {
			s.filled++
		}
		e.Usage.read(&s.o.Usage)
	}
}

func (s *dataStream) Outcome(bool) Outcome {
	o := s.o
	o.Empty = s.filled < s.done
	o.Reason = s.fault
	if s.done < s.want {
		o.Reason = firstReason(o.Reason, reasonNoEnd)
	}
	o.Complete = o.Reason == ""
	return o
}
