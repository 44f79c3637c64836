package llmcache

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/internal/logtest"
	"github.com/nexuscore/onceq/internal/redistest"
)

// refused checks that err wraps ErrInvalid and says what is wrong.
func refused(t *testing.T, err error, want string) {
	t.Helper()
	if !errors.Is(err, ErrInvalid) || !strings.Contains(fmt.Sprint(err), want) {
		t.Errorf("got %v, want ErrInvalid and %q", err, want)
	}
}

// typedSealer and typedStore are what a constructor returns beside an error.
type typedSealer struct{ Sealer }

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	for want, o := range map[string]Option{
		"option 0 is nil":                            nil,
		"WithPrefix: prefix \"a:b\"":                 WithPrefix("a:b"),
		"WithTTL: 0s, from 1ms to 8760h0m0s":         WithTTL(0),
		"WithTTL: 2562047h47m16.854775807s":          WithTTL(math.MaxInt64),
		"WithRunTTL: -1s":                            WithRunTTL(-time.Second),
		"WithRunTTL: 8760h0m1s":                      WithRunTTL(longest + time.Second),
		"WithLeaseTTL: 1ms, from 10ms to 1h0m0s":     WithLeaseTTL(time.Millisecond),
		"WithLeaseTTL: 1h0m1s":                       WithLeaseTTL(time.Hour + time.Second),
		"WithTimeout: 1µs, from 1ms to 1m0s":         WithTimeout(time.Microsecond),
		"WithTimeout: 1h0m0s":                        WithTimeout(time.Hour),
		"WithMaxWait: 0s, from 1ms to 24h0m0s":       WithMaxWait(0),
		"WithMaxWait: 25h0m0s":                       WithMaxWait(25 * time.Hour),
		"WithMaxValue: 0 bytes":                      WithMaxValue(0),
		"WithMaxValue: 268435457 bytes":              WithMaxValue(256<<20 + 1),
		"WithMemory: -1 bytes":                       WithMemory(-1),
		"WithLogger: nil":                            WithLogger(nil),
		"WithSealer: the sealer is nil; what":        WithSealer(nil),
		"WithSealer: the sealer is nil":              WithSealer((*typedSealer)(nil)),
		"WithStore: the store is nil":                WithStore(nil),
		"WithStore: the store":                       WithStore((*MemoryStore)(nil)),
		"WithBudget: Calls is -2":                    WithBudget(Budget{Calls: -2}),
		"WithBudget: Tokens is -1":                   WithBudget(Budget{Tokens: -1}),
		"WithBudget: CostMicros is -3":               WithBudget(Budget{CostMicros: -3}),
		"WithPrices: \"m\" costs -1":                 WithPrices(Prices{"m": {Input: -1}}),
		"WithPrices: \"w\" costs 1000000000001":      WithPrices(Prices{"w": {CacheWrite: maxPrice + 1}}),
		"WithPrices: no model can be called \"\"":    WithPrices(Prices{"": {}}),
		"WithPrices: no model can be called \"a*b":   WithPrices(Prices{"a*b": {}}),
		"WithPrices: no model can be called \"a**\"": WithPrices(Prices{"a**": {}}),
	} {
		t.Run(want, func(t *testing.T) {
			_, err := New(rdb, o)
			refused(t, err, want)
		})
	}
	for _, rdb := range []redis.UniversalClient{nil, (*redis.Client)(nil), (*redis.ClusterClient)(nil)} {
		_, err := New(rdb)
		refused(t, err, "the Redis client is nil")
	}
	if _, err := New((*redis.Client)(nil), WithStore(NewMemoryStore()), WithPrices(Prices{"*": {}, "a*": {}})); err != nil {
		t.Errorf("New with a store of its own: %v", err)
	}
	_, err := NewAESGCM([]byte("short"))
	refused(t, err, "NewAESGCM: key has 5 bytes")
}

func TestTransportOptionsAreChecked(t *testing.T) {
	t.Parallel()
	c := open(t, nil, WithStore(NewMemoryStore()))
	for want, o := range map[string]TransportOption{
		"option 0 is nil":                              nil,
		"WithTenantFunc: the function is nil":          WithTenantFunc(nil),
		"WithProvider: the provider is nil":            WithProvider(nil),
		"WithProvider: the provider":                   WithProvider((*custom)(nil)),
		`WithCompatible: API "zzz" is not known`:       WithCompatible("/foo", "zzz"),
		`WithCompatible: API "" is not known`:          WithCompatible("/foo", ""),
		`WithCompatible: suffix "", the end of a path`: WithCompatible("", OpenAIChat),
		`WithCompatible: suffix "foo"`:                 WithCompatible("foo", OpenAIChat),
		`WithCompatible: suffix "/foo?a=b"`:            WithCompatible("/foo?a=b", OpenAIChat),
		`WithKeyHeaders: "" is no name of a header`:    WithKeyHeaders("X-A", ""),
		`WithKeyHeaders: "X A" is no name`:             WithKeyHeaders("X A"),
	} {
		t.Run(want, func(t *testing.T) {
			_, err := c.NewTransport(nil, o)
			refused(t, err, want)
		})
	}
	_, err := c.NewTransport((*http.Transport)(nil))
	refused(t, err, "base is a nil *http.Transport")
	for _, api := range []API{
		OpenAIChat, OpenAIResponses, OpenAIEmbeddings, OpenAIImages, OpenAIAudio,
		AnthropicMessages, GeminiGenerate, GeminiEmbed, OllamaChat, OllamaEmbed,
	} {
		if _, err := c.NewTransport(nil, WithCompatible("/foo", api)); err != nil {
			t.Errorf("WithCompatible(%q): %v", api, err)
		}
	}
	if tr := c.Transport((*http.Transport)(nil)); tr.base != http.DefaultTransport {
		t.Errorf("base is %T, want http.DefaultTransport for a nil one", tr.base)
	}
}

func TestCallOptionsAreChecked(t *testing.T) {
	t.Parallel()
	c := open(t, nil, WithStore(NewMemoryStore()))
	var m model
	for want, o := range map[string]CallOption{
		"With: onceq: invalid: option 0 is nil":       nil,
		"TTL: 1µs, from 1ms to 8760h0m0s":             TTL(time.Microsecond),
		"TTL: 2562047h47m16.854775807s":               TTL(math.MaxInt64),
		"Tenant: \"xxxxxxxxxxxxxxxxxxxx\"... has 129": Tenant(strings.Repeat("x", 129)),
		"Label: \"\\xff\"... has 1 bytes":             Label("\xff"),
		"Scope: 7":                                    Scope(7),
		"Limit: Calls is -1":                          Limit(Budget{Calls: -1}),
	} {
		t.Run(want, func(t *testing.T) {
			ctx := With(With(t.Context(), o), Refresh()) // an inner With mends nothing
			_, err := Do(ctx, c, prompt("x"), m.ask)
			refused(t, err, want)
			_, err = c.Transport(&provider{}).RoundTrip(ask(t, ctx, plainChat))
			refused(t, err, want)
		})
	}
	_, err := Do[string](t.Context(), c, prompt("x"), nil)
	refused(t, err, "Do: the function is nil")
	_, err = Do(t.Context(), c, Request{Messages: func() {}}, m.ask)
	refused(t, err, "Request.Messages has no key")
	_, err = c.Ledger().Of(t.Context(), "")
	refused(t, err, "Ledger.Of: run key is empty")
	if n := m.calls.Load(); n != 0 {
		t.Errorf("%d calls", n)
	}
}

func TestSwitch(t *testing.T) {
	for value, want := range map[string]struct {
		calls int64
		line  string
	}{
		"":      {1, ""},
		"1":     {1, ""},
		"0":     {2, `level=WARN msg="llmcache: off" by=ONCEQ_LLM_CACHE`},
		"false": {2, `level=WARN msg="llmcache: off" by=ONCEQ_LLM_CACHE`},
		"off":   {2, `level=WARN msg="llmcache: off" by=ONCEQ_LLM_CACHE`},
		"OFF":   {1, `level=WARN msg="llmcache: stays on, its switch has a value that is not known" by=ONCEQ_LLM_CACHE value=OFF allowed="0, false, off"`},
	} {
		t.Run(value, func(t *testing.T) {
			t.Setenv(EnvSwitch, value)
			_, rdb := redistest.Mini(t)
			var n redistest.Counter
			rdb.AddHook(&n)
			var log logtest.Log
			c := open(t, rdb, WithLogger(log.Logger()))
			var m model
			ctx, _ := attempt(t, t.Context(), "run", "p")
			p := &provider{answer: func(n int64, _ *http.Request, _ []byte) (*http.Response, error) { return jsonAnswer(200, chat(n)), nil }}
			for range 2 {
				do(t, With(ctx, Scope(SharedScope)), c, &m)
				get(t, c.Transport(p), ask(t, t.Context(), plainChat))
			}
			if m.calls.Load() != want.calls || p.calls.Load() != want.calls {
				t.Errorf("%d and %d calls, want %d", m.calls.Load(), p.calls.Load(), want.calls)
			}
			if off := want.calls == 2; off != (n.Commands() == 0) {
				t.Errorf("%d commands reached Redis", n.Commands())
			}
			_, line, _ := strings.Cut(strings.TrimSpace(log.String()), " ") // without the time
			if line != want.line {
				t.Errorf("logged %q, want %q", line, want.line)
			}
		})
	}
}

func TestNilCacheCachesNothing(t *testing.T) {
	t.Parallel()
	var c *Cache
	var m model
	do(t, t.Context(), c, &m)
	if got := do(t, t.Context(), c, &m); got != "answer 2" {
		t.Errorf("got %q", got)
	}
	p := &provider{answer: func(n int64, _ *http.Request, _ []byte) (*http.Response, error) { return jsonAnswer(200, chat(n)), nil }}
	with := transport(t, c, p, WithProvider(&custom{}))
	for range 2 {
		get(t, c.Transport(p), ask(t, t.Context(), plainChat))
		get(t, with, ask(t, t.Context(), plainChat))
	}
	if p.calls.Load() != 4 {
		t.Errorf("%d calls, want 4", p.calls.Load())
	}
	if a, err := c.Ledger().Of(t.Context(), "run"); err != nil || !a.zero() {
		t.Errorf("Of = %+v, %v", a, err)
	}
	if a, err := c.Ledger().Total(t.Context()); err != nil || !a.zero() {
		t.Errorf("Total = %+v, %v", a, err)
	}
	if err := c.Flush(context.Background()); err != nil || c.Stats() != (Stats{}) {
		t.Errorf("Flush = %v, Stats = %+v", err, c.Stats())
	}
}
