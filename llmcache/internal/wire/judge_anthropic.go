package wire

// anthropicJudge judges Anthropic's messages.
type anthropicJudge struct{}

type anthropicMessage struct {
	typed
	Model      string           `json:"model"`
	Content    []anthropicBlock `json:"content"`
	StopReason string           `json:"stop_reason"`
	Usage      *anthropicUsage  `json:"usage"`
}

type anthropicBlock struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// filled reports whether the block is an answer; thoughts alone are none.
func (b anthropicBlock) filled() bool {
	switch b.Type {
	case "text":
		return b.Text != ""
	case "", "thinking", "redacted_thinking":
		return false
	}
	return true
}

type anthropicUsage struct {
	Input      count `json:"input_tokens"`
	Output     count `json:"output_tokens"`
	CacheRead  count `json:"cache_read_input_tokens"`
	CacheWrite count `json:"cache_creation_input_tokens"`
}

// anthropicCounts collects usage over a stream: later events repeat some counts
// and leave out others.
type anthropicCounts struct {
	known                                bool
	input, output, cacheRead, cacheWrite int64
}

func (c *anthropicCounts) add(u *anthropicUsage) {
	if u == nil || !u.Input.ok && !u.Output.ok {
		return
	}
	c.known = true
	u.Input.take(&c.input)
	u.Output.take(&c.output)
	u.CacheRead.take(&c.cacheRead)
	u.CacheWrite.take(&c.cacheWrite)
}

// usage counts the cached tokens as input, which Anthropic does not.
func (c anthropicCounts) usage() Usage {
	return Usage{Known: c.known, Input: c.input + c.cacheRead + c.cacheWrite, Output: c.output, Cached: c.cacheRead, CacheWrite: c.cacheWrite}
}

func (anthropicJudge) Whole(body []byte) Outcome {
	var m anthropicMessage
	if !decode(body, &m) {
		return Outcome{Reason: reasonNotJSON}
	}
	s := anthropicStream{stopped: true}
	if m.kind("") == "error" {
		s.fault = reasonError
	}
	s.begin(m)
	return s.Outcome(true)
}

func (anthropicJudge) Stream() StreamJudge { return &anthropicStream{} }

type anthropicStream struct {
	model   string
	counts  anthropicCounts
	finish  finish
	filled  bool
	stopped bool // message_stop was seen
	fault   string
}

type anthropicEvent struct {
	typed
	Message anthropicMessage `json:"message"`
	Block   anthropicBlock   `json:"content_block"`
	Delta   struct {
		Text       string `json:"text"`
		StopReason string `json:"stop_reason"`
	} `json:"delta"`
	Usage *anthropicUsage `json:"usage"`
}

func (s *anthropicStream) Event(name string, data []byte) {
	e, kind := readTyped[anthropicEvent](name, data, &s.fault)
	switch kind {
	case "message_start":
		s.begin(e.Message)
	case "content_block_start":
		s.filled = s.filled || e.Block.filled()
	case "content_block_delta":
		s.filled = s.filled || e.Delta.Text != ""
	case "message_delta":
		s.stop(e.Delta.StopReason)
		s.counts.add(e.Usage)
	case "message_stop":
		s.stopped = true
	}
}

func (s *anthropicStream) begin(m anthropicMessage) {
	s.model = m.Model
	s.counts.add(m.Usage)
	for _, b := range m.Content {
		s.filled = s.filled || b.filled()
	}
	s.stop(m.StopReason)
}

func (s *anthropicStream) stop(reason string) {
	if f := readFinish(reason); f != finishNone {
		s.finish = f
	}
}

func (s *anthropicStream) Outcome(bool) Outcome {
	o := Outcome{Model: s.model, Usage: s.counts.usage(), Reason: s.fault}
	o.apply(s.finish)
	o.Empty = !s.filled && !o.Refused
	switch {
	case !s.stopped:
		o.Reason = firstReason(o.Reason, reasonNoEnd)
	case s.finish == finishNone:
		o.Reason = firstReason(o.Reason, reasonNoFinish)
	case s.finish == finishFailed:
		o.Reason = firstReason(o.Reason, reasonError)
	}
	o.Complete = o.Reason == ""
	return o
}
