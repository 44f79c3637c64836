package llmcache

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nexuscore/onceq/internal/redistest"
)

// prices: 2 micro-units an input token, half for cached ones, 10 an output token.
var prices = Prices{"m": {Input: 2_000_000, Output: 10_000_000, Cached: 1_000_000}}

func account(t *testing.T, c *Cache, key string) Account {
	t.Helper()
	a, err := c.Ledger().Of(t.Context(), key)
	if err != nil {
		t.Fatalf("Ledger.Of: %v", err)
	}
	return a
}

func total(t *testing.T, c *Cache) Account {
	t.Helper()
	a, err := c.Ledger().Total(t.Context())
	if err != nil {
		t.Fatalf("Ledger.Total: %v", err)
	}
	return a
}

func same(t *testing.T, what string, got, want Account) {
	t.Helper()
	got.Open = nil
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		t.Errorf("%s\n got %+v\nwant %+v", what, got, want)
	}
}

func TestLedger(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	c := open(t, rdb, WithPrices(prices))
	m := model{usage: Usage{InputTokens: 100, OutputTokens: 20, CachedTokens: 40}}
	one := Sum{Calls: 1, InputTokens: 100, OutputTokens: 20, CachedTokens: 40, CostMicros: 60*2 + 40*1 + 20*10}
	times := func(n int64) Sum {
		return Sum{Calls: n, InputTokens: n * 100, OutputTokens: n * 20, CachedTokens: n * 40, CostMicros: n * one.CostMicros}
	}
	ctx, _ := attempt(t, t.Context(), "run", "p")
	do(t, ctx, c, &m)
	do(t, ctx, c, &m)
	same(t, "two calls", account(t, c, "run"), Account{Paid: times(2)})

	ctx, _ = attempt(t, t.Context(), "run", "p")
	do(t, ctx, c, &m)
	do(t, With(ctx, Bypass()), c, &m)
	shared := With(ctx, Scope(SharedScope))
	do(t, shared, c, &m)
	do(t, shared, c, &m)
	same(t, "a replay, a bypass, a shared call and its hit", account(t, c, "run"), Account{Paid: times(4), Saved: times(2)})

	do(t, t.Context(), c, &m) // outside the run
	same(t, "the run after a call outside", account(t, c, "run"), Account{Paid: times(4), Saved: times(2)})
	same(t, "the total", total(t, c), Account{Paid: times(4), Saved: times(3)})
	same(t, "an unknown run", account(t, c, "other"), Account{})

	if _, err := c.Ledger().Of(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "empty") {
		t.Errorf("Of(\"\") = %v, want an error", err)
	}
	_, _ = Do(ctx, c, Request{Model: "unknown"}, m.ask)
	if got := account(t, c, "run").Paid.Unpriced; got != 1 {
		t.Errorf("Unpriced = %d, want 1", got)
	}
}

// What a provider says of its own cache comes through the transport into the ledger,
// with the answer into Redis, and out again with each hit.
func TestPromptCacheTokensInTheLedger(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	c := open(t, rdb, WithPrices(Prices{"claude-x": {Input: 1_000_000, Cached: 100_000, CacheWrite: 2_000_000, Output: 5_000_000}}))
	p := &provider{answer: func(int64, *http.Request, []byte) (*http.Response, error) {
		return jsonAnswer(200, `{"type":"message","model":"claude-x","content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn",`+
			`"usage":{"input_tokens":25,"output_tokens":15,"cache_read_input_tokens":100,"cache_creation_input_tokens":7}}`), nil
	}}
	for range 2 {
		ctx, _ := attempt(t, t.Context(), "run", "p")
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, "https://api.anthropic.com/v1/messages",
			strings.NewReader(`{"model":"claude-x","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`))
		req.Header.Set("Content-Type", "application/json")
		get(t, c.Transport(p), req)
	}
	sum := Sum{Calls: 1, InputTokens: 132, OutputTokens: 15, CachedTokens: 100, CacheWriteTokens: 7, CostMicros: 25 + 10 + 14 + 75}
	same(t, "the run", account(t, c, "run"), Account{Paid: sum, Saved: sum})
	same(t, "the total", total(t, c), Account{Paid: sum, Saved: sum})
}

// The process died in a call: the ledger says so while it can still be paid, and
// the next attempt calls again, or asks.
func TestCrashDuringACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Bubble(t)
		c := open(t, rdb)
		hash, _ := prompt("prompt").hash()
		crash := func() {
			ctx, _ := attempt(t, t.Context(), "run", "p")
			p, err := c.locate(With(ctx, Label("a")), hash, "")
			if err != nil {
				t.Fatal(err)
			}
			if b, err := c.store.Begin(ctx, p.slot, p.claim(c, "dead", "m")); err != nil || b.State != StateMine {
				t.Fatalf("Begin = %+v, %v", b, err)
			}
		}
		crash()
		a := account(t, c, "run")
		if len(a.Open) != 1 || !a.Open[0].Held || a.MaybePaid() != 0 || a.Open[0].Model != "m" || a.Open[0].Label != "a" {
			t.Errorf("while it runs: %+v", a)
		}
		began := a.Open[0].Since
		time.Sleep(31 * time.Second)
		if a := account(t, c, "run"); a.MaybePaid() != 1 || a.Wasted.Calls != 0 {
			t.Errorf("after the crash: %+v, want one call that may have been paid", a)
		}

		asks := open(t, rdb, WithRefuseMaybePaid())
		var m model
		ctx, _ := attempt(t, t.Context(), "run", "p")
		_, err := Do(With(ctx, Label("a")), asks, prompt("prompt"), m.ask)
		maybe, ok := errors.AsType[*MaybePaidError](err)
		if !ok || !errors.Is(err, ErrMaybePaid) || !maybe.Permanent() || maybe.Run != "run" || !maybe.Call.Since.Equal(began) || m.calls.Load() != 0 {
			t.Errorf("refusing: %v after %d calls", err, m.calls.Load())
		}

		ctx, _ = attempt(t, t.Context(), "run", "p")
		do(t, With(ctx, Label("a")), c, &m)
		same(t, "called again", account(t, c, "run"), Account{Paid: Sum{Calls: 1}, Wasted: Sum{Calls: 1}})
		same(t, "total", total(t, c), Account{Paid: Sum{Calls: 1}, Wasted: Sum{Calls: 1}})
		if a := account(t, c, "run"); len(a.Open) != 0 {
			t.Errorf("still open: %+v", a.Open)
		}
	})
}

func TestBudgetStopsBeforeTheCall(t *testing.T) {
	t.Parallel()
	usage := Usage{InputTokens: 10, OutputTokens: 10}
	for name, tc := range map[string]struct {
		budget Budget
		what   string
		calls  int64
	}{
		"calls":  {Budget{Calls: 3}, "calls", 3},
		"tokens": {Budget{Tokens: 50}, "tokens", 2}, // the third would make 60
		"cost":   {Budget{CostMicros: 240}, "cost", 2},
		"first":  {Budget{Tokens: 1}, "tokens", 1}, // nothing is known of the first call
	} {
		for _, scope := range []Sharing{RunScope, SharedScope} {
			t.Run(fmt.Sprint(name, scope), func(t *testing.T) {
				t.Parallel()
				_, rdb := redistest.Mini(t)
				c := open(t, rdb, WithPrices(prices), WithBudget(tc.budget))
				m := model{usage: usage}
				ctx, _ := attempt(t, t.Context(), "run", "p")
				ctx = With(ctx, Scope(scope))
				var err error
				for i := 0; err == nil && i < 10; i++ {
					_, err = Do(ctx, c, prompt(fmt.Sprint(i)), m.ask)
				}
				over, ok := errors.AsType[*BudgetError](err)
				if !ok || !errors.Is(err, ErrBudget) || !over.Permanent() || over.What != tc.what || over.Run != "run" || over.Limit != tc.budget {
					t.Errorf("Do = %v, want a BudgetError of %s", err, tc.what)
				}
				if got := m.calls.Load(); got != tc.calls {
					t.Errorf("%d calls, want %d", got, tc.calls)
				}
				if a := account(t, c, "run"); a.Paid.Calls != tc.calls || len(a.Open) != 0 {
					t.Errorf("account %+v, want %d calls and none open", a, tc.calls)
				}
				// What is stored can still be had, and another limit lets more through.
				again, _ := attempt(t, t.Context(), "run", "p")
				again = With(again, Scope(scope))
				if got := do(t, again, c, &m, "0"); got != "answer 1" {
					t.Errorf("replay: %q", got)
				}
				do(t, With(again, Limit(Budget{})), c, &m, "more")
			})
		}
	}
	// Bypass is no way around it.
	_, rdb := redistest.Mini(t)
	c := open(t, rdb, WithBudget(Budget{Calls: 1}))
	var m model
	ctx, _ := attempt(t, t.Context(), "run", "p")
	ctx = With(ctx, Bypass())
	do(t, ctx, c, &m)
	if _, err := Do(ctx, c, prompt("x"), m.ask); !errors.Is(err, ErrBudget) {
		t.Errorf("bypass: %v, want ErrBudget", err)
	}
}

// The store counts what it stores; the same answer sent twice counts once.
func TestLedgerCountsALostReplyOnce(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	store := &flaky{Store: newRedisStore(rdb)}
	c := open(t, nil, WithStore(store))
	var m model
	ctx, _ := attempt(t, t.Context(), "run", "p")
	store.lose = 2 // the first count of the total, and that of its repetition
	do(t, ctx, c, &m)
	_ = c.Flush(t.Context())
	_ = c.Flush(t.Context())
	if err := c.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	same(t, "total", total(t, c), Account{Paid: Sum{Calls: 1}})
}

// flaky loses replies of Count after they took effect.
type flaky struct {
	Store
	lose int
}

func (f *flaky) Count(ctx context.Context, key, id string, add Account, ttl time.Duration) error {
	err := f.Store.Count(ctx, key, id, add, ttl)
	if f.lose > 0 {
		f.lose--
		return fmt.Errorf("%w: reply lost", ErrUnavailable)
	}
	return err
}

func TestLedgerWithoutRedis(t *testing.T) {
	t.Parallel()
	m, rdb := redistest.Mini(t)
	c := open(t, rdb)
	m.Close()
	if _, err := c.Ledger().Of(t.Context(), "run"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("Of = %v, want ErrUnavailable", err)
	}
}

func TestPrices(t *testing.T) {
	t.Parallel()
	p := Prices{"gpt-x": {Input: 1}, "gpt-*": {Input: 2}, "gpt-x-mini*": {Input: 3}}
	for model, want := range map[string]int64{"gpt-x": 1, "gpt-y": 2, "gpt-x-2026": 2, "gpt-x-mini-2026": 3, "claude": 0, "": 0} {
		if got, _ := p.of(model); got.Input != want {
			t.Errorf("price of %q = %d, want %d", model, got.Input, want)
		}
	}
	if got, _ := p.of("alias", "gpt-x"); got.Input != 1 {
		t.Errorf("price by the provider's name = %d, want 1", got.Input)
	}
	for _, c := range []struct {
		price Price
		usage Usage
		want  int64
	}{
		{Price{Input: 2_500_000}, Usage{InputTokens: 1}, 3},                                 // 2.5 is rounded up
		{Price{Input: 150_000}, Usage{InputTokens: 3}, 0},                                   // 0.45 down
		{Price{Input: 150_000, Output: 600_000}, Usage{InputTokens: 1, OutputTokens: 1}, 1}, // 0.75: rounded once
		{Price{Input: 10, Cached: 1_000_000}, Usage{InputTokens: 5, CachedTokens: 9}, 5},    // never more cached than input
		{Price{Input: maxPrice, Output: maxPrice}, Usage{InputTokens: maxTokens, OutputTokens: maxTokens}, 2 * maxTokens * 1_000_000},
		{ // 132 tokens: 25 new, 100 read, 7 written
			Price{Input: 1_000_000, Cached: 100_000, CacheWrite: 2_000_000, Output: 5_000_000},
			Usage{InputTokens: 132, OutputTokens: 15, CachedTokens: 100, CacheWriteTokens: 7}, 25 + 10 + 14 + 75,
		},
		{Price{Input: 1_000_000}, Usage{InputTokens: 10, CacheWriteTokens: 4}, 10},                                        // without a price of its own: as input
		{Price{Input: 1_000_000, CacheWrite: 2_000_000}, Usage{InputTokens: 10, CachedTokens: 8, CacheWriteTokens: 9}, 4}, // never more in all than input
		{Price{CacheWrite: maxPrice}, Usage{InputTokens: maxTokens, CacheWriteTokens: maxTokens}, maxTokens * 1_000_000},
	} {
		if got := c.price.cost(c.usage); got != c.want {
			t.Errorf("cost of %+v at %+v = %d, want %d", c.usage, c.price, got, c.want)
		}
	}
	if s := p.sum(Usage{InputTokens: -5, OutputTokens: 1 << 60}, "gpt-x"); s.InputTokens != 0 || s.OutputTokens != maxTokens {
		t.Errorf("sum of nonsense = %+v", s)
	}
}
