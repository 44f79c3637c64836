package orchestrator_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/orchestrator"
)

// The API: a run is asked for twice under one key, and looked at.
func ExampleDispatcher_HTTP() {
	rdb, db, stop := embedded()
	defer stop()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	runs := must(orchestrator.NewRuns(db, nil, orchestrator.WithLogger(log)))
	check(runs.Migrate(context.Background()))
	guard := must(idempotent.New(rdb, idempotent.WithLogger(log), idempotent.WithOnFailed(runs.OnFailed)))
	producer := must(idempotent.NewProducer(guard, asynq.NewClientFromRedisClient(rdb)))
	api := must(orchestrator.NewDispatcher(runs, producer)).HTTP() // http.Handle("/runs", api), and "/runs/"

	ask := func(method, path, body string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		if method == "POST" {
			r.Header.Set("Idempotency-Key", "letter-1")
		}
		w := httptest.NewRecorder()
		api.ServeHTTP(w, r)
		return w
	}
	w := ask("POST", "/runs", `{"requirement": "a letter"}`)
	fmt.Println(w.Code, w.Header().Get("Location"))
	w = ask("POST", "/runs", `{"requirement": "a letter"}`)
	fmt.Println(w.Code, "Retry-After:", w.Header().Get("Retry-After"), w.Header().Get("Content-Type"))
	w = ask("POST", "/runs", `{"requirement": "another letter"}`)
	fmt.Println(w.Code)
	run, err := runs.Get(context.Background(), "letter-1")
	fmt.Println(ask("GET", "/runs/letter-1", "").Code, run.Status, err)
	fmt.Println(ask("GET", "/runs/letter-2", "").Code, ask("DELETE", "/runs/letter-1", "").Code)
	// Output:
	// 202 runs/letter-1
	// 409 Retry-After: 10 application/problem+json
	// 422
	// 200 PENDING <nil>
	// 404 405
}

// cut is a client whose link to Redis is cut.
type cut struct{}

func (cut) EnqueueContext(context.Context, *asynq.Task, ...asynq.Option) (*asynq.TaskInfo, error) {
	return nil, errors.New("connection refused")
}

// A run was committed and not enqueued. Run the sweeper in each process that has a
// dispatcher; here it looks once.
func ExampleSweeper() {
	rdb, db, stop := embedded()
	defer stop()
	ctx := context.Background()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	runs := must(orchestrator.NewRuns(db, nil, orchestrator.WithLogger(log)))
	check(runs.Migrate(ctx))
	guard := must(idempotent.New(rdb, idempotent.WithLogger(log), idempotent.WithOnFailed(runs.OnFailed)))

	broken := must(orchestrator.NewDispatcher(runs, must(idempotent.NewProducer(guard, cut{}))))
	_, err := broken.Create(ctx, orchestrator.NewRun{RunID: "letter-1", Requirement: "a letter"})
	fmt.Println("cannot tell:", errors.Is(err, idempotent.ErrUnavailable))

	producer := must(idempotent.NewProducer(guard, asynq.NewClientFromRedisClient(rdb)))
	sweeper := must(orchestrator.NewSweeper(must(orchestrator.NewDispatcher(runs, producer)), orchestrator.WithThreshold(10*time.Millisecond)))
	time.Sleep(20 * time.Millisecond) // a row rests for the threshold; go sweeper.Run(ctx) sees to that
	acted, err := sweeper.Sweep(ctx)
	fmt.Println("dispatched again:", acted, err)
	queue := must(asynq.NewInspectorFromRedisClient(rdb).GetQueueInfo("default"))
	fmt.Println("in the queue:", queue.Pending)
	// Output:
	// cannot tell: true
	// dispatched again: 1 <nil>
	// in the queue: 1
}
