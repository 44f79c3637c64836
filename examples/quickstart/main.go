// Quickstart: one run, submitted twice, fails in its second phase and goes on there.
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/checkpoint"
	"github.com/nexuscore/onceq/idempotent"
)

type Plan struct{ Goal, Context, Outline string }

func gather(_ context.Context, p *Plan) error { p.Context = "gathered at great expense"; return nil }
func outline(ctx context.Context, p *Plan) error {
	if idempotent.MustFromContext(ctx).Number() == 1 {
		return errors.New("the model timed out")
	}
	p.Outline = "an outline of " + p.Goal
	return nil
}

func main() {
	mini := must(miniredis.Run()) // instead of the Redis that your asynq uses
	mini.ClockTTL(true)           // or no lease would ever expire in it
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr()})
	guard, snapshots, attempts := must(idempotent.New(rdb)), must(checkpoint.NewRedisStore(rdb)), make(chan string)
	mux := asynq.NewServeMux()
	mux.Use(guard.Middleware)
	mux.HandleFunc("plan", func(ctx context.Context, t *asynq.Task) error {
		phases := []checkpoint.Phase[Plan]{{Name: "context", Run: gather}, {Name: "planning", Run: outline}}
		plan, err := checkpoint.Run(ctx, snapshots, phases, Plan{Goal: string(t.Payload())})
		attempts <- fmt.Sprintf("%+v, error: %v", plan, err)
		return err
	})
	recoverer := must(idempotent.NewRecoverer(guard)) // finds the runs of workers that were killed
	srv := asynq.NewServerFromRedisClient(rdb, guard.ServerConfig(asynq.Config{}))
	must(srv, errors.Join(recoverer.Start(), srv.Start(mux)))
	defer func() { srv.Shutdown(); recoverer.Shutdown() }() // in this order
	producer, task := must(idempotent.NewProducer(guard, asynq.NewClientFromRedisClient(rdb))), asynq.NewTask("plan", []byte("a word counter"))
	for range 2 { // a double click: the second is refused
		_, err := producer.Enqueue(context.Background(), idempotent.Key("plan", 42), task, asynq.Timeout(2*time.Hour))
		fmt.Println("submitted:", err)
	}
	fmt.Printf("attempt 1: %s\nattempt 2: %s\n", <-attempts, <-attempts)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
