package orchestrator_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"

	"github.com/nexuscore/onceq/checkpoint"
	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/dbtest"
	"github.com/nexuscore/onceq/internal/redistest"
	"github.com/nexuscore/onceq/notify"
	"github.com/nexuscore/onceq/orchestrator"
)

func TestMain(m *testing.M) { redistest.Main(m) }

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// state is what the runs of the tests work on.
type state struct {
	Goal string
	Done []string
}

// team is a PhaseRunner that counts, and fails or waits where a test says.
type team struct {
	mu    sync.Mutex
	calls map[string]int
	hook  func(ctx context.Context, phase string, call int) error
}

func (w *team) do(ctx context.Context, phase string, s *state) error {
	w.mu.Lock()
	if w.calls == nil {
		w.calls = map[string]int{}
	}
	w.calls[phase]++
	n, hook := w.calls[phase], w.hook
	w.mu.Unlock()
	if hook != nil {
		if err := hook(ctx, phase, n); err != nil {
			return err
		}
	}
	s.Done = append(s.Done, phase)
	return nil
}

func (w *team) count(phase string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls[phase]
}

// total is how many phases were run, repeated ones included.
func (w *team) total() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, c := range w.calls {
		n += c
	}
	return n
}

func (w *team) Context(ctx context.Context, s *state) error      { return w.do(ctx, "context", s) }
func (w *team) Requirements(ctx context.Context, s *state) error { return w.do(ctx, "requirements", s) }
func (w *team) Planning(ctx context.Context, s *state) error     { return w.do(ctx, "planning", s) }
func (w *team) Architecture(ctx context.Context, s *state) error { return w.do(ctx, "architecture", s) }
func (w *team) Implementation(ctx context.Context, s *state) error {
	return w.do(ctx, "implementation", s)
}
func (w *team) Testing(ctx context.Context, s *state) error { return w.do(ctx, "testing", s) }
func (w *team) Review(ctx context.Context, s *state) error  { return w.do(ctx, "review", s) }

// world is one database and one Redis with everything on top.
type world struct {
	t          *testing.T
	base       *dbtest.Database
	mini       *miniredis.Miniredis
	rdb        *redis.Client
	db         *gorm.DB
	outbox     *notify.Outbox
	runs       *orchestrator.Runs
	guard      *idempotent.Guard
	client     *asynq.Client
	producer   *idempotent.Producer
	dispatcher *orchestrator.Dispatcher
	sweeper    *orchestrator.Sweeper
	store      checkpoint.Store
	team       *team
	handler    asynq.Handler
	atEnd      func() // called by Orchestration.Result
}

type setup struct {
	outbox     orchestrator.Outbox // instead of the real one
	enqueuer   idempotent.Enqueuer
	guard      []idempotent.Option
	runs       []orchestrator.Option
	dispatcher []orchestrator.DispatcherOption
	mayFail    bool // OnFailed is not wired: the hook is lost
}

// newWorld makes a world in virtual time. It must be called inside a bubble.
func newWorld(t *testing.T, s setup) *world {
	t.Helper()
	mini, rdb := redistest.Bubble(t)
	return newWorldOn(t, dbtest.New(t, "sqlite"), mini, rdb, s)
}

func newWorldOn(t *testing.T, base *dbtest.Database, mini *miniredis.Miniredis, rdb *redis.Client, s setup) *world {
	t.Helper()
	w := &world{t: t, base: base, mini: mini, rdb: rdb, db: base.DB, team: &team{}}
	w.assemble(s)
	return w
}

func (w *world) assemble(s setup) {
	t, db, rdb := w.t, w.db, w.rdb
	t.Helper()
	var err error
	w.outbox, err = notify.New(db, []notify.Destination{notify.Log("log", quiet)}, notify.WithLogger(quiet))
	w.must(err)
	w.must(w.outbox.Migrate(t.Context()))
	if s.outbox == nil {
		s.outbox = w.outbox
	}
	w.runs, err = orchestrator.NewRuns(db, s.outbox, append([]orchestrator.Option{orchestrator.WithLogger(quiet)}, s.runs...)...)
	w.must(err)
	w.must(w.runs.Migrate(t.Context()))
	gopts := append([]idempotent.Option{idempotent.WithLogger(quiet)}, s.guard...)
	if !s.mayFail {
		gopts = append(gopts, idempotent.WithOnFailed(w.runs.OnFailed))
	}
	w.guard, err = idempotent.New(rdb, gopts...)
	w.must(err)
	w.client = asynq.NewClientFromRedisClient(rdb)
	var enq idempotent.Enqueuer = w.client
	if s.enqueuer != nil {
		enq = s.enqueuer
	}
	w.producer, err = idempotent.NewProducer(w.guard, enq)
	w.must(err)
	w.dispatcher, err = orchestrator.NewDispatcher(w.runs, w.producer, s.dispatcher...)
	w.must(err)
	w.sweeper, err = orchestrator.NewSweeper(w.dispatcher)
	w.must(err)
	w.store, err = checkpoint.NewRedisStore(rdb, checkpoint.WithLogger(quiet))
	w.must(err)
	w.handler, err = orchestrator.NewHandler(w.runs, w.store, w.orchestration())
	w.must(err)
}

func (w *world) orchestration() orchestrator.Orchestration[state] {
	return orchestrator.Orchestration[state]{
		Start:  func(r orchestrator.Run) (state, error) { return state{Goal: r.Requirement}, nil },
		Phases: orchestrator.Phases(w.team),
		Result: func(_ orchestrator.Run, s state) (any, error) {
			if w.atEnd != nil {
				w.atEnd()
			}
			return map[string]any{"phases": len(s.Done)}, nil
		},
	}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// serve starts a worker process; it is shut down before the test ends.
func (w *world) serve() *asynq.Server {
	w.t.Helper()
	srv := asynq.NewServerFromRedisClient(w.rdb, w.guard.ServerConfig(asynq.Config{
		Concurrency: 4, LogLevel: asynq.FatalLevel, ShutdownTimeout: time.Second, TaskCheckInterval: 200 * time.Millisecond,
	}))
	mux := asynq.NewServeMux()
	mux.Use(w.guard.Middleware)
	mux.Handle(w.runs.TaskType(), w.handler)
	w.must(srv.Start(mux))
	w.t.Cleanup(srv.Shutdown)
	return srv
}

// deliver runs a delivery of the run's generation through guard and handler, without a server.
func (w *world) deliver(runID, generation string) error {
	return w.deliverTo(w.guard, w.handler, runID, generation)
}

func (w *world) deliverTo(g *idempotent.Guard, h asynq.Handler, runID, generation string) error {
	input := idempotent.Fingerprint("input", []byte(`{"requirement":"build a thing","parameters":null}`))
	t := asynq.NewTaskWithHeaders(w.runs.TaskType(), []byte(`{"run_id":"`+runID+`","input":"`+input+`"}`),
		map[string]string{"onceq-key": w.runs.Key(runID), "onceq-generation": generation})
	return g.Middleware(h).ProcessTask(w.t.Context(), t)
}

func (w *world) create(runID string) orchestrator.Run {
	w.t.Helper()
	run, err := w.dispatcher.Create(w.t.Context(), orchestrator.NewRun{RunID: runID, Requirement: "build a thing"})
	w.must(err)
	return run
}

func (w *world) status(runID string) orchestrator.Run {
	w.t.Helper()
	run, err := w.dispatcher.Status(w.t.Context(), runID)
	w.must(err)
	return run
}

func (w *world) is(runID string, want orchestrator.Status) {
	w.t.Helper()
	if got := w.status(runID); got.Status != want {
		w.t.Fatalf("run %s is %s (%s), want %s", runID, got.Status, got.Error, want)
	}
}

// notes are the notifications in the outbox, as "type/generation".
func (w *world) notes() []string {
	w.t.Helper()
	var rows []struct {
		EventType  string
		Generation string
	}
	w.must(w.db.Table("notification_logs").Order("id").Find(&rows).Error)
	list := []string{}
	for _, r := range rows {
		list = append(list, r.EventType+"/"+r.Generation)
	}
	return list
}

func (w *world) kinds(runID string) []orchestrator.HistoryKind {
	w.t.Helper()
	entries, err := w.runs.History(w.t.Context(), runID)
	w.must(err)
	list := []orchestrator.HistoryKind{}
	for _, e := range entries {
		list = append(list, e.Kind)
	}
	return list
}

var errBoom = errors.New("boom")

// failing makes a phase fail for its first n calls.
func failing(phase string, n int, err error) func(context.Context, string, int) error {
	return func(_ context.Context, p string, call int) error {
		if p == phase && call <= n {
			return err
		}
		return nil
	}
}
