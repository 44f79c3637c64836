package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// HTTP posts messages as JSON to a URL of the host's choice. Construct it with
// [NewHTTP]. It is safe for concurrent use.
type HTTP struct {
	cfg  *destinationConfig
	post poster
	// url is a closure, so that no %+v of a destination prints it: many
	// receivers put a key into it.
	url func() string
}

// NewHTTP returns a destination that posts to the URL, http or https.
//
// The body is one JSON object with the members id, run_id, event, generation,
// created_at (RFC 3339, UTC) and, where the event has them, text, blocks, thread,
// link and payload. It is the same byte for byte in every attempt, and so is the
// header Idempotency-Key, the message's ID: a receiver that keeps the key takes a
// message once, however often it comes. With [WithSecret] the headers
// Onceq-Timestamp and Onceq-Signature are added, see [VerifySignature].
//
// Each request has a connection of its own and is made once: Go's HTTP client
// would repeat a request with an Idempotency-Key on its own account. Redirects
// are not followed.
//
// What a reply means:
//
//	2xx                          sent
//	429                          not sent, rate limited; Retry-After honoured
//	401 403 404 407 408 421 423
//	424 425, other unknown 4xx   not sent, tried again: a deploy or a proxy may pass
//	400 405 406 410 411 413 414
//	415 417 422 431, 301 308     permanent
//	409                          uncertain: perhaps the first attempt is still at work
//	303, 5xx, 1xx, other         uncertain
//	300 302 307                  not sent
//
// A connection that could not be made is not sent; an error or a timeout after the
// request's headers were written is uncertain.
//
// Options: [WithName] (defaults to "http-" and the host), [WithTimeout],
// [WithHTTPClient], [WithSecret], [WithHeader], [WithIdempotentReceiver]. The error
// wraps [ErrInvalid].
func NewHTTP(url string, opts ...DestinationOption) (*HTTP, error) {
	u, err := checkURL("NewHTTP", url)
	if err != nil {
		return nil, err
	}
	name := "http-" + strings.Trim(strings.NewReplacer(":", "-", "[", "", "]", "", "%", "-").Replace(u.Host), "-")
	cfg, err := newDestinationConfig("NewHTTP", name, opts, "WithSecret", "WithHeader", "WithIdempotentReceiver")
	if err != nil {
		return nil, err
	}
	if err := checkHeaders(cfg.headers, "Content-Type", "Idempotency-Key", headerTimestamp, headerSignature); err != nil {
		return nil, err
	}
	if err := checkSecret(cfg); err != nil {
		return nil, err
	}
	return &HTTP{
		cfg:  cfg,
		post: newPoster(cfg.client, cfg.timeout),
		url:  func() string { return url },
	}, nil
}

// Name implements [Destination].
func (h *HTTP) Name() string { return h.cfg.name }

// DefaultPolicy implements [PolicyAdviser]: PolicyResend for a receiver that takes
// nothing twice.
func (h *HTTP) DefaultPolicy() Policy {
	if h.cfg.idempotent {
		return PolicyResend
	}
	return PolicyHold
}

// Send implements [Destination] with one POST.
func (h *HTTP) Send(ctx context.Context, m Message) (Receipt, error) {
	body, err := httpBody(m)
	if err != nil {
		return Receipt{}, &SendError{Kind: KindPermanent, Err: fmt.Errorf("notify: http: %w", err)}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url(), bytes.NewReader(body))
	if err != nil {
		return Receipt{}, &SendError{Kind: KindPermanent, Err: fmt.Errorf("notify: http: %w", withoutURL(err))}
	}
	for key, values := range h.cfg.headers {
		req.Header[key] = values
	}
	if host := req.Header.Get("Host"); host != "" { // net/http takes it from here only
		req.Host = host
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", m.ID)
	if h.cfg.secret != nil {
		at := strconv.FormatInt(time.Now().Unix(), 10)
		req.Header.Set(headerTimestamp, at)
		req.Header.Set(headerSignature, sign(h.cfg.secret(), at, body))
	}
	r, err := h.post.do(req, maxReply)
	if err == nil {
		err = httpVerdict(r)
	}
	if err != nil {
		return Receipt{}, prefixed("notify: http", err)
	}
	return Receipt{}, nil
}

// httpBody does not contain what differs between attempts: a receiver may
// compare the second body with the first.
func httpBody(m Message) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(struct {
		ID         string          `json:"id"`
		RunID      string          `json:"run_id"`
		Event      string          `json:"event"`
		Generation int             `json:"generation"`
		CreatedAt  string          `json:"created_at"`
		Text       string          `json:"text,omitempty"`
		Blocks     json.RawMessage `json:"blocks,omitempty"`
		Thread     string          `json:"thread,omitempty"`
		Link       string          `json:"link,omitempty"`
		Payload    json.RawMessage `json:"payload,omitempty"`
	}{
		m.ID, m.RunID, m.Event, m.Generation, m.CreatedAt.UTC().Format(time.RFC3339Nano),
		m.Text, m.Blocks, m.Thread, m.Link, m.Payload,
	})
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// httpVerdict says what a reply means; nil is sent. The table is in [NewHTTP].
func httpVerdict(r reply) error {
	switch r.status {
	case http.StatusTooManyRequests:
		return r.rateLimited()
	case http.StatusConflict, http.StatusSeeOther, http.StatusNotModified:
		return r.failed(KindUncertain)
	case http.StatusMovedPermanently, http.StatusPermanentRedirect:
		e := r.failed(KindPermanent)
		e.Err = fmt.Errorf("%w: redirects are not followed, configure the new URL", e.Err)
		return e
	case 400, 405, 406, 410, 411, 413, 414, 415, 417, 422, 431:
		return r.failed(KindPermanent)
	case 300, 302, 307:
		return r.failed(KindNotSent)
	}
	switch {
	case r.status >= 200 && r.status < 300:
		return nil
	case r.status >= 400 && r.status < 500:
		return r.failed(KindNotSent)
	}
	return r.failed(KindUncertain)
}
