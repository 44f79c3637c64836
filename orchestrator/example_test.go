package orchestrator_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"

	"github.com/nexuscore/onceq/checkpoint"
	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/notify"
	"github.com/nexuscore/onceq/orchestrator"
)

// Draft is the state that the phases of the examples work on.
type Draft struct{ Goal, Text string }

func outline(_ context.Context, d *Draft) error { d.Text = "outline of " + d.Goal; return nil }
func write(_ context.Context, d *Draft) error   { d.Text += ", written out"; return nil }

// A whole program in one process: a table, a worker, a dispatcher behind HTTP, and
// one message when the run is done.
func Example() {
	rdb, db, stop := embedded()
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))

	told := make(chan string)
	outbox := must(notify.New(db, []notify.Destination{
		notify.Func("chat", func(_ context.Context, m notify.Message) (notify.Receipt, error) {
			told <- m.Event
			return notify.Receipt{}, nil
		}),
	}, notify.WithLogger(log)))
	check(outbox.Migrate(ctx))
	sending := make(chan error)
	go func() { sending <- outbox.Run(ctx) }()

	runs := must(orchestrator.NewRuns(db, outbox, orchestrator.WithLogger(log)))
	check(runs.Migrate(ctx))
	guard := must(idempotent.New(rdb, idempotent.WithLogger(log), idempotent.WithOnFailed(runs.OnFailed)))

	// The worker.
	handler := must(orchestrator.NewHandler(runs, must(checkpoint.NewRedisStore(rdb)), orchestrator.Orchestration[Draft]{
		Start:  func(r orchestrator.Run) (Draft, error) { return Draft{Goal: r.Requirement}, nil },
		Phases: []checkpoint.Phase[Draft]{{Name: "outline", Run: outline}, {Name: "write", Run: write}},
		Result: func(_ orchestrator.Run, d Draft) (any, error) { return d, nil },
	}))
	mux := asynq.NewServeMux()
	mux.Use(guard.Middleware)
	mux.Handle(runs.TaskType(), handler)
	srv := asynq.NewServerFromRedisClient(rdb, guard.ServerConfig(asynq.Config{LogLevel: asynq.FatalLevel}))
	check(srv.Start(mux))
	defer srv.Shutdown()

	// The API.
	producer := must(idempotent.NewProducer(guard, asynq.NewClientFromRedisClient(rdb)))
	api := must(orchestrator.NewDispatcher(runs, producer)).HTTP()
	for range 2 { // a double click
		r := httptest.NewRequest("POST", "/runs", strings.NewReader(`{"requirement": "a letter"}`))
		r.Header.Set("Idempotency-Key", "letter-1")
		w := httptest.NewRecorder()
		api.ServeHTTP(w, r)
		fmt.Println(w.Code, http.StatusText(w.Code))
	}

	fmt.Println(<-told)
	run := must(runs.Get(ctx, "letter-1"))
	fmt.Println(run.Status, run.Result)
	cancel()
	check(<-sending)
	// Output:
	// 202 Accepted
	// 409 Conflict
	// orchestrator_complete
	// SUCCESS {"Goal":"a letter","Text":"outline of a letter, written out"}
}

// A failed run keeps its checkpoint: a rerun goes on after the last phase that
// finished.
func ExampleDispatcher_Rerun() {
	rdb, db, stop := embedded()
	defer stop()
	ctx := context.Background()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	runs := must(orchestrator.NewRuns(db, nil, orchestrator.WithLogger(log)))
	check(runs.Migrate(ctx))
	guard := must(idempotent.New(rdb, idempotent.WithLogger(log), idempotent.WithOnFailed(runs.OnFailed)))

	broken := true
	handler := must(orchestrator.NewHandler(runs, must(checkpoint.NewRedisStore(rdb)), orchestrator.Orchestration[Draft]{
		Start: func(r orchestrator.Run) (Draft, error) { return Draft{Goal: r.Requirement}, nil },
		Phases: []checkpoint.Phase[Draft]{
			{Name: "outline", Run: func(ctx context.Context, d *Draft) error { fmt.Println("outline"); return outline(ctx, d) }},
			{Name: "write", Run: func(ctx context.Context, d *Draft) error {
				fmt.Println("write")
				if broken {
					return idempotent.Permanent(errors.New("out of ink"))
				}
				return write(ctx, d)
			}},
		},
	}))
	mux := asynq.NewServeMux()
	mux.Use(guard.Middleware)
	mux.Handle(runs.TaskType(), handler)
	srv := asynq.NewServerFromRedisClient(rdb, guard.ServerConfig(asynq.Config{
		LogLevel: asynq.FatalLevel, TaskCheckInterval: 100 * time.Millisecond,
	}))
	check(srv.Start(mux))
	defer srv.Shutdown()

	producer := must(idempotent.NewProducer(guard, asynq.NewClientFromRedisClient(rdb)))
	dispatcher := must(orchestrator.NewDispatcher(runs, producer))
	must(dispatcher.Create(ctx, orchestrator.NewRun{RunID: "7", Requirement: "a letter"}))
	run := wait(runs, "7", orchestrator.StatusFailed)
	fmt.Println(run.Status, run.Error)

	broken = false
	for { // the row says FAILED a moment before the attempt has let go of the run
		_, err := dispatcher.Rerun(ctx, "7", false)
		if err == nil {
			break
		}
		if dup, ok := errors.AsType[*idempotent.DuplicateError](err); !ok || dup.State != idempotent.StateRunning {
			check(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	run = wait(runs, "7", orchestrator.StatusSuccess)
	fmt.Println(run.Status, "in generation", run.Generation)
	// Output:
	// outline
	// write
	// FAILED phase "write": out of ink
	// write
	// SUCCESS in generation 2
}

// wait reads a run until it has a status.
func wait(runs *orchestrator.Runs, id string, status orchestrator.Status) orchestrator.Run {
	for {
		run := must(runs.Get(context.Background(), id))
		if run.Status == status {
			return run
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// embedded is a Redis in this process and a SQLite file.
func embedded() (rdb *redis.Client, db *gorm.DB, stop func()) {
	mini := miniredis.NewMiniRedis()
	mini.ClockTTL(true)
	check(mini.Start())
	dir := must(os.MkdirTemp("", "orchestrator"))
	db = must(gorm.Open(sqlite.Open(filepath.Join(dir, "runs.db")+"?_journal_mode=WAL&_txlock=immediate&_busy_timeout=5000"), &gorm.Config{}))
	rdb = redis.NewClient(&redis.Options{Addr: mini.Addr(), DisableIdentity: true})
	return rdb, db, func() {
		_ = rdb.Close()
		mini.Close()
		check(must(db.DB()).Close())
		check(os.RemoveAll(dir))
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
