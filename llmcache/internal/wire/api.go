package wire

// API is one form of request and answer. Many providers may speak it.
type API string

// The APIs that have a built-in judge.
const (
	OpenAIChat        API = "openai.chat"       // chat completions and legacy completions
	OpenAIResponses   API = "openai.responses"  // responses
	OpenAIEmbeddings  API = "openai.embeddings" // embeddings
	OpenAIImages      API = "openai.images"     // image generations, edits, variations
	OpenAIAudio       API = "openai.audio"      // transcriptions and translations
	AnthropicMessages API = "anthropic.messages"
	GeminiGenerate    API = "gemini.generate" // generateContent, streamGenerateContent
	GeminiEmbed       API = "gemini.embed"    // embedContent, batchEmbedContents, predict
	OllamaChat        API = "ollama.chat"     // chat and generate
	OllamaEmbed       API = "ollama.embed"    // embed, embeddings
)

// JudgeOf returns the built-in judge of an API, nil for an unknown one. choices
// is how many answers, or embeddings, the request asked for; below 1 means that
// any number will do.
func JudgeOf(api API, choices int) Judge {
	choices = max(choices, 0)
	switch api {
	case OpenAIChat:
		return chatJudge{choices: choices}
	case OpenAIResponses:
		return responsesJudge{}
	case OpenAIEmbeddings:
		return embeddingJudge{inputs: choices}
	case OpenAIImages:
		return imageJudge{images: choices}
	case OpenAIAudio:
		return audioJudge{}
	case AnthropicMessages:
		return anthropicJudge{}
	case GeminiGenerate:
		return geminiJudge{candidates: choices}
	case GeminiEmbed:
		return geminiEmbedJudge{inputs: choices}
	case OllamaChat:
		return ollamaJudge{}
	case OllamaEmbed:
		return ollamaEmbedJudge{inputs: choices}
	}
	return nil
}
