package main

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/checkpoint"
	"github.com/nexuscore/onceq/idempotent"
)

func TestHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the clock jumps whenever everybody waits
		mini := miniredis.NewMiniRedis()
		mini.ClockTTL(true)
		rdb := redis.NewClient(&redis.Options{
			Addr:   "127.0.0.1:6379", // a literal IP: nothing is resolved, and nothing dialled
			Dialer: func(context.Context, string, string) (net.Conn, error) { return mini.Dial() },
		})
		defer mini.Close()
		defer func() { _ = rdb.Close() }()
		guard, snapshots := must(idempotent.New(rdb)), must(checkpoint.NewRedisStore(rdb))

		ran := 0
		handler := guard.Middleware(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
			_, err := checkpoint.Run(ctx, snapshots, []checkpoint.Phase[Plan]{
				{Name: "context", Run: func(ctx context.Context, p *Plan) error { ran++; return gather(ctx, p) }},
				{Name: "planning", Run: outline},
			}, Plan{Goal: string(t.Payload())})
			return err
		}))
		deliver := func() error { // what asynq does; the header is the producer's
			return handler.ProcessTask(t.Context(), asynq.NewTaskWithHeaders("plan", []byte("a word counter"),
				map[string]string{idempotent.KeyHeader: "plan-42"}))
		}
		if err := deliver(); err == nil {
			t.Error("attempt 1 succeeded")
		}
		time.Sleep(time.Hour)
		if err := deliver(); err != nil || ran != 1 {
			t.Errorf("attempt 2: %v; phase context ran %d times", err, ran)
		}
		if run, err := guard.Lookup(t.Context(), "plan-42"); err != nil || run.State != idempotent.StateSucceeded {
			t.Errorf("the run is %v, %v", run.State, err)
		}
	})
}
