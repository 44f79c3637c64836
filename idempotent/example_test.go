package idempotent_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/idempotent"
)

// exampleRedis stands for the Redis that asynq uses.
func exampleRedis() (rdb *redis.Client, stop func()) {
	m := miniredis.NewMiniRedis()
	if err := m.Start(); err != nil {
		log.Fatal(err)
	}
	rdb = redis.NewClient(&redis.Options{Addr: m.Addr()})
	return rdb, func() { _ = rdb.Close(); m.Close() }
}

// A run that is enqueued twice runs once.
func Example() {
	rdb, stop := exampleRedis()
	defer stop()
	guard, err := idempotent.New(rdb, idempotent.WithLogger(quiet))
	if err != nil {
		log.Fatal(err)
	}

	done := make(chan struct{})
	mux := asynq.NewServeMux()
	mux.Use(guard.Middleware)
	mux.HandleFunc("orchestrator:run", func(ctx context.Context, t *asynq.Task) error {
		a := idempotent.MustFromContext(ctx)
		fmt.Printf("run %s, attempt %d: %s\n", a.Key(), a.Number(), t.Payload())
		close(done)
		return nil
	})
	srv := asynq.NewServerFromRedisClient(rdb, guard.ServerConfig(asynq.Config{Concurrency: 10, LogLevel: asynq.FatalLevel}))
	if err := srv.Start(mux); err != nil {
		log.Fatal(err)
	}
	defer srv.Shutdown()

	producer, err := idempotent.NewProducer(guard, asynq.NewClientFromRedisClient(rdb))
	if err != nil {
		log.Fatal(err)
	}
	key := idempotent.Key("orchestrator-run", 42)
	for range 2 {
		_, err := producer.Enqueue(context.Background(), key, asynq.NewTask("orchestrator:run", []byte("a word counter")), asynq.Timeout(2*time.Hour))
		fmt.Println("refused:", errors.Is(err, idempotent.ErrDuplicate) || errors.Is(err, idempotent.ErrAlreadySucceeded))
	}
	<-done
	// Unordered output:
	// refused: false
	// refused: true
	// run orchestrator-run-42, attempt 1: a word counter
}

// What a producer answered, as an HTTP API says it.
func ExampleHTTPStatus() {
	err := fmt.Errorf("submit: %w", &idempotent.DuplicateError{
		Key: "orchestrator-run-42", State: idempotent.StateRunning, Holder: "worker-7", RetryAfter: 12 * time.Second,
	})
	status, after := idempotent.HTTPStatus(err)
	h := http.Header{}
	idempotent.SetRetryAfter(h, after)
	fmt.Println(status, h.Get("Retry-After"))
	if dup, ok := errors.AsType[*idempotent.DuplicateError](err); ok {
		fmt.Println(dup)
	}
	// Output:
	// 409 12
	// onceq: run "orchestrator-run-42" is running on worker-7; ask again in 12s
}

// The lease is the outermost layer: what is inside it finds it in its context.
func ExampleGuard_Middleware() {
	rdb, stop := exampleRedis()
	defer stop()
	guard, err := idempotent.New(rdb, idempotent.WithLogger(quiet))
	if err != nil {
		log.Fatal(err)
	}
	trace := func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
			_, held := idempotent.FromContext(ctx)
			fmt.Println("inside the lease:", held)
			return next.ProcessTask(ctx, t)
		})
	}
	mux := asynq.NewServeMux()
	mux.Use(guard.Middleware, trace) // the first is the outermost
	mux.HandleFunc("job", func(ctx context.Context, _ *asynq.Task) error {
		return idempotent.MustFromContext(ctx).SetResult([]byte("42"))
	})
	// asynq does this for each delivery; the key is in the headers a Producer set.
	t := asynq.NewTaskWithHeaders("job", nil, map[string]string{"onceq-key": "job-1"})
	for range 2 {
		if err := mux.ProcessTask(context.Background(), t); err != nil {
			log.Fatal(err)
		}
	}
	run, err := guard.Lookup(context.Background(), "job-1")
	fmt.Printf("%v after %d attempt: %s %v\n", run.State, run.Attempt, run.Result, err)
	// Output:
	// inside the lease: true
	// succeeded after 1 attempt: 42 <nil>
}

// An error says for itself what it means for its run.
func ExamplePermanent() {
	err := idempotent.Permanent(errors.New("the requirement is empty"))
	fmt.Println(errors.Is(err, asynq.SkipRetry))
	// Output: true
}
