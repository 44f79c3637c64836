package notify

import (
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"time"

	"github.com/nexuscore/onceq/internal/setting"
)

// DestinationOption changes a destination made by [NewSlack],
// [NewSlackWebhook] or [NewHTTP]. A constructor refuses options that mean
// nothing to it.
type DestinationOption func(*destinationConfig)

type destinationConfig struct {
	name    string
	timeout time.Duration
	client  *http.Client

	apiURL string
	pages  int

	secret     func() []byte // a closure, so that no %+v prints it; nil without
	headers    http.Header
	idempotent bool

	given []string // options used, to refuse those that do not apply
}

// WithName names the destination. Rows wait under the name: keep it between
// deploys. Each constructor has a default.
func WithName(name string) DestinationOption {
	return func(c *destinationConfig) { c.name = name; c.given = append(c.given, "WithName") }
}

// WithTimeout bounds one request, from dialling to the end of the reply.
// Defaults to 10 s, from 1 ms to 1 h; the outbox's own [WithSendTimeout] holds, too. A message whose
// request ran into it is uncertain, so a short timeout makes work for reconciliation.
func WithTimeout(d time.Duration) DestinationOption {
	return func(c *destinationConfig) { c.timeout = d; c.given = append(c.given, "WithTimeout") }
}

// WithHTTPClient sends through the host's client, for its proxy, certificates or
// tracing; nil for the default. Redirects are not followed all the same. Its transport must not
// retry: retries below us are messages sent twice. The default client opens a
// connection for each request, see [NewHTTP].
func WithHTTPClient(client *http.Client) DestinationOption {
	return func(c *destinationConfig) { c.client = client; c.given = append(c.given, "WithHTTPClient") }
}

// WithAPIURL sends a [Slack] destination's calls to another base URL than
// https://slack.com/api/, for tests or a gateway.
func WithAPIURL(base string) DestinationOption {
	return func(c *destinationConfig) { c.apiURL = base; c.given = append(c.given, "WithAPIURL") }
}

// WithHistoryPages bounds how much history a [Slack] destination reads to find
// one message, in pages of 200. Defaults to 25, that is 5,000 messages since the
// first attempt; at most 1,000. Beyond it the answer is "cannot tell", never "not there".
func WithHistoryPages(n int) DestinationOption {
	return func(c *destinationConfig) { c.pages = n; c.given = append(c.given, "WithHistoryPages") }
}

// WithSecret signs what an [HTTP] destination sends; see [VerifySignature]. At
// least 16 bytes.
func WithSecret(secret []byte) DestinationOption {
	return func(c *destinationConfig) {
		c.secret = func() []byte { return secret }
		c.given = append(c.given, "WithSecret")
	}
}

// WithHeader adds a header, such as Authorization, to what an [HTTP]
// destination sends. The headers that [NewHTTP] names cannot be replaced.
func WithHeader(key, value string) DestinationOption {
	return func(c *destinationConfig) {
		if c.headers == nil {
			c.headers = http.Header{}
		}
		c.headers.Add(key, value)
		c.given = append(c.given, "WithHeader")
	}
}

// WithIdempotentReceiver says that the receiver of an [HTTP] destination keeps
// the Idempotency-Key of what it took and takes nothing twice. Uncertain messages
// are then sent again instead of being held.
func WithIdempotentReceiver() DestinationOption {
	return func(c *destinationConfig) { c.idempotent = true; c.given = append(c.given, "WithIdempotentReceiver") }
}

// newDestinationConfig applies and checks the options; allowed are those beyond
// the common three.
func newDestinationConfig(constructor, name string, opts []DestinationOption, allowed ...string) (*destinationConfig, error) {
	c := &destinationConfig{name: name, timeout: 10 * time.Second, apiURL: "https://slack.com/api/", pages: 25}
	if err := setting.Apply(c, opts); err != nil {
		return nil, fmt.Errorf("%w, of %s", err, constructor)
	}
	ok := " WithName WithTimeout WithHTTPClient " + strings.Join(allowed, " ") + " "
	for _, g := range c.given {
		if !strings.Contains(ok, " "+g+" ") {
			return nil, setting.Invalidf("%s: option %s does not apply; those that do: %s", constructor, g, strings.TrimSpace(ok))
		}
	}
	switch {
	case !destinationName.MatchString(c.name):
		return nil, setting.Invalidf("%s: name %q, 1 to 64 letters, digits and \"._-\" are allowed, see WithName", constructor, c.name)
	case c.timeout < time.Millisecond || c.timeout > time.Hour:
		return nil, setting.Invalidf("%s: WithTimeout: %v, from 1ms to 1h are allowed", constructor, c.timeout)
	case c.pages < 1 || c.pages > 1000:
		return nil, setting.Invalidf("%s: WithHistoryPages: %d, from 1 to 1000 are allowed", constructor, c.pages)
	}
	return c, nil
}

// checkURL refuses what nothing could be sent to. It does not show the URL
// beyond its host: it may be a secret.
func checkURL(constructor, raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, setting.Invalidf("%s: URL cannot be parsed", constructor)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, setting.Invalidf("%s: URL with scheme %q and host %q: http or https and a host are needed", constructor, u.Scheme, u.Host)
	}
	return u, nil
}

// checkHeaders refuses headers that are malformed or ours.
func checkHeaders(h http.Header, ours ...string) error {
	for key := range maps.Keys(h) {
		for _, o := range ours {
			if textproto.CanonicalMIMEHeaderKey(o) == key {
				return setting.Invalidf("WithHeader: %s is set by the destination", key)
			}
		}
		for _, v := range h[key] {
			if key == "" || strings.ContainsAny(key+v, "\r\n\x00") || strings.ContainsAny(key, " :") {
				return setting.Invalidf("WithHeader: %q is malformed", key)
			}
		}
	}
	return nil
}
