package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/llmcache"
	"github.com/nexuscore/onceq/notify"
	"github.com/nexuscore/onceq/notify/notifytest"
	"github.com/nexuscore/onceq/orchestrator"
)

// workerEnv makes this program a worker; it holds a workerSpec.
const workerEnv = "ONCEQ_CHAOS_WORKER"

const (
	prefix = "chaos"
	queue  = "chaos"
)

// askTimeout bounds the LLM cache's questions to Redis. After three that fail it
// passes all calls through for a minute, so at the default second there would be
// little left to prove of it.
const askTimeout = 3 * time.Second

type workerSpec struct {
	Name        string // of this process; no other has it
	Redis       string
	DB          string
	Model       string
	Slack       string
	Witness     string
	TTL         time.Duration
	Concurrency int
}

// stack is the library, wired as a host does. The supervisor has one without a server.
type stack struct {
	rdb        *redis.Client
	db         *gorm.DB
	outbox     *notify.Outbox
	runs       *orchestrator.Runs
	guard      *idempotent.Guard
	dispatcher *orchestrator.Dispatcher
}

func newStack(ctx context.Context, c workerSpec, log *slog.Logger) (s stack, err error) {
	// Every other process sends its scripts by itself, see script.Runner.
	punctual := c.Name != "" && c.Name[len(c.Name)-1]%2 == 0
	s.rdb = redis.NewClient(&redis.Options{Addr: c.Redis, DisableIdentity: true, ClientName: c.Name, ContextTimeoutEnabled: punctual})
	// WAL and immediate transactions: without them concurrent writers get "database is locked".
	s.db, err = gorm.Open(sqlite.Open("file:"+c.DB+"?_journal_mode=WAL&_txlock=immediate&_busy_timeout=10000"), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		return s, err
	}
	slack, err := notify.NewSlack(notifytest.Token, notifytest.Channel, notify.WithAPIURL(c.Slack), notify.WithTimeout(2*time.Second))
	if err != nil {
		return s, err
	}
	s.outbox, err = notify.New(s.db, []notify.Destination{slack}, notify.WithLogger(log), notify.WithLeaseTTL(6*time.Second),
		notify.WithSendTimeout(3*time.Second), notify.WithReconcileGrace(2*time.Second), notify.WithBackoff(200*time.Millisecond, 3*time.Second))
	if err != nil {
		return s, err
	}
	if s.runs, err = orchestrator.NewRuns(s.db, s.outbox, orchestrator.WithLogger(log)); err != nil {
		return s, err
	}
	if err := errors.Join(s.outbox.Migrate(ctx), s.runs.Migrate(ctx)); err != nil {
		return s, err
	}
	// Some runs are bound to be killed more often than a poison pill may be.
	s.guard, err = idempotent.New(s.rdb, idempotent.WithPrefix(prefix), idempotent.WithProcess(c.Name), idempotent.WithTTL(c.TTL),
		idempotent.WithGrace(c.TTL), idempotent.WithMaxCrashes(1000), idempotent.WithBackoff(200*time.Millisecond, 5*time.Second),
		idempotent.WithOnFailed(s.runs.OnFailed), idempotent.WithLogger(log))
	if err != nil {
		return s, err
	}
	producer, err := idempotent.NewProducer(s.guard, asynq.NewClientFromRedisClient(s.rdb))
	if err != nil {
		return s, err
	}
	s.dispatcher, err = orchestrator.NewDispatcher(s.runs, producer,
		orchestrator.WithQueue(queue), orchestrator.WithTimeout(10*time.Minute))
	return s, err
}

func (s stack) close() {
	if s.rdb != nil {
		_ = s.rdb.Close()
	}
	if s.db != nil {
		if pool, err := s.db.DB(); err == nil {
			_ = pool.Close()
		}
	}
}

// worker is a process that is there to be killed.
type worker struct {
	workerSpec
	stack
	log   *slog.Logger
	cache *llmcache.Cache
	model *http.Client
	tells *http.Client
	busy  sync.WaitGroup // handlers, those too that asynq does not wait for
}

func work(spec string) int {
	before := goleak.IgnoreCurrent()
	w := &worker{log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	if err := json.Unmarshal([]byte(spec), &w.workerSpec); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	ctx, orphaned := context.WithCancel(ctx)
	read := make(chan struct{})
	go func() { // a supervisor that dies must not leave workers behind
		_, _ = io.Copy(io.Discard, os.Stdin)
		orphaned()
		close(read)
	}()
	base := &http.Transport{MaxIdleConnsPerHost: 32}
	w.tells = &http.Client{Transport: base, Timeout: 20 * time.Second}
	if err := w.run(ctx, base); err != nil {
		w.log.Error("worker", "err", err)
		return 1
	}
	orphaned()
	stop()
	_ = os.Stdin.Close()
	w.busy.Wait() // nobody can stop one that is deaf to its context; what it leaves is no leak of ours
	base.CloseIdleConnections()
	left := ""
	if err := goleak.Find(before, goleak.IgnoreAnyFunction("main.work.func1"), goleak.IgnoreTopFunction("os/signal.signal_recv"),
		goleak.IgnoreTopFunction("os/signal.loop")); err != nil {
		left = err.Error()
	}
	err := w.tell(context.Background(), entry{Kind: bye, Detail: left}) // the worker's end has no other context
	base.CloseIdleConnections()
	if err != nil {
		w.log.Error("worker", "err", err)
		return 1
	}
	return 0
}

// run works until ctx ends, then hands everything over and stops.
func (w *worker) run(ctx context.Context, base *http.Transport) (err error) {
	up := context.WithoutCancel(ctx) // what is shut down in order does not end with the signal
	w.stack, err = newStack(up, w.workerSpec, w.log)
	defer w.stack.close()
	if err != nil {
		return err
	}
	w.cache, err = llmcache.New(w.rdb, llmcache.WithPrefix(prefix), llmcache.WithLeaseTTL(w.TTL),
		llmcache.WithTimeout(askTimeout), llmcache.WithLogger(slog.New(&breakerWatch{Handler: w.log.Handler(), w: w})))
	if err != nil {
		return err
	}
	w.model = &http.Client{Transport: w.cache.Transport(base), Timeout: time.Minute}
	handler, err := w.handler()
	if err != nil {
		return err
	}
	sweeper, err := orchestrator.NewSweeper(w.dispatcher, orchestrator.WithInterval(2*time.Second), orchestrator.WithThreshold(6*time.Second))
	if err != nil {
		return err
	}
	recoverer, err := idempotent.NewRecoverer(w.guard)
	if err != nil {
		return err
	}
	back, end := context.WithCancel(up)
	var wg sync.WaitGroup
	for _, part := range []func(context.Context) error{sweeper.Run, w.outbox.Run, w.watchTime} {
		wg.Go(func() {
			if err := part(back); err != nil && back.Err() == nil {
				w.log.Error("a part ended", "err", err)
			}
		})
	}
	defer func() { end(); wg.Wait() }()

	mux := asynq.NewServeMux()
	mux.Use(w.guard.Middleware, w.watch) // the guard outermost: what is inside works under the lease
	mux.Handle(w.runs.TaskType(), handler)
	srv := asynq.NewServerFromRedisClient(w.rdb, w.guard.ServerConfig(asynq.Config{
		Concurrency: w.Concurrency, Queues: map[string]int{queue: 1}, LogLevel: asynq.WarnLevel, ShutdownTimeout: 2 * time.Second,
	}))
	if err := recoverer.Start(); err != nil {
		return err
	}
	defer recoverer.Shutdown()
	for srv.Start(mux) != nil { // it asks Redis first, which may be down
		if ctx.Err() != nil {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	<-ctx.Done()
	srv.Shutdown()
	flush, cancel := context.WithTimeout(up, 5*time.Second)
	defer cancel()
	_ = w.cache.Flush(flush)
	return nil
}

var errStale = errors.New("the witness has seen a later attempt")

// tell adds an entry to the witness' log.
func (w *worker) tell(ctx context.Context, e entry) error {
	e.Process = w.Name
	body, err := json.Marshal(e)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+w.Witness, bytes.NewReader(body))
	if err != nil {
		return err
	}
	res, err := w.tells.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	_, _ = io.Copy(io.Discard, res.Body)
	switch res.StatusCode {
	case http.StatusNoContent:
		return nil
	case http.StatusConflict:
		return errStale
	}
	return fmt.Errorf("witness: %s", res.Status)
}

// watchTime tells when this process got no time: then it is as good as frozen,
// whoever did it.
func (w *worker) watchTime(ctx context.Context) error {
	const look, much = 50 * time.Millisecond, 500 * time.Millisecond
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(look):
		}
		now := time.Now()
		if d := now.Sub(last); d > much {
			_ = w.tell(ctx, entry{Kind: stalled, MS: d.Milliseconds()})
			now = time.Now()
		}
		last = now
	}
}

// breakerWatch tells when the cache passes calls through, as its log says.
type breakerWatch struct {
	slog.Handler
	w *worker
}

func (b *breakerWatch) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "onceq: breaker changed" {
		kind := opened
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == "to" && a.Value.String() == "closed" {
				kind = closed
			}
			return true
		})
		_ = b.w.tell(context.WithoutCancel(ctx), entry{Kind: kind}) // of the process, not of the call that noticed
	}
	return b.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (b *breakerWatch) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &breakerWatch{b.Handler.WithAttrs(attrs), b.w}
}

// WithGroup implements slog.Handler.
func (b *breakerWatch) WithGroup(name string) slog.Handler {
	return &breakerWatch{b.Handler.WithGroup(name), b.w}
}
