package llmcache

import (
	"net/http"
	"regexp"
	"strings"

	"github.com/nexuscore/onceq/internal/setting"
	"github.com/nexuscore/onceq/llmcache/internal/wire"
)

// TransportOption sets one thing of a [Transport]; see [Cache.NewTransport].
type TransportOption func(*transportConfig)

type transportConfig struct {
	refusal
	providers  []wire.Provider
	keyHeaders []string
	tenant     func(*http.Request) string
	pace       bool
}

// WithCompatible adds servers that speak a known API at a path of their own: POST
// requests to paths that end in suffix, which begins with a slash.
func WithCompatible(suffix string, api API) TransportOption {
	return func(c *transportConfig) {
		if !strings.HasPrefix(suffix, "/") || strings.ContainsAny(suffix, "?#") {
			c.refuse("WithCompatible: suffix %q, the end of a path is needed, from a slash on", suffix)
		}
		if !api.known() {
			c.refuse("WithCompatible: API %q is not known, see OpenAIChat and the others", api)
		}
		c.providers = append(c.providers, wire.Compatible("compatible", suffix, wire.API(api)))
	}
}

// WithProvider adds requests that are not built in. Those added first are asked
// first, and all before the built-in ones.
func WithProvider(p Provider) TransportOption {
	return func(c *transportConfig) {
		if setting.IsNil(p) {
			c.refuse("WithProvider: the provider is nil")
		}
		c.providers = append(c.providers, &hostProvider{Provider: p})
	}
}

var headerName = regexp.MustCompile("^[-!#$%&'*+.^_`|~0-9A-Za-z]+$")

// WithKeyHeaders names request headers of the host's own that change an answer.
// Without it only the providers' version and feature headers count. Never name one
// that carries a credential or differs from call to call.
func WithKeyHeaders(names ...string) TransportOption {
	return func(c *transportConfig) {
		for _, name := range names {
			if !headerName.MatchString(name) {
				c.refuse("WithKeyHeaders: %q is no name of a header", name)
			}
		}
		c.keyHeaders = append(c.keyHeaders, names...)
	}
}

// WithTenantFunc says whose a shared answer is when the context names no tenant.
// By default each credential is a tenant of its own, known by a hash, so that no
// account sees another's answers; where credentials change by the hour (OAuth),
// name the account instead. Return "" to share with everyone.
func WithTenantFunc(f func(*http.Request) string) TransportOption {
	return func(c *transportConfig) {
		if f == nil {
			c.refuse("WithTenantFunc: the function is nil")
		}
		c.tenant = f
	}
}

// WithPace replays streams as slowly as they came. Default is at once.
func WithPace() TransportOption { return func(c *transportConfig) { c.pace = true } }
