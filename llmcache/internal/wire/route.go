package wire

import (
	"net/http"
	"net/url"
	"strings"
)

// route is what method, path and headers say of a call.
type route struct {
	provider string
	api      API
	model    string // named in the path
	verb     string // what the last part of the path asks for
	stream   bool   // the path asks for a stream
}

// openAIRoutes are the ends of the paths of OpenAI and of every server that is
// compatible with it, whatever stands before.
var openAIRoutes = []struct {
	suffix string
	api    API
}{
	{"/chat/completions", OpenAIChat},
	{"/completions", OpenAIChat},
	{"/responses", OpenAIResponses},
	{"/embeddings", OpenAIEmbeddings},
	{"/images/generations", OpenAIImages},
	{"/images/edits", OpenAIImages},
	{"/images/variations", OpenAIImages},
	{"/audio/transcriptions", OpenAIAudio},
	{"/audio/translations", OpenAIAudio},
}

// sideEffects are path segments of calls that do more than answer.
var sideEffects = map[string]Reason{
	"files": ReasonFiles, "uploads": ReasonFiles, "vector_stores": ReasonAssistants,
	"batches": ReasonBatch, "batch": ReasonBatch, "batchPredictionJobs": ReasonBatch,
	"fine_tuning": ReasonFineTuning, "fine-tunes": ReasonFineTuning, "tunedModels": ReasonFineTuning,
	"assistants": ReasonAssistants, "threads": ReasonAssistants,
	"conversations": ReasonConversation, "realtime": ReasonRealtime, "containers": ReasonContainer,
	"count_tokens": ReasonCounting, "input_tokens": ReasonCounting, "cachedContents": ReasonFiles,
}

// routeOf finds the route of a request, or the reason why there is none.
func routeOf(method string, u *url.URL, h http.Header) (route, Verdict) {
	path := strings.TrimSuffix(u.Path, "/")
	to, ok := findRoute(path, u, h)
	switch {
	case h.Get("Upgrade") != "":
		return to, pass(ReasonRealtime)
	case ok && method != http.MethodPost:
		return to, pass(ReasonMethod)
	case ok:
		return to, Verdict{}
	}
	for segment := range strings.SplitSeq(path, "/") {
		name, verb, _ := strings.Cut(segment, ":")
		if r := sideEffects[name]; r != "" {
			return to, pass(r)
		}
		switch verb {
		case "countTokens", "computeTokens":
			return to, pass(ReasonCounting)
		case "batchGenerateContent", "asyncBatchEmbedContent", "predictLongRunning":
			return to, pass(ReasonBatch)
		}
	}
	return to, pass(ReasonUnknown)
}

func findRoute(path string, u *url.URL, h http.Header) (route, bool) {
	if to, ok := googleRoute(path); ok {
		return to, true
	}
	if to, ok := bedrockRoute(u); ok {
		return to, true
	}
	switch {
	case strings.HasSuffix(path, "/api/chat"), strings.HasSuffix(path, "/api/generate"):
		return route{provider: "ollama", api: OllamaChat, stream: true}, true
	case strings.HasSuffix(path, "/api/embed"), strings.HasSuffix(path, "/api/embeddings"):
		return route{provider: "ollama", api: OllamaEmbed}, true
	case strings.HasSuffix(path, "/messages") && (h.Get("Anthropic-Version") != "" || strings.HasSuffix(path, "/v1/messages")):
		return route{provider: "anthropic", api: AnthropicMessages}, true
	}
	for _, r := range openAIRoutes {
		if strings.HasSuffix(path, r.suffix) {
			to := route{provider: "openai", api: r.api}
			if deployment, ok := azureDeployment(path); ok {
				to.provider, to.model = "azure", deployment
			} else if u.Query().Has("api-version") {
				to.provider = "azure"
			}
			return to, true
		}
	}
	return route{}, false
}

// azureDeployment finds the name in .../openai/deployments/{name}/...
func azureDeployment(path string) (string, bool) {
	_, rest, ok := strings.Cut(path, "/deployments/")
	if !ok {
		return "", false
	}
	name, _, ok := strings.Cut(rest, "/")
	return name, ok && name != ""
}

// bedrockRoute reads /model/{id}/invoke. An id may hold an escaped slash.
func bedrockRoute(u *url.URL) (route, bool) {
	_, rest, ok := strings.Cut(u.EscapedPath(), "/model/")
	if !ok {
		return route{}, false
	}
	id, verb, _ := strings.Cut(rest, "/")
	model, err := url.PathUnescape(id)
	if err != nil || verb != "invoke" && verb != "invoke-with-response-stream" {
		return route{}, false
	}
	return route{provider: "bedrock", api: AnthropicMessages, model: model, verb: verb, stream: verb != "invoke"}, true
}

// googleRoute reads .../models/{model}:{verb} of AI Studio and Vertex.
func googleRoute(path string) (route, bool) {
	slash := strings.LastIndexByte(path, '/')
	model, verb, ok := cutLast(path[slash+1:], ':')
	if !ok || model == "" {
		return route{}, false
	}
	to := route{provider: "gemini", api: GeminiGenerate, model: model, verb: verb}
	if strings.Contains(path, "/projects/") || strings.Contains(path, "/publishers/") {
		to.provider = "vertex"
	}
	switch verb {
	case "generateContent":
	case "streamGenerateContent":
		to.stream = true
	case "embedContent", "batchEmbedContents", "predict":
		to.api = GeminiEmbed
	case "rawPredict", "streamRawPredict":
		// Model Garden serves other publishers by these verbs too, each in a form
		// of its own. count-tokens is a model only in the path.
		if !strings.Contains(path, "/publishers/anthropic/") || model == "count-tokens" {
			return route{}, false
		}
		to.api, to.stream = AnthropicMessages, verb == "streamRawPredict"
	default:
		return route{}, false
	}
	return to, true
}

func cutLast(s string, sep byte) (before, after string, ok bool) {
	if i := strings.LastIndexByte(s, sep); i >= 0 {
		return s[:i], s[i+1:], true
	}
	return s, "", false
}
