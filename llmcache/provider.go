package llmcache

import "github.com/nexuscore/onceq/llmcache/internal/wire"

// API is a form of request and answer that many providers may speak.
type API = wire.API

// The APIs that are understood; see [WithCompatible].
const (
	OpenAIChat        = wire.OpenAIChat
	OpenAIResponses   = wire.OpenAIResponses
	OpenAIEmbeddings  = wire.OpenAIEmbeddings
	OpenAIImages      = wire.OpenAIImages
	OpenAIAudio       = wire.OpenAIAudio
	AnthropicMessages = wire.AnthropicMessages
	GeminiGenerate    = wire.GeminiGenerate
	GeminiEmbed       = wire.GeminiEmbed
	OllamaChat        = wire.OllamaChat
	OllamaEmbed       = wire.OllamaEmbed
)

// What a host needs to teach a Transport an API that is not built in; see
// [WithProvider].
type (
	// Provider recognises requests: Match by what is known before the body is
	// read, Recognise with the body.
	Provider = wire.Provider
	// ProviderRequest is what a Provider sees of a request.
	ProviderRequest = wire.Request
	// ProviderCall is a recognised request. It needs an API that is built in, or a
	// Judge.
	ProviderCall = wire.Call
	// ProviderVerdict says whether a request's answer may be stored.
	ProviderVerdict = wire.Verdict
	// Judge decides whether an answer is a whole success, in one piece or as a stream.
	Judge = wire.Judge
	// StreamJudge watches the events of one streamed answer.
	StreamJudge = wire.StreamJudge
	// Judgement is what a Judge finds.
	Judgement = wire.Outcome
	// TokenUsage is the part of a Judgement that the ledger counts.
	TokenUsage = wire.Usage
)
