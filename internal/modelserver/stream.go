package modelserver

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"unicode/utf8"
)

// chunkBytes is about how much text one delta carries: a few tokens, as
// providers send under load.
const chunkBytes = 24

// body writes an answer, up to where a fault ends it.
type body struct {
	a    *attempt
	left int // bytes until the fault; -1 without one
}

func (a *attempt) body() *body {
	b := &body{a: a, left: -1}
	if k := a.t.fault.Kind; k == KindCut || k == KindTruncate {
		b.left = a.t.fault.Bytes
	}
	return b
}

// write sends p at once. It reports false when the answer ends here.
func (b *body) write(p []byte) bool {
	a := b.a
	// Before the write only: a client that has read the end may hang up at once.
	if !a.await(0) {
		return false
	}
	faulty := b.left >= 0 && len(p) > b.left
	if faulty {
		p = p[:b.left]
	}
	_, err := a.w.Write(p)
	if err == nil {
		err = http.NewResponseController(a.w).Flush()
	}
	if err != nil {
		if a.s.ctx.Err() == nil {
			a.outcome = Left
		}
		return false
	}
	if b.left >= 0 {
		b.left -= len(p)
	}
	if faulty && a.t.fault.Kind == KindCut {
		panic(http.ErrAbortHandler)
	}
	return !faulty
}

func (a *attempt) whole(choices []choice) {
	type msg struct {
		Role    string  `json:"role"`
		Content string  `json:"content"`
		Refusal *string `json:"refusal"`
	}
	type entry struct {
		Index    int     `json:"index"`
		Message  msg     `json:"message"`
		Logprobs *string `json:"logprobs"`
		Finish   string  `json:"finish_reason"`
	}
	v := struct {
		ID          string  `json:"id"`
		Object      string  `json:"object"`
		Created     int64   `json:"created"`
		Model       string  `json:"model"`
		Choices     []entry `json:"choices"`
		Usage       usage   `json:"usage"`
		Fingerprint string  `json:"system_fingerprint"`
	}{a.id, "chat.completion", a.created, Model, nil, a.usage, Fingerprint}
	for i, c := range choices {
		v.Choices = append(v.Choices, entry{i, msg{"assistant", c.text, nil}, nil, c.finish})
	}
	p, err := json.Marshal(v)
	if err != nil {
		a.refuse(http.StatusInternalServerError, "server_error", err.Error())
		return
	}
	a.w.Header().Set("Content-Type", "application/json")
	a.status = http.StatusOK
	a.w.WriteHeader(a.status)
	if a.body().write(p) {
		a.outcome = Completed
	}
}

// chunk is one event of a stream.
type chunk struct {
	ID          string  `json:"id"`
	Object      string  `json:"object"`
	Created     int64   `json:"created"`
	Model       string  `json:"model"`
	Fingerprint string  `json:"system_fingerprint"`
	Choices     []piece `json:"choices"`
	Usage       *usage  `json:"usage,omitempty"`
}

type piece struct {
	Index    int     `json:"index"`
	Delta    delta   `json:"delta"`
	Logprobs *string `json:"logprobs"`
	Finish   *string `json:"finish_reason"`
}

type delta struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

func (a *attempt) stream(req chatRequest, choices []choice) {
	a.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	a.w.Header().Set("Cache-Control", "no-cache")
	a.status = http.StatusOK
	a.w.WriteHeader(a.status)
	b := a.body()
	for _, p := range a.pieces(choices) {
		if !a.await(a.t.latency.chunk) || !b.event(a.chunk(p)) {
			return
		}
	}
	if req.StreamOptions.IncludeUsage {
		last := a.chunk()
		last.Usage = &a.usage
		if !b.event(last) {
			return
		}
	}
	if b.write([]byte("data: [DONE]\n\n")) {
		a.outcome = Completed
	}
}

func (a *attempt) chunk(p ...piece) chunk {
	if p == nil {
		p = []piece{} // [], not null, as providers send it
	}
	return chunk{a.id, "chat.completion.chunk", a.created, Model, Fingerprint, p, nil}
}

// pieces is a whole stream: for each choice the role, the text in deltas, and
// the reason why it ended.
func (a *attempt) pieces(choices []choice) []piece {
	var out []piece
	empty := ""
	for i, c := range choices {
		out = append(out, piece{Index: i, Delta: delta{Role: "assistant", Content: &empty}})
		for _, text := range split(c.text) {
			out = append(out, piece{Index: i, Delta: delta{Content: &text}})
		}
		out = append(out, piece{Index: i, Finish: &c.finish})
	}
	return out
}

// split cuts text where words begin, and never inside a character.
func split(text string) []string {
	var out []string
	for len(text) > chunkBytes {
		n := strings.LastIndexByte(text[:chunkBytes], ' ')
		if n <= 0 {
			for n = chunkBytes; n > 1 && !utf8.RuneStart(text[n]); n-- {
			}
		}
		out = append(out, text[:n])
		text = text[n:]
	}
	if text != "" {
		out = append(out, text)
	}
	return out
}

func (b *body) event(c chunk) bool {
	p := bytes.NewBufferString("data: ")
	enc := json.NewEncoder(p)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(c); err != nil { // ends the line itself
		return false
	}
	p.WriteByte('\n')
	return b.write(p.Bytes())
}
