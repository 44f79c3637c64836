package sdktest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/anthropics/anthropic-sdk-go/v2"
	anthropicbedrock "github.com/anthropics/anthropic-sdk-go/v2/bedrock"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/v2/option"
	anthropicvertex "github.com/anthropics/anthropic-sdk-go/v2/vertex"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/azure"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	goopenai "github.com/sashabaranov/go-openai"
	"github.com/tmc/langchaingo/llms"
	lcanthropic "github.com/tmc/langchaingo/llms/anthropic"
	lcgoogleai "github.com/tmc/langchaingo/llms/googleai"
	lcollama "github.com/tmc/langchaingo/llms/ollama"
	lcopenai "github.com/tmc/langchaingo/llms/openai"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
	apioption "google.golang.org/api/option"
	"google.golang.org/genai"
)

// client is one way in which one SDK asks one provider.
type client struct {
	name   string
	media  string
	answer func(n int) string // the provider's nth answer
	stream bool
	// retries says that the SDK asks again by itself after a 429.
	retries bool
	tokens  [3]int64 // input, output and cached tokens of the first three answers
	// ask makes the call and returns the answer as the SDK decodes it.
	ask func(ctx context.Context, hc *http.Client, base string) (string, error)
}

const question = "How is the weather in Köln? <&>"

var clients = []client{
	{name: "openai-go chat", media: mediaJSON, answer: chatWhole, tokens: [3]int64{57, 30, 12}, retries: true, ask: openAIChat},
	{name: "openai-go chat tools", media: mediaJSON, answer: chatToolWhole, tokens: [3]int64{246, 51, 0}, retries: true, ask: openAIChat},
	{name: "openai-go chat stream", media: mediaSSE, answer: chatStream, tokens: [3]int64{57, 30, 0}, stream: true, retries: true, ask: openAIChatStream},
	{name: "openai-go chat tools stream", media: mediaSSE, answer: chatToolStream, stream: true, retries: true, ask: openAIChatStream},
	{name: "openai-go azure stream", media: mediaSSE, answer: chatStream, tokens: [3]int64{57, 30, 0}, stream: true, retries: true, ask: openAIAzure},
	{name: "openai-go responses", media: mediaJSON, answer: responsesWhole, tokens: [3]int64{111, 33, 15}, retries: true, ask: openAIResponses},
	{name: "openai-go responses stream", media: mediaSSE, answer: responsesStream, tokens: [3]int64{111, 33, 15}, stream: true, retries: true, ask: openAIResponsesStream},
	{name: "openai-go embeddings", media: mediaJSON, answer: embeddingsWhole, tokens: [3]int64{24, 0, 0}, retries: true, ask: openAIEmbeddings},
	{name: "openai-go transcription", media: mediaJSON, answer: transcriptionWhole, tokens: [3]int64{42, 135, 0}, retries: true, ask: openAITranscription},
	{name: "openai-go images", media: mediaJSON, answer: imagesWhole, tokens: [3]int64{150, 300, 0}, retries: true, ask: openAIImages},
	{name: "anthropic", media: mediaJSON, answer: anthropicWhole, tokens: [3]int64{375, 45, 300}, retries: true, ask: anthropicDirect},
	{name: "anthropic stream", media: mediaSSE, answer: anthropicStream, tokens: [3]int64{375, 45, 300}, stream: true, retries: true, ask: anthropicDirectStream},
	{name: "anthropic bedrock", media: mediaJSON, answer: anthropicWhole, tokens: [3]int64{375, 45, 300}, retries: true, ask: anthropicBedrock},
	{name: "anthropic bedrock stream", media: "application/vnd.amazon.eventstream", answer: bedrockStream, tokens: [3]int64{375, 45, 300}, stream: true, retries: true, ask: anthropicBedrockStream},
	{name: "anthropic vertex", media: mediaJSON, answer: anthropicWhole, tokens: [3]int64{375, 45, 300}, retries: true, ask: anthropicVertex},
	{name: "anthropic vertex stream", media: mediaSSE, answer: anthropicStream, tokens: [3]int64{375, 45, 300}, stream: true, retries: true, ask: anthropicVertexStream},
	{name: "go-openai chat", media: mediaJSON, answer: chatWhole, tokens: [3]int64{57, 30, 12}, ask: goOpenAIChat},
	{name: "go-openai chat stream", media: mediaSSE, answer: chatStream, tokens: [3]int64{57, 30, 0}, stream: true, ask: goOpenAIChatStream},
	{name: "go-openai embeddings", media: mediaJSON, answer: embeddingsWhole, tokens: [3]int64{24, 0, 0}, ask: goOpenAIEmbeddings},
	{name: "go-openai transcription", media: mediaJSON, answer: transcriptionWhole, tokens: [3]int64{42, 135, 0}, ask: goOpenAITranscription},
	{name: "langchaingo openai", media: mediaJSON, answer: chatWhole, tokens: [3]int64{57, 30, 12}, ask: langchainOpenAI(false)},
	{name: "langchaingo openai stream", media: mediaSSE, answer: chatStream, tokens: [3]int64{57, 30, 0}, stream: true, ask: langchainOpenAI(true)},
	{name: "langchaingo anthropic", media: mediaJSON, answer: anthropicTextWhole, tokens: [3]int64{75, 45, 0}, ask: langchainAnthropic(false)},
	{name: "langchaingo anthropic stream", media: mediaSSE, answer: anthropicText, tokens: [3]int64{375, 45, 300}, stream: true, ask: langchainAnthropic(true)},
	{name: "langchaingo ollama", media: "application/json; charset=utf-8", answer: ollamaWhole, tokens: [3]int64{78, 846, 0}, ask: langchainOllama(false)},
	{name: "langchaingo ollama stream", media: "application/x-ndjson", answer: ollamaStream, tokens: [3]int64{78, 846, 0}, stream: true, ask: langchainOllama(true)},
	{name: "langchaingo googleai", media: mediaJSON, answer: geminiWhole, tokens: [3]int64{24, 6, 0}, ask: langchainGoogle(false)},
	{name: "langchaingo googleai stream", media: "application/json; charset=UTF-8", answer: geminiArray, tokens: [3]int64{24, 6, 0}, stream: true, ask: langchainGoogle(true)},
	{name: "genai", media: mediaJSON, answer: geminiWhole, tokens: [3]int64{24, 6, 0}, ask: genaiWhole},
	{name: "genai stream", media: "text/event-stream", answer: geminiStream, tokens: [3]int64{24, 6, 0}, stream: true, ask: genaiStream},
	{name: "genai embed", media: mediaJSON, answer: geminiEmbeddings, ask: genaiEmbed},
}

func openAI(hc *http.Client, base string) openai.Client {
	return openai.NewClient(option.WithAPIKey("sk-secret"), option.WithBaseURL(base+"/v1/"), option.WithHTTPClient(hc))
}

func chatParams() openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:    "gpt-4o",
		Messages: []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("Be brief."), openai.UserMessage(question)},
	}
}

func openAIChat(ctx context.Context, hc *http.Client, base string) (string, error) {
	c := openAI(hc, base)
	r, err := c.Chat.Completions.New(ctx, chatParams())
	if err != nil {
		return "", err
	}
	return r.RawJSON(), nil
}

func openAIChatStream(ctx context.Context, hc *http.Client, base string) (string, error) {
	return chatEvents(ctx, openAI(hc, base))
}

func chatEvents(ctx context.Context, c openai.Client) (string, error) {
	p := chatParams()
	p.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	s := c.Chat.Completions.NewStreaming(ctx, p)
	var acc openai.ChatCompletionAccumulator
	var b strings.Builder
	for s.Next() {
		if !acc.AddChunk(s.Current()) {
			return b.String(), errors.New("the chunks do not fit")
		}
		b.WriteString(s.Current().RawJSON() + "\n")
	}
	return b.String() + asJSON(acc.Choices), s.Err()
}

func openAIAzure(ctx context.Context, hc *http.Client, base string) (string, error) {
	base = strings.Replace(base, "http:", "https:", 1) // or it goes around the client's transport: see plain
	return chatEvents(ctx, openai.NewClient(azure.WithEndpoint(base, "2024-10-21"), azure.WithAPIKey("azure-secret"), option.WithHTTPClient(hc)))
}

func responseParams() responses.ResponseNewParams {
	return responses.ResponseNewParams{
		Model: "gpt-4o", Instructions: openai.String("Be brief."),
		Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(question)},
	}
}

func openAIResponses(ctx context.Context, hc *http.Client, base string) (string, error) {
	c := openAI(hc, base)
	r, err := c.Responses.New(ctx, responseParams())
	if err != nil {
		return "", err
	}
	return r.RawJSON(), nil
}

func openAIResponsesStream(ctx context.Context, hc *http.Client, base string) (string, error) {
	c := openAI(hc, base)
	s := c.Responses.NewStreaming(ctx, responseParams())
	var b strings.Builder
	for s.Next() {
		b.WriteString(s.Current().RawJSON() + "\n")
	}
	return b.String(), s.Err()
}

func openAIEmbeddings(ctx context.Context, hc *http.Client, base string) (string, error) {
	c := openAI(hc, base)
	r, err := c.Embeddings.New(ctx, openai.EmbeddingNewParams{
		Model: openai.EmbeddingModelTextEmbedding3Small,
		Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"a", "b"}},
	})
	if err != nil {
		return "", err
	}
	return r.RawJSON(), nil
}

// openAITranscription sends a boundary of its own each time.
func openAITranscription(ctx context.Context, hc *http.Client, base string) (string, error) {
	c := openAI(hc, base)
	r, err := c.Audio.Transcriptions.New(ctx, openai.AudioTranscriptionNewParams{
		Model: "gpt-4o-transcribe", File: openai.File(strings.NewReader("\xff\xfb sound"), "speech.mp3", "audio/mpeg"),
	})
	if err != nil {
		return "", err
	}
	return r.RawJSON(), nil
}

func openAIImages(ctx context.Context, hc *http.Client, base string) (string, error) {
	c := openAI(hc, base)
	r, err := c.Images.Generate(ctx, openai.ImageGenerateParams{Model: "gpt-image-1", Prompt: "a cat"})
	if err != nil {
		return "", err
	}
	return r.RawJSON(), nil
}

func messageParams() anthropic.MessageNewParams {
	return anthropic.MessageNewParams{
		Model: "claude-sonnet-4-5-20250929", MaxTokens: 1024,
		System:   []anthropic.TextBlockParam{{Text: "Be brief."}},
		Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(question))},
	}
}

// noRetries keeps anthropic from asking again, and waiting before it, when an
// answer is cut.
type noRetries struct{}

func anthropicClient(ctx context.Context, opts []anthropicoption.RequestOption) anthropic.Client {
	if ctx.Value(noRetries{}) != nil {
		opts = append(slices.Clip(opts), anthropicoption.WithMaxRetries(0))
	}
	return anthropic.NewClient(opts...)
}

func message(ctx context.Context, opts ...anthropicoption.RequestOption) (string, error) {
	c := anthropicClient(ctx, opts)
	m, err := c.Messages.New(ctx, messageParams())
	if err != nil {
		return "", err
	}
	return m.RawJSON(), nil
}

func messageEvents(ctx context.Context, opts ...anthropicoption.RequestOption) (string, error) {
	c := anthropicClient(ctx, opts)
	s := c.Messages.NewStreaming(ctx, messageParams())
	defer s.Close()
	var m anthropic.Message
	var b strings.Builder
	for s.Next() {
		if err := m.Accumulate(s.Current()); err != nil {
			return b.String(), err
		}
		b.WriteString(s.Current().RawJSON() + "\n")
	}
	return b.String() + asJSON(m.Content), s.Err()
}

func direct(hc *http.Client, base string) []anthropicoption.RequestOption {
	return []anthropicoption.RequestOption{
		anthropicoption.WithAPIKey("sk-ant-secret"), anthropicoption.WithBaseURL(base), anthropicoption.WithHTTPClient(hc),
	}
}

func anthropicDirect(ctx context.Context, hc *http.Client, base string) (string, error) {
	return message(ctx, direct(hc, base)...)
}

func anthropicDirectStream(ctx context.Context, hc *http.Client, base string) (string, error) {
	return messageEvents(ctx, direct(hc, base)...)
}

// bedrock signs each request, with the time in it.
func bedrock(hc *http.Client, base string) []anthropicoption.RequestOption {
	return []anthropicoption.RequestOption{
		anthropicbedrock.WithConfig(aws.Config{Region: "us-east-1", Credentials: credentials.NewStaticCredentialsProvider("AKIATEST", "secret", "")}),
		anthropicoption.WithBaseURL(base), anthropicoption.WithHTTPClient(hc),
	}
}

func anthropicBedrock(ctx context.Context, hc *http.Client, base string) (string, error) {
	return message(ctx, bedrock(hc, base)...)
}

func anthropicBedrockStream(ctx context.Context, hc *http.Client, base string) (string, error) {
	return messageEvents(ctx, bedrock(hc, base)...)
}

// idle keeps clients that are dear to make, or never quite go away, by the HTTP
// client they use. Each is lent to one caller at a time: langchaingo's writes
// into itself at every call.
var idle = struct {
	sync.Mutex
	clients map[[3]any][]any
}{clients: map[[3]any][]any{}}

// lend returns a client, made by build if none is idle, and how to give it back.
func lend[T any](kind string, hc *http.Client, base string, build func() T) (v T, giveBack func()) {
	key := [3]any{kind, hc, base}
	idle.Lock()
	defer idle.Unlock()
	if all := idle.clients[key]; len(all) > 0 {
		v, idle.clients[key] = all[len(all)-1].(T), all[:len(all)-1]
	} else {
		v = build()
	}
	return v, func() {
		idle.Lock()
		defer idle.Unlock()
		idle.clients[key] = append(idle.clients[key], v)
	}
}

func vertex(hc *http.Client, base string) (opts []anthropicoption.RequestOption, giveBack func()) {
	return lend("vertex", hc, base, func() []anthropicoption.RequestOption {
		creds := &google.Credentials{TokenSource: oauth2.StaticTokenSource(&oauth2.Token{AccessToken: "ya29.secret"})}
		return []anthropicoption.RequestOption{
			anthropicoption.WithHTTPClient(hc),
			anthropicvertex.WithCredentials(context.Background(), "us-central1", "project", creds), anthropicoption.WithBaseURL(base),
		}
	})
}

func anthropicVertex(ctx context.Context, hc *http.Client, base string) (string, error) {
	opts, giveBack := vertex(hc, base)
	defer giveBack()
	return message(ctx, opts...)
}

func anthropicVertexStream(ctx context.Context, hc *http.Client, base string) (string, error) {
	opts, giveBack := vertex(hc, base)
	defer giveBack()
	return messageEvents(ctx, opts...)
}

func goOpenAI(hc *http.Client, base string) *goopenai.Client {
	c := goopenai.DefaultConfig("sk-secret")
	c.BaseURL, c.HTTPClient = base+"/v1", hc
	return goopenai.NewClientWithConfig(c)
}

func goOpenAIRequest() goopenai.ChatCompletionRequest {
	return goopenai.ChatCompletionRequest{
		Model: goopenai.GPT4o, Messages: []goopenai.ChatCompletionMessage{{Role: "user", Content: question}},
	}
}

func goOpenAIChat(ctx context.Context, hc *http.Client, base string) (string, error) {
	r, err := goOpenAI(hc, base).CreateChatCompletion(ctx, goOpenAIRequest())
	if err != nil {
		return "", err
	}
	return asJSON(r), nil
}

func goOpenAIChatStream(ctx context.Context, hc *http.Client, base string) (string, error) {
	s, err := goOpenAI(hc, base).CreateChatCompletionStream(ctx, goOpenAIRequest())
	if err != nil {
		return "", err
	}
	defer s.Close()
	var b strings.Builder
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return b.String(), nil
		}
		if err != nil {
			return b.String(), err
		}
		b.WriteString(asJSON(r) + "\n")
	}
}

func goOpenAIEmbeddings(ctx context.Context, hc *http.Client, base string) (string, error) {
	r, err := goOpenAI(hc, base).CreateEmbeddings(ctx, goopenai.EmbeddingRequestStrings{Input: []string{"a", "b"}, Model: goopenai.SmallEmbedding3})
	if err != nil {
		return "", err
	}
	return asJSON(r), nil
}

func goOpenAITranscription(ctx context.Context, hc *http.Client, base string) (string, error) {
	r, err := goOpenAI(hc, base).CreateTranscription(ctx, goopenai.AudioRequest{Model: goopenai.Whisper1, FilePath: "speech.mp3", Reader: strings.NewReader("\xff\xfb sound")})
	if err != nil {
		return "", err
	}
	return r.Text, nil
}

// generate asks through langchaingo and returns the pieces and the whole. It
// panics over some half answers, which is none of ours.
func generate(ctx context.Context, m llms.Model, stream bool) (s string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("langchaingo: %v", p)
		}
	}()
	var pieces []string
	opts := []llms.CallOption{llms.WithModel("model"), llms.WithMaxTokens(100)}
	if stream {
		opts = append(opts, llms.WithStreamingFunc(func(_ context.Context, p []byte) error {
			pieces = append(pieces, string(p))
			return nil
		}))
	}
	r, err := m.GenerateContent(ctx, []llms.MessageContent{llms.TextParts(llms.ChatMessageTypeHuman, question)}, opts...)
	if err != nil {
		return "", err
	}
	return asJSON(pieces) + asJSON(r), nil
}

func langchainOpenAI(stream bool) func(context.Context, *http.Client, string) (string, error) {
	return func(ctx context.Context, hc *http.Client, base string) (string, error) {
		m, err := lcopenai.New(lcopenai.WithToken("sk-secret"), lcopenai.WithBaseURL(base+"/v1"), lcopenai.WithHTTPClient(hc))
		if err != nil {
			return "", err
		}
		return generate(ctx, m, stream)
	}
}

func langchainAnthropic(stream bool) func(context.Context, *http.Client, string) (string, error) {
	return func(ctx context.Context, hc *http.Client, base string) (string, error) {
		m, err := lcanthropic.New(lcanthropic.WithToken("sk-ant-secret"), lcanthropic.WithBaseURL(base+"/v1"), lcanthropic.WithHTTPClient(hc))
		if err != nil {
			return "", err
		}
		return generate(ctx, m, stream)
	}
}

func langchainOllama(stream bool) func(context.Context, *http.Client, string) (string, error) {
	return func(ctx context.Context, hc *http.Client, base string) (string, error) {
		m, err := lcollama.New(lcollama.WithModel("llama3.2"), lcollama.WithServerURL(base), lcollama.WithHTTPClient(hc))
		if err != nil {
			return "", err
		}
		return generate(ctx, m, stream)
	}
}

func langchainGoogle(stream bool) func(context.Context, *http.Client, string) (string, error) {
	return func(ctx context.Context, hc *http.Client, base string) (string, error) {
		m, giveBack := lend("google", hc, base, func() llms.Model {
			m, err := lcgoogleai.New(context.Background(), lcgoogleai.WithAPIKey("AIza-secret"), lcgoogleai.WithRest(), lcgoogleai.WithHTTPClient(hc),
				func(o *lcgoogleai.Options) { o.ClientOptions = append(o.ClientOptions, apioption.WithEndpoint(base)) })
			if err != nil {
				panic(err)
			}
			return m
		})
		defer giveBack()
		return generate(ctx, m, stream)
	}
}

func gemini(ctx context.Context, hc *http.Client, base string) (*genai.Client, error) {
	return genai.NewClient(ctx, &genai.ClientConfig{
		APIKey: "AIza-secret", Backend: genai.BackendGeminiAPI, HTTPClient: hc, HTTPOptions: genai.HTTPOptions{BaseURL: base},
	})
}

func genaiWhole(ctx context.Context, hc *http.Client, base string) (string, error) {
	c, err := gemini(ctx, hc, base)
	if err != nil {
		return "", err
	}
	r, err := c.Models.GenerateContent(ctx, "gemini-2.5-flash", genai.Text(question), nil)
	if err != nil {
		return "", err
	}
	return decoded(r), nil
}

func genaiStream(ctx context.Context, hc *http.Client, base string) (string, error) {
	c, err := gemini(ctx, hc, base)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for r, err := range c.Models.GenerateContentStream(ctx, "gemini-2.5-flash", genai.Text(question), nil) {
		if err != nil {
			return b.String(), err
		}
		b.WriteString(decoded(r) + "\n")
	}
	return b.String(), nil
}

// decoded leaves out the headers, which genai shows and of which a replay keeps
// what matters only.
func decoded(r *genai.GenerateContentResponse) string {
	r.SDKHTTPResponse = nil
	return asJSON(r)
}

func genaiEmbed(ctx context.Context, hc *http.Client, base string) (string, error) {
	c, err := gemini(ctx, hc, base)
	if err != nil {
		return "", err
	}
	r, err := c.Models.EmbedContent(ctx, "gemini-embedding-001", genai.Text(question), nil)
	if err != nil {
		return "", err
	}
	return asJSON(r.Embeddings), nil
}

// asJSON shows what an SDK decoded. Half a stream may leave what cannot be shown.
func asJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
