package idempotent_test

import (
	"context"
	"fmt"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/idempotent"
)

// A worker process runs a Recoverer beside its server: start it after the server,
// shut it down after the server.
func ExampleRecoverer() {
	mini := miniredis.NewMiniRedis() // your Redis
	if err := mini.Start(); err != nil {
		panic(err)
	}
	defer mini.Close()
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr()})
	defer func() { _ = rdb.Close() }()

	guard, err := idempotent.New(rdb, idempotent.WithLogger(quiet),
		idempotent.WithOnFailed(func(_ context.Context, f idempotent.Failure) { // also for what a Recoverer gives up
			fmt.Println("failed:", f.Key, f.Err)
		}))
	if err != nil {
		panic(err)
	}
	// srv := asynq.NewServerFromRedisClient(rdb, guard.ServerConfig(asynq.Config{Concurrency: 10}))
	// srv.Start(mux)

	recoverer, err := idempotent.NewRecoverer(guard)
	if err != nil {
		panic(err)
	}
	if err := recoverer.Start(); err != nil {
		panic(err)
	}
	fmt.Println("runs of workers that die are delivered again")

	// srv.Shutdown()
	recoverer.Shutdown()
	// Output: runs of workers that die are delivered again
}
