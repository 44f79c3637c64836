package llmcache

import (
	"log/slog"
	"net/http"
	"net/url"
	"sync"

	"github.com/nexuscore/onceq/internal/setting"
	"github.com/nexuscore/onceq/llmcache/internal/wire"
)

// API is a form of request and answer that many providers may speak; see
// [WithCompatible].
type API string

// The APIs that are understood, streams and single answers alike.
const (
	OpenAIChat        = API(wire.OpenAIChat)       // chat completions and legacy completions
	OpenAIResponses   = API(wire.OpenAIResponses)  // responses
	OpenAIEmbeddings  = API(wire.OpenAIEmbeddings) // embeddings
	OpenAIImages      = API(wire.OpenAIImages)     // image generations, edits, variations
	OpenAIAudio       = API(wire.OpenAIAudio)      // transcriptions and translations
	AnthropicMessages = API(wire.AnthropicMessages)
	GeminiGenerate    = API(wire.GeminiGenerate) // generateContent, streamGenerateContent
	GeminiEmbed       = API(wire.GeminiEmbed)    // embedContent, batchEmbedContents, predict
	OllamaChat        = API(wire.OllamaChat)     // chat and generate
	OllamaEmbed       = API(wire.OllamaEmbed)    // embed, embeddings
)

func (a API) known() bool { return wire.JudgeOf(wire.API(a), 0) != nil }

// Provider teaches a [Transport] requests that are not built in; see
// [WithProvider]. Where only the path differs, [WithCompatible] is enough. It must
// be safe for concurrent use, and change nothing that it is given.
type Provider interface {
	// Match reports whether a request is this provider's, by what is known before
	// its body is read.
	Match(method string, u *url.URL, h http.Header) bool
	// Recognise looks at a request that Match accepted. It reports false for one
	// that does more than answer (it stores, deletes, continues a conversation at the
	// provider): such a request passes untouched. When in doubt, false costs money
	// once more, true may replay what must not be.
	Recognise(r ProviderRequest) (call ProviderCall, ok bool)
}

// ProviderRequest is what a [Provider] sees of a request. It is the caller's own:
// to be read only, and not to be kept.
type ProviderRequest struct {
	Method string
	URL    *url.URL
	Header http.Header
	Body   []byte // whole; requests above 64 MiB are not shown
}

// ProviderCall is what a [Provider] says about a request whose answer may be
// stored. What its key is made of is not the provider's to say: the whole request
// counts, see [WithKeyHeaders].
type ProviderCall struct {
	Model string // as the request names it, for the price and the ledger; "" when it does not
	// Stream says that the answer was asked for in pieces. It matters only where the
	// answer's Content-Type does not say.
	Stream bool
	// API says how to judge the answer: as that of a built-in API. Ignored when there
	// is a Judge.
	API API
	// Judge judges the answer. Nil leaves it to API; with neither, the call passes as
	// if it were unknown, and a warning says so once.
	Judge Judge
}

// Judge decides whether the answer to a request is a whole success, which alone is
// stored. It is asked about 2xx answers only. It must be safe for concurrent use.
type Judge interface {
	// Whole judges an answer that came in one piece.
	Whole(body []byte) Judgement
	// Stream returns a judge for one answer that comes in events.
	Stream() StreamJudge
}

// StreamJudge watches one answer that comes in events: those of text/event-stream
// or of an AWS event stream, or the lines of NDJSON. It is used by one goroutine.
type StreamJudge interface {
	// Event is told the next event: its name, where the stream has names, and its
	// data, which is valid only during the call.
	Event(name string, data []byte)
	// Judgement returns what is known so far. It is asked after each event. ended
	// says that the stream has ended in order and nothing can follow; where the last
	// event is unmistakable, do not wait for that: some clients never read as far.
	Judgement(ended bool) Judgement
}

// Judgement is what a [Judge] knows about an answer. The zero value is an answer
// that is not complete: it is never stored.
type Judgement struct {
	Complete   bool   // the provider said that this was all, and nothing went wrong
	Truncated  bool   // cut off by a length limit: stored for its run only
	Refused    bool   // the model or a filter declined: stored only with WithRefusals
	Empty      bool   // it holds nothing: never stored
	Perishable bool   // it holds links that soon expire: stored for its run only
	Model      string // as the answer names it; it names the price when the request's has none
	Usage      Usage  // also of an answer that is not complete: what had been said so far
}

// hostProvider is a host's Provider as package wire asks it.
type hostProvider struct {
	Provider
	logger   *slog.Logger
	unjudged sync.Once
}

// Recognise implements wire.Provider.
func (p *hostProvider) Recognise(r wire.Request) (wire.Call, wire.Verdict) {
	call, ok := p.Provider.Recognise(ProviderRequest{Method: r.Method, URL: r.URL, Header: r.Header, Body: r.Body})
	if !ok {
		return wire.Call{}, wire.Verdict{}
	}
	c := wire.Call{API: wire.API(call.API), Model: call.Model, Stream: call.Stream}
	switch {
	case !setting.IsNil(call.Judge):
		c.Judge = hostJudge{call.Judge}
	case !call.API.known():
		p.unjudged.Do(func() {
			p.logger.Warn("llmcache: calls of a provider pass, nobody can judge their answers", "path", r.URL.Path, "api", call.API)
		})
	}
	return c, wire.Verdict{Cacheable: true}
}

type hostJudge struct{ judge Judge }

func (j hostJudge) Whole(body []byte) wire.Outcome { return j.judge.Whole(body).outcome() }
func (j hostJudge) Stream() wire.StreamJudge       { return hostStream{j.judge.Stream()} }

type hostStream struct{ judge StreamJudge }

func (s hostStream) Event(name string, data []byte)  { s.judge.Event(name, data) }
func (s hostStream) Outcome(ended bool) wire.Outcome { return s.judge.Judgement(ended).outcome() }

func (j Judgement) outcome() wire.Outcome {
	o := wire.Outcome{
		Complete: j.Complete, Truncated: j.Truncated, Refused: j.Refused, Empty: j.Empty, Perishable: j.Perishable,
		Model: j.Model, Usage: wire.Usage{
			Known: j.Usage != Usage{},
			Input: j.Usage.InputTokens, Output: j.Usage.OutputTokens,
			Cached: j.Usage.CachedTokens, CacheWrite: j.Usage.CacheWriteTokens,
		},
	}
	if !j.Complete {
		o.Reason = "the host's judge says so"
	}
	return o
}
