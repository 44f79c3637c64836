package llmcache

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/nexuscore/onceq/internal/canonical"
	"github.com/nexuscore/onceq/internal/setting"
	"github.com/nexuscore/onceq/llmcache/internal/wire"
)

// Transport is an http.RoundTripper that pays for an LLM call once. Give it to the
// HTTP client of any SDK:
//
//	client := openai.NewClient(option.WithHTTPClient(&http.Client{Transport: cache.Transport(nil)}))
//
// It knows the calls of OpenAI (chat completions, responses, embeddings, images,
// audio transcription) and of servers that speak the same at the same paths,
// Anthropic (direct, Bedrock, Vertex), Gemini and Ollama; [Cache.NewTransport] adds
// others. All other requests pass untouched, and so do calls whose effect is more
// than their answer: files, batches, store:true, previous_response_id and the like.
//
// Answers are replayed byte for byte, streams in the pieces they came in. Only
// whole successes are stored. A stream is stored once its reader has read the
// provider's last event; a reader that stops before leaves nothing behind.
// Errors, 429 and 5xx come back as the provider sent them. What Do says about
// identical calls, runs and trouble with Redis is true here as well; the context
// is that of the request.
//
// It is safe for concurrent use. Requests are read into memory, up to 64 MiB;
// answers up to WithMaxValue, larger ones pass.
type Transport struct {
	transportConfig
	cache *Cache
	base  http.RoundTripper
}

// Transport returns a transport that calls through base, http.DefaultTransport
// when nil. A nil Cache caches nothing.
func (c *Cache) Transport(base http.RoundTripper) *Transport {
	if setting.IsNil(base) {
		base = http.DefaultTransport
	}
	return &Transport{transportConfig: transportConfig{tenant: credentialTenant}, cache: c, base: base}
}

// NewTransport is [Cache.Transport] with options. Its errors wrap [ErrInvalid] and
// name the option and what is allowed.
//
// There are two, because what most programs need cannot go wrong, and stays one
// expression in the middle of an http.Client; an option can, and what it gets wrong
// shows otherwise at the first call, as a panic or as a bill.
func (c *Cache) NewTransport(base http.RoundTripper, opts ...TransportOption) (*Transport, error) {
	if base != nil && setting.IsNil(base) {
		return nil, setting.Invalidf("NewTransport: base is a nil %T; nil itself means http.DefaultTransport", base)
	}
	t := c.Transport(base)
	if err := setting.Apply(&t.transportConfig, opts); err != nil {
		return nil, err
	}
	if t.err != nil {
		return nil, t.err
	}
	for _, p := range t.providers {
		if p, ok := p.(*hostProvider); ok && c != nil {
			p.logger = c.logger
		}
	}
	return t, nil
}

// credentialTenant tells credentials apart without keeping them.
func credentialTenant(r *http.Request) string {
	cred := wire.Credential(r.URL, r.Header)
	if cred == "" {
		return ""
	}
	sum := sha256.Sum256([]byte("onceq llm tenant v1\x00" + cred))
	return "cred-" + hex.EncodeToString(sum[:12])
}

// CloseIdleConnections does so on the base, if it can.
func (t *Transport) CloseIdleConnections() {
	if b, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		b.CloseIdleConnections()
	}
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if t.cache == nil || t.cache.off {
		return t.base.RoundTrip(req)
	}
	if ok, _ := wire.Candidate(req.Method, req.URL, req.Header, t.providers...); !ok {
		return t.base.RoundTrip(req)
	}
	body, rest, err := readBody(req)
	if err != nil {
		return nil, err
	}
	if rest != nil { // too large to look into
		return t.base.RoundTrip(withBody(req, body, rest))
	}
	seen := wire.Request{Method: req.Method, URL: req.URL, Header: req.Header, Body: body}
	known, verdict := wire.Recognise(seen, t.providers...)
	if !verdict.Cacheable {
		return t.base.RoundTrip(withBody(req, body, nil))
	}
	h := canonical.NewHasher("onceq llm http v1")
	known.Fields(h, seen, t.keyHeaders...)
	tenant := ""
	if settings := settingsOf(req.Context()); settings.tenant == "" {
		tenant = t.tenant(req)
	}
	p, err := t.cache.locate(req.Context(), h.Sum(), tenant)
	if err != nil {
		return nil, err
	}
	e := &exchange{Transport: t, place: p, known: known, req: req, body: body}
	return e.serve()
}

// readBody reads the body of a request and closes it, unless it is too large to
// look into: then rest is what follows.
func readBody(req *http.Request) (body []byte, rest io.ReadCloser, err error) {
	if req.Body == nil || req.Body == http.NoBody {
		return nil, nil, nil
	}
	var buf bytes.Buffer
	if n := req.ContentLength; n > 0 && n <= wire.MaxBody {
		buf.Grow(int(n) + bytes.MinRead)
	}
	if _, err = buf.ReadFrom(io.LimitReader(req.Body, wire.MaxBody+1)); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("llmcache: read request body: %w", err), req.Body.Close())
	}
	if buf.Len() > wire.MaxBody {
		return buf.Bytes(), req.Body, nil
	}
	return buf.Bytes(), nil, req.Body.Close()
}

// withBody returns req with a body that has been read, and its rest.
func withBody(req *http.Request, body []byte, rest io.ReadCloser) *http.Request {
	r := *req // a shallow copy: a RoundTripper must not change the request
	if rest != nil {
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(body), rest), rest}
		return &r
	}
	if body == nil {
		return &r
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	return &r
}
