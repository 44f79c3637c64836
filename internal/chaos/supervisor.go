package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/modelserver"
	"github.com/nexuscore/onceq/internal/redistest"
	"github.com/nexuscore/onceq/notify"
	"github.com/nexuscore/onceq/notify/notifytest"
	"github.com/nexuscore/onceq/orchestrator"
)

// supervisor holds what outlives the workers, and does to them what is planned.
type supervisor struct {
	settings
	plan    plan
	began   time.Time
	redis   *redistest.Server
	admin   *redis.Client
	model   *modelserver.Server
	slack   *notifytest.Slack
	witness *witness
	spec    workerSpec
	stack   stack
	seats   []*seat
	done    []func()

	redisBusy sync.Mutex // one thing at a time happens to Redis

	mu       sync.Mutex // guards the fields below
	troubles []trouble
	skipped  int            // events that found their victim down already
	accepted map[string]int // answers of "yes", by run
	stops    []string
}

func newSupervisor(ctx context.Context, s settings, p plan) (_ *supervisor, err error) {
	v := &supervisor{settings: s, plan: p, accepted: map[string]int{}}
	defer func() {
		if err != nil {
			v.close()
		}
	}()
	if s.dir, err = filepath.Abs(s.dir); err != nil {
		return nil, err
	}
	v.settings.dir = s.dir
	redis.SetLogger(silent{}) // it has much to say of a Redis that is down
	// Nothing that Redis acknowledged is lost with its process: else what a
	// restart forgets could not be told from what the library does.
	if v.redis, err = redistest.New(s.dir, "--appendonly", "yes", "--appendfsync", "always"); err != nil {
		return nil, err
	}
	v.done = append(v.done, v.redis.Kill)
	v.admin = redis.NewClient(&redis.Options{Addr: v.redis.Addr, DisableIdentity: true, ClientName: adminName, PoolSize: 2})
	v.done = append(v.done, func() { _ = v.admin.Close() })
	if v.model, err = modelserver.Start("127.0.0.1:0", modelserver.WithLatency(40*time.Millisecond, time.Millisecond)); err != nil {
		return nil, err
	}
	v.done = append(v.done, func() { _ = v.model.Close() })
	if v.slack, err = notifytest.NewSlack(); err != nil {
		return nil, err
	}
	v.done = append(v.done, v.slack.Close)
	v.slack.OnCall(slackFaults(s.seed))
	if v.witness, err = newWitness(filepath.Join(s.dir, "witness.jsonl")); err != nil {
		return nil, err
	}
	v.done = append(v.done, v.witness.close)
	v.spec = workerSpec{Redis: v.redis.Addr, DB: filepath.Join(s.dir, "chaos.db"), Model: v.model.BaseURL(),
		Slack: v.slack.URL(), Witness: v.witness.addr, TTL: s.ttl, Concurrency: s.concurrency}
	log, err := os.Create(filepath.Join(s.dir, "logs", "supervisor.log"))
	if err != nil {
		return nil, err
	}
	v.done = append(v.done, func() { _ = log.Close() })
	own := v.spec
	own.Name = "supervisor"
	if v.stack, err = newStack(ctx, own, slog.New(slog.NewTextHandler(log, nil))); err != nil {
		return nil, err
	}
	v.done = append(v.done, v.stack.close)
	for n := range s.workers {
		v.seats = append(v.seats, &seat{n: n + 1, spec: v.spec, logs: filepath.Join(s.dir, "logs")})
	}
	return v, nil
}

const adminName = "chaos-admin"

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// slackFaults makes Slack as it is on a bad day.
func slackFaults(seed uint64) func(notifytest.Call) notifytest.Fault {
	return func(c notifytest.Call) notifytest.Fault {
		rng := rand.New(rand.NewPCG(seed, uint64(c.N)))
		if c.Method != "chat.postMessage" {
			return notifytest.None
		}
		switch n := rng.IntN(100); {
		case n < 6:
			return notifytest.AcceptThenDrop
		case n < 9:
			return notifytest.AcceptThenStatus(502)
		case n < 12:
			return notifytest.Status(500)
		case n < 15:
			return notifytest.RateLimited("1")
		case n < 16:
			return notifytest.AcceptThenHang
		}
		return notifytest.None
	}
}

func (v *supervisor) close() {
	for _, s := range v.seats {
		s.kill()
	}
	for i := len(v.done) - 1; i >= 0; i-- {
		v.done[i]()
	}
}

func (v *supervisor) trouble(t trouble) {
	v.mu.Lock()
	v.troubles = append(v.troubles, t)
	v.mu.Unlock()
}

// perform lets happen what is planned, then waits until all has ended.
func (v *supervisor) perform(ctx context.Context) error {
	for _, s := range v.seats {
		if _, err := s.start(); err != nil {
			return err
		}
	}
	v.began = time.Now()
	var wg sync.WaitGroup
	wg.Go(func() { v.handIn(ctx) })
	for _, e := range v.plan.Events {
		if !pause(ctx, time.Until(v.began.Add(e.At))) {
			break
		}
		wg.Go(func() { v.happen(ctx, e) }) // it may last until after the next one
	}
	pause(ctx, time.Until(v.began.Add(v.duration)))
	wg.Wait()
	v.slack.OnCall(nil)
	for _, s := range v.seats { // one that a signal found at its start may be gone
		if _, err := s.start(); err != nil {
			return err
		}
	}
	fmt.Printf("chaos: over after %v, waiting for all to end\n", time.Since(v.began).Round(time.Second))
	if err := v.drain(ctx); err != nil {
		return err
	}
	for _, s := range v.seats {
		wg.Go(func() { v.stop(s) })
	}
	wg.Wait()
	return ctx.Err()
}

func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// handIn hands the runs in at their times, some of them twice at once.
func (v *supervisor) handIn(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, r := range v.plan.Runs {
		if !pause(ctx, time.Until(v.began.Add(r.At))) {
			return
		}
		spec, _ := json.Marshal(r)
		n := orchestrator.NewRun{RunID: r.ID, Requirement: r.ID + " is to be done once", Parameters: spec}
		wg.Go(func() { v.create(ctx, n) })
		if r.Twice {
			wg.Go(func() { v.create(ctx, n) })
		}
	}
}

// create asks until it is told yes or no, as a client does.
func (v *supervisor) create(ctx context.Context, n orchestrator.NewRun) {
	for {
		_, err := v.stack.dispatcher.Create(ctx, n)
		switch {
		case err == nil:
			v.mu.Lock()
			v.accepted[n.RunID]++
			v.mu.Unlock()
			return
		case errors.Is(err, idempotent.ErrDuplicate), errors.Is(err, idempotent.ErrAlreadySucceeded):
			return
		}
		if !pause(ctx, 200*time.Millisecond) {
			return
		}
	}
}

// happen does one thing of the plan.
func (v *supervisor) happen(ctx context.Context, e event) {
	s := v.seats[e.Worker]
	var ok bool
	switch e.Kind {
	case killWorker:
		ok = s.during(func(p *process) {
			t := trouble{Kind: killed, Process: p.name, From: time.Now()}
			p.kill()
			t.Until = time.Now()
			v.trouble(t)
			pause(ctx, e.For)
		})
		v.startAgain(s)
	case stopWorker:
		ok = s.during(func(p *process) {
			t := trouble{Kind: stopped, Process: p.name, From: time.Now()}
			v.stopped(p)
			t.Until = time.Now()
			v.trouble(t)
			pause(ctx, e.For)
		})
		v.startAgain(s)
	case freezeShort, freezeLong:
		ok = s.during(func(p *process) {
			t := trouble{Kind: frozen, Process: p.name, From: time.Now()}
			p.signal(syscall.SIGSTOP)
			pause(ctx, e.For)
			p.signal(syscall.SIGCONT)
			t.Until = time.Now()
			v.trouble(t)
		})
	case slackDown:
		t := trouble{Kind: slackOut, From: time.Now()}
		v.slack.Down()
		pause(ctx, e.For)
		ok = v.slack.Up() == nil
		t.Until = time.Now()
		v.trouble(t)
	default:
		ok = v.hurtRedis(ctx, e)
	}
	if !ok {
		v.mu.Lock()
		v.skipped++
		v.mu.Unlock()
	}
}

func (v *supervisor) startAgain(s *seat) {
	if _, err := s.start(); err != nil {
		fmt.Fprintln(os.Stderr, "chaos: a worker did not start:", err)
	}
}

func (v *supervisor) hurtRedis(ctx context.Context, e event) bool {
	if !v.redisBusy.TryLock() {
		return false
	}
	defer v.redisBusy.Unlock()
	t := trouble{Kind: redisOut, From: time.Now(), Detail: string(e.Kind)}
	defer func() {
		t.Until = time.Now()
		v.trouble(t)
	}()
	switch e.Kind {
	case killRedis, restartRedis:
		if e.Kind == killRedis {
			v.redis.Kill()
		} else {
			v.redis.Stop()
		}
		pause(ctx, e.For)
		if err := v.redis.Start(); err != nil {
			fmt.Fprintln(os.Stderr, "chaos: redis-server does not come back:", err)
			return false
		}
	case pauseShort, pauseLong:
		_ = v.admin.Do(ctx, "CLIENT", "PAUSE", e.For.Milliseconds()).Err()
		pause(ctx, e.For)
	case cutLinks:
		_ = v.admin.Do(ctx, "CLIENT", "KILL", "SKIPME", "yes").Err()
	}
	return true
}

// stop ends a worker as a deploy does.
func (v *supervisor) stop(s *seat) {
	s.during(v.stopped)
}

func (v *supervisor) stopped(p *process) {
	if err := p.stop(); err != nil {
		v.mu.Lock()
		v.stops = append(v.stops, fmt.Sprintf("%s: %v", p.name, err))
		v.mu.Unlock()
	}
}

// drain waits until every run has ended, everybody was told and no lock is left.
func (v *supervisor) drain(ctx context.Context) error {
	deadline := time.Now().Add(v.settings.drain)
	for {
		open, err := v.open(ctx)
		if err == nil && open == "" || ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Now().After(deadline) { // the proof says what is missing
			fmt.Printf("chaos: %v later there is still %s %v\n", v.settings.drain, open, err)
			return nil
		}
		pause(ctx, 200*time.Millisecond)
	}
}

// open says what has not ended.
func (v *supervisor) open(ctx context.Context) (string, error) {
	for _, status := range []orchestrator.Status{orchestrator.StatusPending, orchestrator.StatusRunning, orchestrator.StatusRetrying} {
		list, err := v.stack.runs.List(ctx, orchestrator.Filter{Status: status, Limit: 1})
		if err != nil {
			return "", err
		}
		if len(list) > 0 {
			return list[0].RunID + " " + string(status), nil
		}
	}
	stats, err := v.stack.outbox.Stats(ctx)
	if err != nil {
		return "", err
	}
	for _, states := range stats {
		for _, state := range []notify.State{notify.StatePending, notify.StateSending, notify.StateUncertain} {
			if states[state] > 0 {
				return fmt.Sprintf("%d notifications %s", states[state], state), nil
			}
		}
	}
	locks, err := v.keys(ctx, isLock)
	if len(locks) > 0 {
		return locks[0], err
	}
	return "", err
}
