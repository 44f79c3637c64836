package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/nexuscore/onceq/checkpoint"
	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/llmcache"
	"github.com/nexuscore/onceq/notify"
	"github.com/nexuscore/onceq/notify/notifytest"
	"github.com/nexuscore/onceq/orchestrator"
)

// phases are those of each run, in order. The fifth has three steps.
var phases = []string{"context", "requirements", "planning", "architecture", "implementation", "testing", "review"}

const (
	stepsIn   = "implementation"
	stepCount = 3
	queue     = "default"
)

// settings are what a worker is made with. Times are short where time is not the point.
type settings struct {
	Redis    []string // several: a cluster
	Sentinel string   // address of a sentinel, which then names the master
	Database string
	Model    string
	Slack    string
	Points   string // where a child announces its points

	TTL         time.Duration
	Grace       time.Duration
	Timeout     time.Duration // of an attempt
	NoPresence  bool
	NoRetries   bool // of go-redis
	MaxCrashes  int
	Lingers     bool // a child that was asked to end keeps its hung handlers running
	Concurrency int
}

func defaults() settings {
	return settings{TTL: 5 * time.Second, Grace: 10 * time.Second, Timeout: time.Hour, MaxCrashes: 5, Concurrency: 10}
}

// state is what runs work on.
type state struct {
	Run  string
	Done []string
}

// stack is everything that a user of the library has in a process.
type stack struct {
	settings
	at         announce
	rdb        redis.UniversalClient
	db         *gorm.DB
	outbox     *notify.Outbox
	runs       *orchestrator.Runs
	guard      *idempotent.Guard
	producer   *idempotent.Producer
	dispatcher *orchestrator.Dispatcher
	llm        *http.Client
	done       []func()
}

// newStack makes the parts that take runs in; work starts those that work on them.
func newStack(s settings, at announce, log *slog.Logger, hooks ...redis.Hook) (_ *stack, err error) {
	k := &stack{settings: s, at: at}
	defer func() {
		if err != nil {
			k.close()
		}
	}()
	k.rdb = k.open()
	k.done = append(k.done, func() { _ = k.rdb.Close() })
	for _, h := range hooks {
		k.rdb.AddHook(h)
	}
	if k.db, err = gorm.Open(sqlite.Open("file:"+s.Database+"?_journal_mode=WAL&_txlock=immediate&_busy_timeout=10000"), &gorm.Config{Logger: logger.Discard}); err != nil {
		return nil, err
	}
	pool, err := k.db.DB()
	if err != nil {
		return nil, err
	}
	k.done = append(k.done, func() { _ = pool.Close() })
	announceWrites(k.db, at)
	slack, err := notify.NewSlack(notifytest.Token, notifytest.Channel, notify.WithAPIURL(s.Slack))
	if err != nil {
		return nil, err
	}
	k.outbox, err = notify.New(k.db, []notify.Destination{slack}, notify.WithLogger(log),
		notify.WithSendTimeout(time.Second), notify.WithLeaseTTL(2*time.Second), notify.WithReconcileGrace(time.Second),
		notify.WithPollInterval(200*time.Millisecond), notify.WithBackoff(100*time.Millisecond, time.Second))
	if err != nil {
		return nil, err
	}
	if k.runs, err = orchestrator.NewRuns(k.db, k.outbox, orchestrator.WithLogger(log)); err != nil {
		return nil, err
	}
	if k.guard, err = idempotent.New(k.rdb, idempotent.WithLogger(log), idempotent.WithOnFailed(k.runs.OnFailed),
		idempotent.WithTTL(s.TTL), idempotent.WithGrace(s.Grace), idempotent.WithMaxCrashes(s.MaxCrashes),
		idempotent.WithBackoff(100*time.Millisecond, time.Second)); err != nil {
		return nil, err
	}
	if k.producer, err = idempotent.NewProducer(k.guard, asynq.NewClientFromRedisClient(k.rdb), idempotent.WithWindow(time.Second)); err != nil {
		return nil, err
	}
	k.dispatcher, err = orchestrator.NewDispatcher(k.runs, k.producer, orchestrator.WithTimeout(s.Timeout), orchestrator.WithMaxRetry(3))
	return k, err
}

func (k *stack) open() redis.UniversalClient {
	retries := 0
	if k.NoRetries {
		retries = -1
	}
	switch {
	case k.Sentinel != "":
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: masterName, SentinelAddrs: []string{k.Sentinel}, MaxRetries: retries, DisableIdentity: true,
		})
	case len(k.Redis) > 1:
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: k.Redis, DisableIdentity: true})
	}
	// The client without retries also keeps to deadlines, and callers send by themselves.
	return redis.NewClient(&redis.Options{Addr: k.Redis[0], MaxRetries: retries, DisableIdentity: true, ContextTimeoutEnabled: k.NoRetries})
}

// work starts the server and what runs beside it.
func (k *stack) work(log *slog.Logger) error {
	store, err := checkpoint.NewRedisStore(k.rdb, checkpoint.WithLogger(log))
	if err != nil {
		return err
	}
	cache, err := llmcache.New(k.rdb, llmcache.WithLogger(log), llmcache.WithLeaseTTL(time.Second))
	if err != nil {
		return err
	}
	transport := cache.Transport(nil)
	k.llm = &http.Client{Transport: transport}
	k.done = append(k.done, transport.CloseIdleConnections)
	handler, err := orchestrator.NewHandler(k.runs, store, orchestrator.Orchestration[state]{
		Start:  func(r orchestrator.Run) (state, error) { return state{Run: r.RunID}, nil },
		Phases: k.phases(),
		Result: func(_ orchestrator.Run, s state) (any, error) { return s.Done, nil },
	})
	if err != nil {
		return err
	}
	mux := asynq.NewServeMux()
	mux.Use(k.guard.Middleware)
	mux.Handle(k.runs.TaskType(), handler)
	srv := asynq.NewServerFromRedisClient(k.rdb, k.guard.ServerConfig(asynq.Config{
		Concurrency: k.Concurrency, LogLevel: asynq.FatalLevel, ShutdownTimeout: time.Second,
		TaskCheckInterval: 100 * time.Millisecond, DelayedTaskCheckInterval: 200 * time.Millisecond,
	}))
	opts := []idempotent.RecovererOption{idempotent.WithInterval(250 * time.Millisecond)}
	if k.NoPresence {
		opts = append(opts, idempotent.WithoutPresence())
	}
	recoverer, err := idempotent.NewRecoverer(k.guard, opts...)
	if err != nil {
		return err
	}
	sweeper, err := orchestrator.NewSweeper(k.dispatcher, orchestrator.WithInterval(500*time.Millisecond), orchestrator.WithThreshold(2*time.Second))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = k.outbox.Run(ctx) })
	wg.Go(func() { _ = sweeper.Run(ctx) })
	k.done = append(k.done, func() { cancel(); wg.Wait() })
	if err := recoverer.Start(); err != nil {
		return err
	}
	k.done = append(k.done, recoverer.Shutdown)
	if err := srv.Start(mux); err != nil {
		return err
	}
	k.done = append(k.done, srv.Shutdown)
	return nil
}

func (k *stack) close() {
	for i := len(k.done) - 1; i >= 0; i-- {
		k.done[i]()
	}
	k.done = nil
}

func (k *stack) phases() []checkpoint.Phase[state] {
	list := make([]checkpoint.Phase[state], len(phases))
	for i, name := range phases {
		list[i] = checkpoint.Phase[state]{Name: name, Run: func(ctx context.Context, s *state) error { return k.phase(ctx, name, s) }}
	}
	return list
}

// phase asks the model once, and in one phase also once in each of three steps.
func (k *stack) phase(ctx context.Context, name string, s *state) error {
	if err := k.reach(ctx, "phase "+name); err != nil {
		return err
	}
	if name == stepsIn {
		for i := range stepCount {
			step := fmt.Sprint("s", i+1)
			_, err := checkpoint.Step(ctx, step, func(ctx context.Context) (string, error) {
				if err := k.reach(ctx, "step "+step); err != nil {
					return "", err
				}
				return k.ask(ctx, s.Run, name, step)
			})
			if err != nil {
				return err
			}
		}
	}
	if _, err := k.ask(ctx, s.Run, name, "main"); err != nil {
		return err
	}
	s.Done = append(s.Done, name)
	return k.reach(ctx, "end "+name)
}

// reach announces a point and does as it is told. It ignores its context: a point
// that is held is a handler that hangs.
func (k *stack) reach(ctx context.Context, what string) error {
	a := idempotent.MustFromContext(ctx)
	switch v := k.at(point{What: what, Run: a.Key(), Attempt: a.Number()}); v {
	case goOn:
	case failNow:
		return errors.New("told to fail")
	case failForGood:
		return idempotent.Permanent(errors.New("told to fail for good"))
	case panicNow:
		panic("told to panic")
	default:
		return fmt.Errorf("verb %q at %s", v, what)
	}
	return nil
}

// ask is an LLM call through the cache.
func (k *stack) ask(ctx context.Context, run, phase, task string) (string, error) {
	body, err := json.Marshal(map[string]any{"model": "scripted-model", "messages": []map[string]string{
		{"role": "system", "content": "phase: " + phase + "\ntask: " + task},
		{"role": "user", "content": "for run " + run},
	}})
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(k.Model, "/")+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := k.llm.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("model: %s: %s", res.Status, answer)
	}
	return string(answer), err
}
