package checkpoint_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/checkpoint"
)

type Plan struct {
	Goal  string
	Parts []string
	Cost  int
}

var quiet = checkpoint.WithLogger(slog.New(slog.DiscardHandler)) // the default logs a line for each phase

// A run fails in its second phase; the next attempt goes on there.
func ExampleRun() {
	store := checkpoint.NewMemoryStore()
	ctx := checkpoint.ContextWithKey(context.Background(), "plan-42") // under package idempotent the lease has the key

	budget := errors.New("no budget yet")
	phases := []checkpoint.Phase[Plan]{
		{Name: "outline", Run: func(_ context.Context, p *Plan) error {
			fmt.Println("outline")
			p.Parts = []string{"hull", "sail"}
			return nil
		}},
		{Name: "estimate", Run: func(_ context.Context, p *Plan) error {
			fmt.Println("estimate", p.Parts)
			p.Cost = 100 * len(p.Parts)
			return budget
		}},
	}
	_, err := checkpoint.Run(ctx, store, phases, Plan{Goal: "a boat"}, quiet)
	fmt.Println(err)

	budget = nil
	plan, err := checkpoint.Run(ctx, store, phases, Plan{Goal: "a boat"}, quiet)
	fmt.Println(plan.Cost, err)
	// Output:
	// outline
	// estimate [hull sail]
	// phase "estimate": no budget yet
	// estimate [hull sail]
	// 200 <nil>
}

// The expensive calls inside a phase are not repeated with it.
func ExampleStep() {
	store := checkpoint.NewMemoryStore()
	ctx := checkpoint.ContextWithKey(context.Background(), "report-7")
	crash := errors.New("crash")

	review := func(ctx context.Context, p *Plan) error {
		for i, part := range []string{"hull", "sail"} {
			cost, err := checkpoint.Step(ctx, "cost of "+part, func(context.Context) (int, error) {
				fmt.Println("asking for", part)
				return 100, nil
			})
			if err != nil {
				return err
			}
			p.Cost += cost
			if i == 0 && crash != nil {
				return crash
			}
		}
		return nil
	}
	phases := []checkpoint.Phase[Plan]{{Name: "review", Run: review}}
	_, err := checkpoint.Run(ctx, store, phases, Plan{}, quiet)
	fmt.Println(err)

	crash = nil
	plan, err := checkpoint.Run(ctx, store, phases, Plan{}, quiet)
	fmt.Println(plan.Cost, err)
	// Output:
	// asking for hull
	// phase "review": crash
	// asking for sail
	// 200 <nil>
}

// Snapshots in Redis. The options hold for every run on the store.
func ExampleNewRedisStore() {
	server, _ := miniredis.Run() // your Redis
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = rdb.Close() }()

	store, err := checkpoint.NewRedisStore(rdb, checkpoint.WithTTL(72*time.Hour), quiet)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := checkpoint.ContextWithKey(context.Background(), "plan-42")
	_, err = checkpoint.Run(ctx, store, []checkpoint.Phase[Plan]{
		{Name: "outline", Run: func(context.Context, *Plan) error { return nil }},
		{Name: "estimate", Run: func(context.Context, *Plan) error {
			fmt.Println(server.Keys(), server.TTL("onceq:{plan-42}:ckpt"))
			return nil
		}},
	}, Plan{Goal: "a boat"})
	fmt.Println(err, store.Stats().Saves, server.Keys())
	// Output:
	// [onceq:{plan-42}:ckpt] 72h0m0s
	// <nil> 2 []
}

// Progress, for example for a page that people watch.
func ExampleWithObserver() {
	progress := func(e checkpoint.Event) {
		if e.Kind == checkpoint.EventFinished {
			fmt.Printf("%d/%d %s\n", e.Index+1, e.Total, e.Phase)
		}
	}
	nothing := func(context.Context, *Plan) error { return nil }
	_, _ = checkpoint.Run(context.Background(), checkpoint.NewMemoryStore(), []checkpoint.Phase[Plan]{
		{Name: "outline", Run: nothing}, {Name: "estimate", Run: nothing}, {Name: "review", Run: nothing},
	}, Plan{}, quiet, checkpoint.WithObserver(progress))
	// Output:
	// 1/3 outline
	// 2/3 estimate
	// 3/3 review
}

// Encrypted snapshots, with the key before this one still accepted.
func ExampleNewAESGCM() {
	key, last := make([]byte, 32), make([]byte, 32) // from your secret store
	sealer, err := checkpoint.NewAESGCM(key, last)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = checkpoint.Run(context.Background(), checkpoint.NewMemoryStore(), []checkpoint.Phase[Plan]{
		{Name: "outline", Run: func(context.Context, *Plan) error { return nil }},
	}, Plan{}, quiet, checkpoint.WithSealer(sealer))
	fmt.Println(err)
	// Output: <nil>
}

// Code below a phase finds out where it is, for log lines and traces.
func ExampleFromContext() {
	work := func(ctx context.Context, _ *Plan) error {
		pos, _ := checkpoint.FromContext(ctx)
		fmt.Printf("%s, phase %d of %d\n", pos.Phase, pos.Index+1, pos.Total)
		return nil
	}
	_, _ = checkpoint.Run(context.Background(), checkpoint.NewMemoryStore(), []checkpoint.Phase[Plan]{
		{Name: "outline", Run: work}, {Name: "estimate", Run: work},
	}, Plan{}, quiet)
	// Output:
	// outline, phase 1 of 2
	// estimate, phase 2 of 2
}
