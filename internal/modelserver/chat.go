package modelserver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"
)

const (
	maxBody    = 8 << 20
	maxChoices = 8
)

// chatRequest is the part of the request that the script looks at.
type chatRequest struct {
	Model         string    `json:"model"`
	Messages      []message `json:"messages"`
	Stream        bool      `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	N                   *int `json:"n"`
	MaxTokens           *int `json:"max_tokens"`
	MaxCompletionTokens *int `json:"max_completion_tokens"`
}

type message struct {
	Role    string  `json:"role"`
	Content content `json:"content"`
}

// content is a string, or a list of parts of which the text ones count.
type content string

func (c *content) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) == nil {
		*c = content(text)
		return nil
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if err := json.Unmarshal(b, &parts); err != nil {
		return errors.New("content is neither a string nor a list of parts")
	}
	for _, p := range parts {
		text += p.Text
	}
	*c = content(text)
	return nil
}

func (r chatRequest) check() error {
	switch {
	case r.Model == "":
		return errors.New("model is missing")
	case len(r.Messages) == 0:
		return errors.New("messages is missing or empty")
	case r.N != nil && (*r.N < 1 || *r.N > maxChoices):
		return fmt.Errorf("n is %d, allowed are 1 to %d", *r.N, maxChoices)
	case r.limit() < 1:
		return fmt.Errorf("max_completion_tokens is %d, allowed are 1 and more", r.limit())
	}
	return nil
}

func (r chatRequest) choices() int {
	if r.N == nil {
		return 1
	}
	return *r.N
}

// limit is how many tokens an answer may have.
func (r chatRequest) limit() int {
	switch {
	case r.MaxCompletionTokens != nil:
		return *r.MaxCompletionTokens
	case r.MaxTokens != nil:
		return *r.MaxTokens
	}
	return 1 << 20
}

// text joins what the given roles said.
func (r chatRequest) text(roles ...string) string {
	var b strings.Builder
	for _, m := range r.Messages {
		for _, role := range roles {
			if m.Role == role {
				b.WriteString(string(m.Content))
				b.WriteByte('\n')
			}
		}
	}
	return b.String()
}

var marker = regexp.MustCompile(`(?m)^[ \t]*(phase|task):[ \t]*([a-z0-9][a-z0-9_-]{0,63})[ \t\r]*$`)

// markers reads the first phase: and task: lines of the system text.
func (r chatRequest) markers() (phase, task string) {
	for _, m := range marker.FindAllStringSubmatch(r.text("system", "developer"), -1) {
		switch {
		case m[1] == "phase" && phase == "":
			phase = m[2]
		case m[1] == "task" && task == "":
			task = m[2]
		}
	}
	return phase, task
}

// chat is POST /v1/chat/completions.
func (s *Server) chat(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		apiError(w, http.StatusRequestEntityTooLarge, "invalid_request_error", fmt.Sprintf("the body cannot be read, or has more than %d bytes", maxBody))
		return
	}
	var req chatRequest
	err = json.Unmarshal(body, &req)
	if err == nil {
		err = req.check()
	}
	sum := sha256.Sum256(body)
	call := Call{
		Hash: hex.EncodeToString(sum[:]), Model: short(req.Model), Stream: req.Stream,
		IdempotencyKey: short(r.Header.Get("Idempotency-Key")),
		Retry:          short(r.Header.Get("X-Stainless-Retry-Count")),
		Client:         short(r.UserAgent()),
	}
	call.Phase, call.Task = req.markers()
	t, ok := s.arrive(call, err == nil)
	if !ok {
		apiError(w, http.StatusServiceUnavailable, "server_error", fmt.Sprintf("the record is full with %d calls; DELETE /_calls empties it", maxCalls))
		return
	}
	a := &attempt{s: s, t: t, w: w, ctx: r.Context(), outcome: Cut}
	defer func() { t.end(a.status, a.outcome, a.usage.Prompt, a.usage.Completion) }()
	if err != nil {
		a.refuse(http.StatusBadRequest, "invalid_request_error", err.Error())
		return
	}
	a.id = fmt.Sprintf("chatcmpl-%s-%d", call.Hash[:16], t.seq)
	a.created = t.start.Unix()
	a.answer(req, call)
}

// attempt is one call on its way to an answer.
type attempt struct {
	s       *Server
	t       *ticket
	w       http.ResponseWriter
	ctx     context.Context // ends when the client goes away
	id      string
	created int64

	status  int
	outcome Outcome // Cut until something better is known
	usage   usage
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

type choice struct {
	text   string
	finish string
}

func (a *attempt) answer(req chatRequest, call Call) {
	if !a.await(a.t.latency.call) {
		return
	}
	switch f := a.t.fault; f.Kind {
	case KindRateLimit:
		seconds := int((f.RetryAfter + 999_999_999) / 1_000_000_000)
		a.w.Header().Set("Retry-After", fmt.Sprint(seconds))
		a.refuse(http.StatusTooManyRequests, "rate_limit_exceeded", "told to refuse: rate limit")
		return
	case KindError:
		status := f.Status
		if status == 0 {
			status = http.StatusInternalServerError
		}
		a.refuse(status, "server_error", "told to fail")
		return
	case KindDrop:
		panic(http.ErrAbortHandler) // net/http then closes the connection, unanswered and unlogged
	case KindHang:
		select {
		case <-a.t.hanging:
		case <-a.ctx.Done():
		case <-a.s.ctx.Done():
		}
		if !a.await(0) {
			return
		}
	}
	text := answerTo(call.Phase, call.Task, req)
	choices := make([]choice, req.choices())
	for i := range choices {
		choices[i] = a.cutOff(req, sampled(text, a.t.sample, i))
		a.usage.Completion += tokens(choices[i].text)
	}
	for _, m := range req.Messages {
		a.usage.Prompt += tokens(string(m.Content)) + 4
	}
	a.usage.Total = a.usage.Prompt + a.usage.Completion
	if req.Stream {
		a.stream(req, choices)
	} else {
		a.whole(choices)
	}
}

// await pauses; if the client leaves or the server closes meanwhile, it records
// which and reports false.
func (a *attempt) await(d time.Duration) bool {
	if a.s.wait(a.ctx, d) {
		return true
	}
	// Close ends the clients' contexts too, after the server's own.
	if a.s.ctx.Err() != nil {
		panic(http.ErrAbortHandler)
	}
	a.outcome = Left
	return false
}

// cutOff applies the request's token limit.
func (a *attempt) cutOff(req chatRequest, text string) choice {
	if max := req.limit(); tokens(text) > max {
		return choice{strings.ToValidUTF8(text[:max*bytesPerToken], ""), "length"}
	}
	return choice{text, "stop"}
}

// bytesPerToken is a fair average for English text.
const bytesPerToken = 4

func tokens(s string) int { return (len(s) + bytesPerToken - 1) / bytesPerToken }

// sampled numbers a text: the how-manieth equal call it answers (0: not counted)
// and which of the call's choices it is.
func sampled(text string, call, i int) string {
	switch {
	case call == 0 && i == 0:
		return text
	case call == 0:
		return fmt.Sprintf("%s\n(choice %d)\n", text, i+1)
	}
	return fmt.Sprintf("%s\n(sample %d.%d)\n", text, call, i+1)
}

func (a *attempt) refuse(status int, kind, msg string) {
	a.status, a.outcome = status, Refused
	apiError(a.w, status, kind, msg)
}

func short(s string) string { return strings.ToValidUTF8(s[:min(len(s), 200)], "") }

func apiError(w http.ResponseWriter, status int, kind, msg string) {
	reply(w, status, map[string]any{"error": map[string]any{
		"message": Model + ": " + msg, "type": kind, "param": nil, "code": nil,
	}})
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client went away: nobody is left to tell
}
