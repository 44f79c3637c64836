package modelserver

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start returns a server and a real client of it, without retries.
func start(t *testing.T, opts ...Option) (*Server, openai.Client) {
	t.Helper()
	s, err := Start("", opts...)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		transport.CloseIdleConnections()
	})
	return s, openai.NewClient(
		option.WithBaseURL(s.BaseURL()), option.WithAPIKey("none"), option.WithMaxRetries(0),
		option.WithHTTPClient(&http.Client{Transport: transport}),
	)
}

func ask(phase, task, goal string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: "any",
		Messages: []openai.ChatCompletionMessageParamUnion{
			openai.SystemMessage("You help.\nphase: " + phase + "\ntask: " + task),
			openai.UserMessage("<goal>" + goal + "</goal>"),
		},
	}
}

const goal = "A CLI that counts words in files, and prints the total."

func TestWholeAnswer(t *testing.T) {
	s, c := start(t)
	var raw *http.Response
	r, err := c.Chat.Completions.New(t.Context(), ask("requirements", "requirements", goal), option.WithResponseInto(&raw))
	if err != nil {
		t.Fatal(err)
	}
	if r.Model != "scripted-model" || !strings.Contains(r.RawJSON(), `"system_fingerprint":"fp_scripted"`) || raw.Header.Get("X-Scripted-Model") == "" {
		t.Errorf("answer %s, header %q: want it to say that it is scripted", r.RawJSON(), raw.Header.Get("X-Scripted-Model"))
	}
	text := r.Choices[0].Message.Content
	if r.Choices[0].FinishReason != "stop" || !strings.Contains(text, "R1. The program shall provide: A CLI that counts words in files.") || !strings.Contains(text, "R2. The program shall provide: prints the total.") {
		t.Errorf("finish %q, text %q", r.Choices[0].FinishReason, text)
	}
	if r.Usage.PromptTokens == 0 || r.Usage.CompletionTokens != int64(tokens(text)) || r.Usage.TotalTokens != r.Usage.PromptTokens+r.Usage.CompletionTokens {
		t.Errorf("usage %+v", r.Usage)
	}
	got := s.Calls()
	if len(got) != 1 {
		t.Fatalf("%d calls", len(got))
	}
	call := got[0]
	if call.Seq != 1 || call.Phase != "requirements" || call.Task != "requirements" || call.Model != "any" || call.Stream ||
		call.Outcome != Completed || call.Status != 200 || len(call.Hash) != 64 || call.Start.IsZero() || call.End.Before(call.Start) || !strings.HasPrefix(call.Client, "OpenAI/Go") {
		t.Errorf("call %+v", call)
	}
}

func TestStreamedAnswer(t *testing.T) {
	s, c := start(t)
	whole, err := c.Chat.Completions.New(t.Context(), ask("implementation", "code", goal))
	if err != nil {
		t.Fatal(err)
	}
	for _, usage := range []bool{true, false} {
		p := ask("implementation", "code", goal)
		p.StreamOptions.IncludeUsage = openai.Bool(usage)
		st := c.Chat.Completions.NewStreaming(t.Context(), p)
		var text, finish string
		chunks, total := 0, int64(0)
		for st.Next() {
			ev := st.Current()
			chunks++
			total += ev.Usage.TotalTokens
			for _, ch := range ev.Choices {
				text += ch.Delta.Content
				finish += ch.FinishReason
			}
		}
		if err := st.Err(); err != nil {
			t.Fatal(err)
		}
		if text != whole.Choices[0].Message.Content || finish != "stop" || chunks < 20 {
			t.Errorf("%d chunks, finish %q, %d bytes; want many, stop, the text of the whole answer", chunks, finish, len(text))
		}
		if (total != 0) != usage {
			t.Errorf("include_usage %v: total tokens %d", usage, total)
		}
	}
	c3, err := s.Await(t.Context(), func(c Call) bool { return c.Seq == 3 && c.Outcome != Open })
	if err != nil || !c3.Stream || c3.Outcome != Completed {
		t.Errorf("call %+v, %v", c3, err)
	}
}

func TestModels(t *testing.T) {
	_, c := start(t)
	page, err := c.Models.List(t.Context())
	if err != nil || len(page.Data) != 1 || page.Data[0].ID != "scripted-model" || !strings.Contains(page.Data[0].OwnedBy, "no language model") {
		t.Errorf("models %+v, %v", page, err)
	}
}

func TestEqualRequestsGetEqualAnswers(t *testing.T) {
	for _, samples := range []bool{false, true} {
		var opts []Option
		if samples {
			opts = append(opts, WithSamples())
		}
		s, c := start(t, opts...)
		texts := map[string]bool{}
		for range 3 {
			r, err := c.Chat.Completions.New(t.Context(), ask("planning", "estimate", goal))
			if err != nil {
				t.Fatal(err)
			}
			texts[r.Choices[0].Message.Content] = true
		}
		if want := map[bool]int{false: 1, true: 3}[samples]; len(texts) != want {
			t.Errorf("samples %v: %d different texts, want %d", samples, len(texts), want)
		}
		counts := s.Counts()
		if len(counts) != 1 || counts[s.Calls()[0].Hash] != 3 {
			t.Errorf("counts %v, want three of one hash", counts)
		}
		if got := s.Summary(); got.Paid != 3 || got.Repeated != 2 || got.Distinct != 1 || got.PromptTokens == 0 {
			t.Errorf("summary %+v", got)
		}
	}
}

func TestChoicesAndLimit(t *testing.T) {
	_, c := start(t)
	p := ask("planning", "estimate", goal)
	p.N = openai.Int(3)
	p.MaxCompletionTokens = openai.Int(5)
	r, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Choices) != 3 || r.Choices[0].FinishReason != "length" || len(r.Choices[0].Message.Content) != 20 {
		t.Errorf("choices %+v", r.Choices)
	}
}

func TestRefusals(t *testing.T) {
	s, c := start(t)
	no := ask("planning", "estimate", goal)
	no.N = openai.Int(99)
	_, err := c.Chat.Completions.New(t.Context(), no)
	if e, ok := errors.AsType[*openai.Error](err); !ok || e.StatusCode != 400 || !strings.Contains(e.Message, "n is 99, allowed are 1 to 8") {
		t.Errorf("n=99: %v", err)
	}
	err = c.Post(t.Context(), "chat/completions", map[string]any{"model": "m"}, nil)
	if e, ok := errors.AsType[*openai.Error](err); !ok || e.StatusCode != 400 || !strings.Contains(e.Message, "messages is missing") {
		t.Errorf("no messages: %v", err)
	}
	err = c.Post(t.Context(), "embeddings", map[string]any{}, nil)
	if e, ok := errors.AsType[*openai.Error](err); !ok || e.StatusCode != 404 {
		t.Errorf("unknown endpoint: %v", err)
	}
	if got := s.Summary(); got.Refused != 2 || got.Paid != 0 {
		t.Errorf("summary %+v", got)
	}
}

func TestUnknownTaskSaysSo(t *testing.T) {
	_, c := start(t)
	p := openai.ChatCompletionNewParams{Model: "m", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Hello?")}}
	r, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil || !strings.Contains(r.Choices[0].Message.Content, "a script and no language model") {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestContentInParts(t *testing.T) {
	s, c := start(t)
	p := ask("review", "review", "x")
	p.Messages[1] = openai.UserMessage([]openai.ChatCompletionContentPartUnionParam{openai.TextContentPart("<goal>count "), openai.TextContentPart("words</goal>")})
	r, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil || !strings.Contains(r.Choices[0].Message.Content, "Goal: count words") {
		t.Errorf("%+v, %v", r, err)
	}
	if s.Calls()[0].PromptTokens == 0 {
		t.Error("no prompt tokens")
	}
}

func TestCloseEndsEverything(t *testing.T) {
	s, c := start(t, WithFault(1, Hang()))
	errc := make(chan error, 1)
	go func() {
		_, err := c.Chat.Completions.New(t.Context(), ask("context", "context", goal))
		errc <- err
	}()
	if _, err := s.Await(t.Context(), func(c Call) bool { return c.Outcome == Open }); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-errc; err == nil {
		t.Error("the client got an answer from a closed server")
	}
	if got := s.Calls()[0].Outcome; got != Cut {
		t.Errorf("outcome %q, want cut", got)
	}
}

func TestBadSettings(t *testing.T) {
	for want, opt := range map[string]Option{
		"latency per chunk is -1ns":              WithLatency(0, -1),
		"latency per call is 1h0m0s":             WithLatency(time.Hour, 0),
		`kind of fault is "smoke"`:               WithFault(1, Fault{Kind: "smoke"}),
		"n is 0, allowed are 1 to 50000":         WithFault(0, Hang()),
		"status is 200, allowed are 400 to 599":  WithFault(1, Error(200)),
		"bytes is -1, allowed are 0 and more":    WithFault(1, CutAfter(-1)),
		"retry_after is -1s, allowed are 0 to 2": WithFault(1, RateLimit(-time.Second)),
		"nil logger":                             WithLogger(nil),
	} {
		if s, err := Start("", opt); err == nil || !strings.Contains(err.Error(), want) {
			if s != nil {
				s.Close()
			}
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if _, err := Start("no such host:1"); err == nil {
		t.Error("listened on a bad address")
	}
}

func TestTasks(t *testing.T) {
	if got := Tasks(); !slices.IsSorted(got) || !slices.Contains(got, "code") || len(got) != 15 {
		t.Errorf("tasks %v", got)
	}
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	s, _ := start(t)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := s.Await(ctx, func(Call) bool { return true }); !errors.Is(err, why) {
		t.Errorf("got %v, want the cause", err)
	}
}
