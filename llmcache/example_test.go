package llmcache_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/nexuscore/onceq/llmcache"
)

// newCache makes a cache for the examples; a program writes llmcache.New(rdb).
func newCache(opts ...llmcache.Option) *llmcache.Cache {
	cache, err := llmcache.New(nil, append(opts, llmcache.WithStore(llmcache.NewMemoryStore()))...)
	if err != nil {
		panic(err)
	}
	return cache
}

// model answers and says so.
func model(answer string) func(context.Context) (llmcache.Answer[string], error) {
	return func(context.Context) (llmcache.Answer[string], error) {
		fmt.Println("calling")
		return llmcache.Answer[string]{
			Value: answer,
			Usage: llmcache.Usage{InputTokens: 1000, OutputTokens: 100},
		}, nil
	}
}

// provider is a local stand-in for an OpenAI-compatible server.
func provider() *httptest.Server {
	calls := 0
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"model":"gpt-x","choices":[{"index":0,"message":{"role":"assistant","content":"answer %d"},"finish_reason":"stop"}]}`, calls)
	}))
}

func ExampleDo() {
	ctx := context.Background()
	cache := newCache()
	req := llmcache.Request{
		Provider: "openai", Model: "gpt-x", Task: "title v1",
		Messages: []string{"Give this page a title: ..."},
		Params:   map[string]any{"temperature": 0, "max_tokens": 20},
	}
	for range 2 {
		title, err := llmcache.Do(ctx, cache, req, model("On caching"))
		fmt.Println(title, err)
	}
	// Output:
	// calling
	// On caching <nil>
	// On caching <nil>
}

// One line gives an SDK's HTTP client the cache.
func ExampleCache_Transport() {
	srv := provider()
	defer srv.Close()
	cache := newCache()
	client := &http.Client{Transport: cache.Transport(nil)}

	for range 2 {
		resp, err := client.Post(srv.URL+"/v1/chat/completions", "application/json",
			strings.NewReader(`{"model":"gpt-x","messages":[{"role":"user","content":"hi"}]}`))
		if err != nil {
			fmt.Println(err)
			return
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		fmt.Println(strings.Contains(string(body), "answer 1"), "replayed:", resp.Header.Get(llmcache.ReplayedHeader) == "1")
	}
	// Output:
	// true replayed: false
	// true replayed: true
}

// Tenants do not see each other's answers, and a Refresh replaces one.
func ExampleWith() {
	ctx := context.Background()
	cache := newCache()
	req := llmcache.Request{Model: "gpt-x", System: "What is new?"}
	acme := llmcache.With(ctx, llmcache.Tenant("acme"))

	for _, ctx := range []context.Context{ctx, acme, acme, llmcache.With(acme, llmcache.Refresh())} {
		answer, _ := llmcache.Do(ctx, cache, req, model("nothing"))
		fmt.Println(answer)
	}
	// Output:
	// calling
	// nothing
	// calling
	// nothing
	// nothing
	// calling
	// nothing
}

func ExampleLedger_Total() {
	ctx := context.Background()
	cache := newCache(llmcache.WithPrices(llmcache.Prices{
		"gpt-x*": {Input: 2_500_000, Output: 10_000_000}, // micro-dollars per million tokens
	}))
	req := llmcache.Request{Model: "gpt-x-mini", System: "hi"}
	for range 3 {
		_, _ = llmcache.Do(ctx, cache, req, model("hello"))
	}
	total, err := cache.Ledger().Total(ctx)
	fmt.Printf("paid %d call, %d micro-dollars; saved %d calls, %d micro-dollars; %v\n",
		total.Paid.Calls, total.Paid.CostMicros, total.Saved.Calls, total.Saved.CostMicros, err)
	// Output:
	// calling
	// paid 1 call, 3500 micro-dollars; saved 2 calls, 7000 micro-dollars; <nil>
}

// A budget error is permanent: package idempotent fails the run at once.
func ExampleBudgetError() {
	var err error = &llmcache.BudgetError{
		Run: "orchestrator-run-42", What: "calls", Limit: llmcache.Budget{Calls: 100},
		Totals: llmcache.Account{Paid: llmcache.Sum{Calls: 100, InputTokens: 9000, OutputTokens: 1000}},
	}
	fmt.Println(errors.Is(err, llmcache.ErrBudget), err)
	// Output:
	// true llmcache: budget of the run is spent: run "orchestrator-run-42" has spent 100 calls, 10000 tokens, 0 micro-units with 0 calls open; the limit of calls is 100
}
