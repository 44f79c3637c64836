package wire

import (
	"net/http"
	"net/url"
	"strings"
)

// MaxBody is the longest request body that Recognise looks into: room for a
// 25 MB audio file or a handful of images in base64.
const MaxBody = 64 << 20

// Request is what Recognise sees of an HTTP request. Nothing in it is changed
// or kept, except that a Call refers to Body.
type Request struct {
	Method string
	URL    *url.URL
	Header http.Header
	Body   []byte
}

// Call is a recognised request.
type Call struct {
	Provider string // "openai", "azure", "anthropic", "bedrock", "vertex", "gemini", "ollama", or a host's own
	API      API    // the form of request and answer
	Model    string // as the request names it; "" when it does not
	Stream   bool   // the answer was asked for in pieces
	Judge    Judge  // decides whether an answer is a complete success; set when cacheable

	body body
}

// Verdict says whether a request's answer may be stored. The zero Verdict is
// "pass it through, it is none of ours".
type Verdict struct {
	Cacheable bool
	Reason    Reason // why not; "" when cacheable
}

// Reason is a short, stable word for why a request is passed through.
type Reason string

// The reasons to pass a request through untouched.
const (
	ReasonUnknown      Reason = "unknown"       // no provider knows the path
	ReasonMethod       Reason = "method"        // not a POST
	ReasonFiles        Reason = "files"         // stores or reads files at the provider
	ReasonBatch        Reason = "batch"         // answers much later, elsewhere
	ReasonFineTuning   Reason = "fine_tuning"   // makes a model
	ReasonAssistants   Reason = "assistants"    // threads, assistants, vector stores: state at the provider
	ReasonRealtime     Reason = "realtime"      // a session, no request and answer
	ReasonCounting     Reason = "counting"      // counts tokens; costs nothing
	ReasonStored       Reason = "stored"        // store:true leaves the answer at the provider
	ReasonContinued    Reason = "continued"     // previous_response_id: the question is not all in the request
	ReasonConversation Reason = "conversation"  // reads and extends a conversation at the provider
	ReasonBackground   Reason = "background"    // the answer is only a ticket
	ReasonContainer    Reason = "container"     // works in a container that outlives the call
	ReasonSideEffects  Reason = "side_effects"  // the provider acts for the caller (remote MCP tools)
	ReasonEncoding     Reason = "encoding"      // a compressed body
	ReasonTooLarge     Reason = "too_large"     // a body over MaxBody
	ReasonMalformed    Reason = "malformed"     // a body that readers may understand differently, or not at all
	ReasonLoading      Reason = "loading"       // loads or unloads a model
	ReasonUnjudged     Reason = "unjudged_form" // an answer whose completeness cannot be told
)

func pass(r Reason) Verdict { return Verdict{Reason: r} }

// Provider teaches Recognise requests that are not built in. It is asked before
// the built-in ones and must be safe for concurrent use.
type Provider interface {
	// Match reports whether a request is this provider's, by what is known
	// before its body is read.
	Match(method string, u *url.URL, h http.Header) bool
	// Recognise judges a request that Match accepted. A cacheable Call needs a
	// Judge, or an API whose built-in judge then applies.
	Recognise(r Request) (Call, Verdict)
}

// Compatible returns a Provider for servers that speak a built-in API at a path
// of their own: a POST to a path that ends in suffix is such a call. name stands
// in Call.Provider.
func Compatible(name, suffix string, api API) Provider {
	return compatible{name: name, suffix: suffix, api: api}
}

type compatible struct {
	name, suffix string
	api          API
}

func (c compatible) Match(method string, u *url.URL, _ http.Header) bool {
	return method == http.MethodPost && u != nil && c.suffix != "" && strings.HasSuffix(u.Path, c.suffix)
}

func (c compatible) Recognise(r Request) (Call, Verdict) {
	b, reason := readBody(r)
	if reason != "" {
		return Call{Provider: c.name, API: c.api}, pass(reason)
	}
	return route{provider: c.name, api: c.api}.recognise(r, b)
}

// Candidate reports whether a request may turn out cacheable, by what is known
// before its body is read: a body that cannot matter is best left a stream. When
// it says no, the Verdict says why.
func Candidate(method string, u *url.URL, h http.Header, providers ...Provider) (bool, Verdict) {
	if u == nil {
		return false, pass(ReasonUnknown)
	}
	for _, p := range providers {
		if p.Match(method, u, h) {
			return true, Verdict{}
		}
	}
	_, v := routeOf(method, u, h)
	return v.Reason == "", v
}

// Recognise says whose call a request is and whether its answer may be stored.
// The providers are asked first, in their order. It does not panic whatever the
// body holds, and needs memory in proportion to it.
func Recognise(r Request, providers ...Provider) (Call, Verdict) {
	if r.URL == nil {
		return Call{}, pass(ReasonUnknown)
	}
	for _, p := range providers {
		if p.Match(r.Method, r.URL, r.Header) {
			return recogniseBy(p, r)
		}
	}
	to, v := routeOf(r.Method, r.URL, r.Header)
	if v.Reason != "" {
		return Call{}, v
	}
	b, reason := readBody(r)
	if reason != "" {
		return Call{Provider: to.provider, API: to.api, Model: to.model}, pass(reason)
	}
	return to.recognise(r, b)
}

func recogniseBy(p Provider, r Request) (Call, Verdict) {
	c, v := p.Recognise(r)
	if !v.Cacheable {
		return c, v
	}
	if c.body.kind == "" {
		var reason Reason
		if c.body, reason = readBody(r); reason != "" {
			return c, pass(reason)
		}
	}
	if c.Judge == nil {
		c.Judge = JudgeOf(c.API, 0)
	}
	if c.Judge == nil {
		return c, pass(ReasonUnjudged)
	}
	return c, v
}
