package notify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// maxReply bounds what is read of a reply to a POST. It must hold Slack's
	// echo of the message.
	maxReply = 1 << 20
	// longestRetryAfter is the longest pause that a reply can ask for. A clock or a
	// proxy that says "next year" must not silence a destination until then.
	longestRetryAfter = time.Hour
)

// poster makes requests that are sent at most once.
type poster struct {
	client  *http.Client
	timeout time.Duration
}

// reply is the answer to a request.
type reply struct {
	status int
	header http.Header
	body   []byte
	// cut says that the body did not arrive whole, and why.
	cut error
}

// newPoster returns a poster that uses the host's client, or its own for nil.
func newPoster(client *http.Client, timeout time.Duration) poster {
	var c http.Client
	if client != nil {
		c = *client
	} else {
		c.Transport = newTransport()
	}
	// A redirect would carry the message and its signature to a host that nobody
	// configured, or turn the POST into a GET whose 200 looks like success.
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return poster{&c, timeout}
}

// newTransport gives every request a connection of its own. Notifications are
// rare, and a kept connection that the server closes just as we write leaves us
// not knowing whether the message arrived. On a fresh connection net/http never
// sends a request twice, and HTTP/1 reports exactly what was written.
func newTransport() *http.Transport {
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		DisableKeepAlives:   true,
		Protocols:           new(http.Protocols),
	}
	t.Protocols.SetHTTP1(true)
	return t
}

// do makes the request once and reads at most limit bytes of the reply. The
// error is a [*SendError] that says whether the request can have arrived.
func (p poster) do(req *http.Request, limit int64) (reply, error) {
	ctx, cancel := context.WithTimeout(req.Context(), p.timeout)
	defer cancel()
	if err := ctx.Err(); err != nil {
		return reply{}, &SendError{Kind: KindNotSent, Err: context.Cause(ctx)}
	}
	// net/http sends a request again that died on a kept connection if it has an
	// Idempotency-Key and its body can be had again. Ours cannot.
	req.GetBody = nil
	var asked, wrote atomic.Bool
	req = req.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn:      func(string) { asked.Store(true) },
		WroteHeaders: func() { wrote.Store(true) },
	}))
	resp, err := p.client.Do(req)
	if err != nil {
		kind := KindUncertain
		// A RoundTripper that calls no hooks tells us nothing: uncertain.
		if asked.Load() && !wrote.Load() {
			kind = KindNotSent
		}
		return reply{}, &SendError{Kind: kind, Err: withoutURL(err)}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err == nil && int64(len(body)) > limit {
		body, err = body[:limit], fmt.Errorf("reply is longer than %d bytes", limit)
	}
	return reply{resp.StatusCode, resp.Header, body, err}, nil
}

// withoutURL drops the URL from an error of net/http: a webhook's URL is its
// password, and errors end up in the table and in logs.
func withoutURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// rateLimited is the answer to a 429.
func (r reply) rateLimited() *SendError {
	return &SendError{
		Kind:        KindNotSent,
		RateLimited: true,
		RetryAfter:  retryAfter(r.header, time.Now()),
		Err:         fmt.Errorf("HTTP 429: %s", excerpt(r.body)),
	}
}

// failed is any other answer by status.
func (r reply) failed(kind Kind) *SendError {
	return &SendError{
		Kind:       kind,
		RetryAfter: retryAfter(r.header, time.Now()),
		Err:        fmt.Errorf("HTTP %d: %s", r.status, excerpt(r.body)),
	}
}

// retryAfter reads a Retry-After header: seconds, with decimals as some send
// them, or a date. 0 means that there is none to go by.
func retryAfter(h http.Header, now time.Time) time.Duration {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if v == "" {
		return 0
	}
	if s, err := strconv.ParseFloat(v, 64); err == nil {
		if math.IsNaN(s) || s <= 0 {
			return 0
		}
		if s > longestRetryAfter.Seconds() {
			return longestRetryAfter
		}
		return time.Duration(s * float64(time.Second))
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	// The server meant its own clock.
	if sent, err := http.ParseTime(h.Get("Date")); err == nil {
		now = sent
	}
	return min(max(at.Sub(now), 0), longestRetryAfter)
}

// excerpt is the beginning of a reply, fit for one line in a log.
func excerpt(body []byte) string {
	s := strings.Join(strings.Fields(clean(string(body[:min(len(body), 1000)]))), " ")
	if s == "" {
		return "empty reply"
	}
	return cut(s, 200)
}
