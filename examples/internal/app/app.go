package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/openai/openai-go/v3/option"
	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"

	"github.com/nexuscore/onceq/checkpoint"
	"github.com/nexuscore/onceq/examples/internal/forge"
	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/llmcache"
	"github.com/nexuscore/onceq/notify"
	"github.com/nexuscore/onceq/orchestrator"
)

// App is a process that was started.
type App struct {
	log  *slog.Logger
	done cleanup
	addr string
	fail chan error // what ended a part that should have gone on
}

// Addr is where the API listens; "" for nowhere.
func (a *App) Addr() string { return a.addr }

// parts are what the roles share.
type parts struct {
	rdb        redis.UniversalClient
	db         *gorm.DB
	outbox     *notify.Outbox
	runs       *orchestrator.Runs
	guard      *idempotent.Guard
	cache      *llmcache.Cache
	dispatcher *orchestrator.Dispatcher
}

// Start wires everything and starts what the role asks for.
func Start(ctx context.Context, c Config, log *slog.Logger) (_ *App, err error) {
	a := &App{log: log, fail: make(chan error, 4)}
	defer func() {
		if err != nil {
			a.Shutdown()
		}
	}()
	p, err := a.shared(ctx, c)
	if err != nil {
		return nil, err
	}
	a.background("sweeper", func(ctx context.Context) error {
		s, err := orchestrator.NewSweeper(p.dispatcher)
		if err != nil {
			return err
		}
		return s.Run(ctx)
	})
	a.background("outbox", p.outbox.Run)
	if c.works() {
		if err := a.work(c, p); err != nil {
			return nil, err
		}
	}
	if c.Addr != "" {
		if err := a.serve(c, p); err != nil {
			return nil, err
		}
	}
	log.Info("started", "role", c.Role, "addr", a.addr, "process", p.guard.Process())
	return a, nil
}

// shared makes what API and worker both need, in the order in which each needs
// the ones before.
func (a *App) shared(ctx context.Context, c Config) (p parts, err error) {
	if p.rdb, err = openRedis(ctx, c, a.log, &a.done); err != nil {
		return p, err
	}
	if p.db, err = openDatabase(c, a.log, &a.done); err != nil {
		return p, err
	}
	dest, err := destinations(ctx, c, a.log)
	if err != nil {
		return p, err
	}
	if p.outbox, err = notify.New(p.db, dest, notify.WithLogger(a.log)); err != nil {
		return p, err
	}
	if err = p.outbox.Migrate(ctx); err != nil {
		return p, err
	}
	if p.cache, err = llmcache.New(p.rdb, llmcache.WithPrefix(c.Prefix), llmcache.WithLogger(a.log)); err != nil {
		return p, err
	}
	a.done.add(func() { _ = p.cache.Flush(context.Background()) }) // the last counts of the ledger
	cost := func(ctx context.Context, r orchestrator.Run, report *notify.Report) error {
		account, err := p.cache.Ledger().Of(ctx, p.runs.Key(r.RunID))
		report.Cost = orchestrator.Cost(account)
		return err
	}
	if p.runs, err = orchestrator.NewRuns(p.db, p.outbox, orchestrator.WithReport(cost), orchestrator.WithLogger(a.log)); err != nil {
		return p, err
	}
	if err = p.runs.Migrate(ctx); err != nil {
		return p, err
	}
	p.guard, err = idempotent.New(p.rdb,
		idempotent.WithOnFailed(p.runs.OnFailed), // a poison pill is FAILED in the table too
		idempotent.WithMaxCrashes(c.MaxCrashes),
		idempotent.WithPrefix(c.Prefix),
		idempotent.WithLogger(a.log))
	if err != nil {
		return p, err
	}
	producer, err := idempotent.NewProducer(p.guard, asynq.NewClientFromRedisClient(p.rdb))
	if err != nil {
		return p, err
	}
	p.dispatcher, err = orchestrator.NewDispatcher(p.runs, producer, orchestrator.WithTimeout(c.Timeout), orchestrator.WithQueue(c.Queue))
	return p, err
}

// work starts the asynq server, and beside it what finds the runs of workers that
// died.
func (a *App) work(c Config, p parts) error {
	handler, err := a.handler(c, p)
	if err != nil {
		return err
	}
	mux := asynq.NewServeMux()
	mux.Use(p.guard.Middleware) // outermost: all that is inside works under the lease
	mux.Handle(p.runs.TaskType(), handler)
	recoverer, err := idempotent.NewRecoverer(p.guard)
	if err != nil {
		return err
	}
	srv := asynq.NewServerFromRedisClient(p.rdb, p.guard.ServerConfig(asynq.Config{
		Concurrency: c.Concurrency,
		Queues:      map[string]int{c.Queue: 1},
		LogLevel:    asynq.WarnLevel,
	}))
	if err := recoverer.Start(); err != nil {
		return err
	}
	a.done.add(recoverer.Shutdown) // after the server's
	if err := srv.Start(mux); err != nil {
		return fmt.Errorf("asynq: %w", err)
	}
	a.done.add(srv.Shutdown)
	return nil
}

func (a *App) handler(c Config, p parts) (asynq.Handler, error) {
	snapshots, err := checkpoint.NewRedisStore(p.rdb, checkpoint.WithLogger(a.log))
	if err != nil {
		return nil, err
	}
	model, err := openModel(c, a.log, &a.done)
	if err != nil {
		return nil, err
	}
	paid := &http.Client{Transport: p.cache.Transport(nil)} // every call of the SDK goes through it
	works, err := forge.New(model.client(option.WithHTTPClient(paid)), model.model, c.Dir, forge.WithLogger(a.log), forge.WithoutSteps())
	if err != nil {
		return nil, err
	}
	return orchestrator.NewHandler(p.runs, snapshots, orchestrator.Orchestration[forge.State]{
		Start:  func(r orchestrator.Run) (forge.State, error) { return forge.NewState(r.RunID, r.Requirement) },
		Phases: orchestrator.Phases(works),
		Result: func(r orchestrator.Run, s forge.State) (any, error) {
			return map[string]any{"dir": works.Dir(r.RunID), "approved": s.Review.Approved, "tests_passed": s.Tests.Passed}, nil
		},
	}, checkpoint.WithLogger(a.log))
}

// serve offers the API, where the role has it, and the health endpoints.
func (a *App) serve(c Config, p parts) error {
	mux := http.NewServeMux()
	if c.serves() {
		mux.Handle("/runs", p.dispatcher.HTTP())
		mux.Handle("/runs/", p.dispatcher.HTTP())
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := p.ready(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	l, err := net.Listen("tcp", c.Addr)
	if err != nil {
		return fmt.Errorf("-addr: %w", err)
	}
	a.addr = l.Addr().String()
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: time.Minute}
	go func() {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			a.fail <- fmt.Errorf("http: %w", err)
		}
	}()
	a.done.add(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = srv.Shutdown(ctx)
	})
	return nil
}

func (p parts) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := p.rdb.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	return p.db.WithContext(ctx).Exec("SELECT 1").Error
}

// background runs a part until Shutdown, which waits for it.
func (a *App) background(name string, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := run(ctx); err != nil && ctx.Err() == nil {
			a.fail <- fmt.Errorf("%s: %w", name, err)
		}
	})
	a.done.add(func() { cancel(); wg.Wait() })
}

// Failed delivers the error of a part that ended by itself.
func (a *App) Failed() <-chan error { return a.fail }

// Shutdown stops taking work in, gives handlers the time to hand their runs over,
// and ends everything, the last started first.
func (a *App) Shutdown() {
	a.done.run()
	a.done = nil
}
