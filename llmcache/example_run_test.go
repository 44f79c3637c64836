package llmcache_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/llmcache"
)

var silent = slog.New(slog.DiscardHandler)

// deliver runs a handler as an asynq server with the guard's middleware does.
func deliver(rdb *redis.Client, prefix, key string, handle asynq.HandlerFunc) error {
	guard, err := idempotent.New(rdb, idempotent.WithPrefix(prefix), idempotent.WithLogger(silent),
		idempotent.WithKeyFunc(func(*asynq.Task) string { return key }))
	if err != nil {
		return err
	}
	return guard.Middleware(handle).ProcessTask(context.Background(), asynq.NewTask("orchestrator:run", nil))
}

// A run fails after its first call and runs again: the call is paid once. Who reads
// the ledger outside the run needs a cache with the guard's prefix.
func ExampleLedger_Of() {
	server, err := miniredis.Run() // your Redis
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	cache, err := llmcache.New(rdb, llmcache.WithPrefix("acme"), llmcache.WithLogger(silent), llmcache.WithPrices(llmcache.Prices{
		"gpt-x": {Input: 2_500_000, Output: 10_000_000}, // micro-dollars per million tokens
	}))
	if err != nil {
		fmt.Println(err)
		return
	}

	key := idempotent.Key("orchestrator-run", 42)
	for attempt := range 2 {
		err := deliver(rdb, "acme", key, func(ctx context.Context, _ *asynq.Task) error {
			title, err := llmcache.Do(ctx, cache, llmcache.Request{Model: "gpt-x", System: "a title"}, model("On caching"))
			fmt.Println(title, err)
			if attempt == 0 {
				return errors.New("the database is away")
			}
			return nil
		})
		fmt.Println("attempt:", err)
	}

	account, err := cache.Ledger().Of(context.Background(), key)
	fmt.Printf("paid %d call, %d micro-dollars; saved %d, %d micro-dollars; %v\n",
		account.Paid.Calls, account.Paid.CostMicros, account.Saved.Calls, account.Saved.CostMicros, err)
	// Output:
	// calling
	// On caching <nil>
	// attempt: the database is away
	// On caching <nil>
	// attempt: <nil>
	// paid 1 call, 3500 micro-dollars; saved 1, 3500 micro-dollars; <nil>
}

// A budget of two calls for the run: the third is not made, and its error is
// permanent, so that the guard fails the run rather than trying again.
func ExampleLimit() {
	server, err := miniredis.Run() // your Redis
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	cache, err := llmcache.New(rdb, llmcache.WithLogger(silent))
	if err != nil {
		fmt.Println(err)
		return
	}

	err = deliver(rdb, "onceq", "orchestrator-run-42", func(ctx context.Context, _ *asynq.Task) error {
		ctx = llmcache.With(ctx, llmcache.Limit(llmcache.Budget{Calls: 2}))
		for _, chapter := range []string{"one", "two", "three"} {
			_, err := llmcache.Do(ctx, cache, llmcache.Request{Model: "gpt-x", System: chapter}, model("..."))
			if spent, ok := errors.AsType[*llmcache.BudgetError](err); ok {
				fmt.Printf("chapter %s: %s spent, %d paid\n", chapter, spent.What, spent.Totals.Paid.Calls)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	fmt.Println(errors.Is(err, llmcache.ErrBudget), errors.Is(err, asynq.SkipRetry))
	// Output:
	// calling
	// calling
	// chapter three: calls spent, 2 paid
	// true true
}
