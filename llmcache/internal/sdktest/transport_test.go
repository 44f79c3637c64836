package sdktest

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nexuscore/onceq/internal/lease"
	"github.com/nexuscore/onceq/internal/runkey"
	"github.com/nexuscore/onceq/internal/scope"
	"github.com/nexuscore/onceq/llmcache"
)

// team is one process: a cache over a store that outlives it, and an HTTP client
// to give to SDKs.
type team struct {
	cache *llmcache.Cache
	hc    *http.Client
}

func newTeam(t testing.TB, store llmcache.Store, opts ...llmcache.Option) team {
	t.Helper()
	c, err := llmcache.New(nil, append([]llmcache.Option{llmcache.WithStore(store)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Flush(context.Background()) })
	return team{cache: c, hc: &http.Client{Transport: c.Transport(newPlain(t))}}
}

// attempt is the context of one attempt of a run, in its only phase.
func attempt(t testing.TB, key string) context.Context {
	t.Helper()
	ctx, l := lease.New(t.Context(), lease.Config{
		Prefix: "onceq", Key: key, Base: runkey.Base("onceq", key), Owner: "o", Generation: 1, Attempt: 1,
		TTL: time.Hour, Margin: time.Second,
	}, time.Now())
	t.Cleanup(func() { l.End() })
	return scope.New(ctx, "phase", "")
}

func (c client) reply(n int) reply { return reply{media: c.media, body: c.answer(n), cut: -1} }

func (c client) must(t testing.TB, ctx context.Context, tm team, base string) string {
	t.Helper()
	s, err := c.ask(ctx, tm.hc, base)
	if err != nil {
		t.Fatalf("%s: %v", c.name, err)
	}
	return s
}

// TestThreeSamplesAndTheirReplay: three identical calls of a run are three calls
// with three answers. The attempt that resumes it, in another process, gets the
// same three as its SDK decodes them, and pays for none, however the answers
// travelled.
func TestThreeSamplesAndTheirReplay(t *testing.T) {
	for _, way := range []struct {
		name  string
		piece int
		gzip  bool
	}{{"at once", 0, false}, {"byte by byte", 1, false}, {"in pieces of 11", 11, false}, {"gzip", 0, true}, {"gzip in pieces of 11", 11, true}} {
		for _, c := range clients {
			t.Run(way.name+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				p := serve(t, func(n int, _ *http.Request, _ []byte) reply {
					r := c.reply(n)
					r.piece, r.gzip = way.piece, way.gzip
					return r
				})
				store := llmcache.NewMemoryStore()
				first, second := newTeam(t, store), newTeam(t, store)
				one, two := attempt(t, "run-1"), attempt(t, "run-1")
				var want []string
				for range 3 {
					want = append(want, c.must(t, one, first, p.URL))
				}
				if want[0] == want[1] || want[1] == want[2] || want[0] == want[2] || p.count() != 3 {
					t.Fatalf("%d calls gave %q", p.count(), want)
				}
				for i := range 3 {
					if got := c.must(t, two, second, p.URL); got != want[i] {
						t.Errorf("sample %d is replayed as\n%q\nand was\n%q", i+1, clip(got), clip(want[i]))
					}
				}
				if p.count() != 3 {
					t.Errorf("%d calls were paid, want 3", p.count())
				}
				c.checkLedger(t, first, second)
				if got := c.must(t, two, second, p.URL); got == want[0] || got == want[1] || got == want[2] {
					t.Error("a fourth sample is one of the three")
				}
			})
		}
	}
}

// checkLedger expects three calls paid and the same three saved.
func (c client) checkLedger(t *testing.T, teams ...team) {
	t.Helper()
	for _, tm := range teams {
		if err := tm.cache.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	a, err := teams[0].cache.Ledger().Of(t.Context(), "run-1")
	if err != nil {
		t.Fatal(err)
	}
	want := llmcache.Sum{Calls: 3, InputTokens: c.tokens[0], OutputTokens: c.tokens[1], CachedTokens: c.tokens[2]}
	for name, got := range map[string]llmcache.Sum{"paid": a.Paid, "saved": a.Saved} {
		got.Unpriced = 0 // no prices are given
		if got != want {
			t.Errorf("%s %+v, want %+v", name, got, want)
		}
	}
	if a.Wasted != (llmcache.Sum{}) || len(a.Open) != 0 {
		t.Errorf("wasted %+v, open %+v", a.Wasted, a.Open)
	}
}

// TestNoSecretIsStored: nothing that authenticates reaches the store.
func TestNoSecretIsStored(t *testing.T) {
	for _, c := range clients {
		p := serve(t, func(n int, _ *http.Request, _ []byte) reply { return c.reply(n) })
		store := &spy{Store: llmcache.NewMemoryStore()}
		c.must(t, attempt(t, "run-1"), newTeam(t, store, llmcache.WithCompressAbove(1<<20)), p.URL)
		if len(store.seen()) == 0 {
			t.Errorf("%s: nothing was stored", c.name)
		}
		// Ollama has no credentials, and Google's API client leaves them to the HTTP
		// client when it is given one.
		if sent := fmt.Sprint(p.calls[0].path, p.calls[0].header); !strings.Contains(sent, "secret") && !strings.Contains(sent, "AKIATEST") &&
			!strings.Contains(c.name, "ollama") && !strings.Contains(c.name, "googleai") {
			t.Errorf("%s: the provider got no secret: the test proves nothing", c.name)
		}
		for _, secret := range []string{"secret", "AKIATEST"} {
			if strings.Contains(store.seen(), secret) {
				t.Errorf("%s: %q is in the store", c.name, secret)
			}
		}
	}
}

// TestCrowdPaysOnce: 20 callers in two processes, cold, in the shared scope.
func TestCrowdPaysOnce(t *testing.T) {
	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			release := make(chan struct{})
			p := serve(t, func(n int, _ *http.Request, _ []byte) reply {
				r := c.reply(n)
				r.hold = release
				return r
			})
			store := llmcache.NewMemoryStore()
			teams := []team{newTeam(t, store), newTeam(t, store)}
			ctx := llmcache.With(t.Context(), llmcache.Scope(llmcache.SharedScope))
			var wg sync.WaitGroup
			got := make([]string, 20)
			errs := make([]error, len(got))
			for i := range got {
				wg.Go(func() { got[i], errs[i] = c.ask(ctx, teams[i%2].hc, p.URL) })
			}
			for p.count() == 0 {
				time.Sleep(time.Millisecond)
			}
			close(release)
			wg.Wait()
			for i := range got {
				if errs[i] != nil || got[i] != got[0] {
					t.Fatalf("caller %d: %v, %q, not %q", i, errs[i], clip(got[i]), clip(got[0]))
				}
			}
			if p.count() != 1 {
				t.Errorf("%d calls, want 1", p.count())
			}
		})
	}
}
