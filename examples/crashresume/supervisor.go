package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/examples/internal/app"
	"github.com/nexuscore/onceq/internal/modelserver"
	"github.com/nexuscore/onceq/llmcache"
	"github.com/nexuscore/onceq/notify/notifytest"
	"github.com/nexuscore/onceq/orchestrator"
)

const requirement = "A command line tool that counts the words, lines and bytes in the files it is given."

// supervisor holds what outlives the workers.
type supervisor struct {
	settings
	story *story
	redis string
	queue string
	model *modelserver.Server
	slack *notifytest.Slack
	runs  *orchestrator.Runs
	cache *llmcache.Cache // to read its ledger
	done  []func()

	runID    string
	started  int // workers
	addr     string
	worker   *process
	killed   []kill
	accepted int
	refused  int
}

type kill struct {
	at    time.Time
	phase string
	seq   int // calls that the model had seen by then
}

func newSupervisor(ctx context.Context, s settings, st *story) (_ *supervisor, err error) {
	name := "crashresume-" + rand.Text()[:8]
	v := &supervisor{settings: s, story: st, redis: s.redis, queue: name, runID: name}
	defer func() {
		if err != nil {
			v.close()
		}
	}()
	if v.redis == "" {
		m := miniredis.NewMiniRedis()
		m.ClockTTL(true)
		if err := m.Start(); err != nil {
			return nil, err
		}
		v.done = append(v.done, m.Close)
		v.redis = "redis://" + m.Addr()
	}
	if err := v.connect(ctx); err != nil {
		return nil, err
	}
	if v.model, err = modelserver.Start("127.0.0.1:0", modelserver.WithLatency(150*time.Millisecond, 4*time.Millisecond)); err != nil {
		return nil, err
	}
	v.done = append(v.done, func() { _ = v.model.Close() })
	if v.slack, err = notifytest.NewSlack(); err != nil {
		return nil, err
	}
	v.done = append(v.done, v.slack.Close)
	db, err := app.OpenDatabase(v.database())
	if err != nil {
		return nil, err
	}
	pool, err := db.DB()
	if err != nil {
		return nil, err
	}
	v.done = append(v.done, func() { _ = pool.Close() })
	v.runs, err = orchestrator.NewRuns(db, nil)
	return v, err
}

// connect reaches the broker, and leaves no queue of ours on it at the end.
func (v *supervisor) connect(ctx context.Context) error {
	opt, err := app.ParseRedis(v.redis)
	if err != nil {
		return fmt.Errorf("-redis: %w", err)
	}
	rdb := redis.NewClient(opt)
	v.done = append(v.done, func() {
		_ = asynq.NewInspectorFromRedisClient(rdb).DeleteQueue(v.queue, true)
		_ = rdb.Close()
	})
	if err := rdb.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("-redis: no answer from %s: %w", opt.Addr, err)
	}
	v.cache, err = llmcache.New(rdb, llmcache.WithPrefix(v.queue))
	return err
}

func (v *supervisor) database() string { return filepath.Join(v.dir, "onceq.db") }

func (v *supervisor) close() {
	if v.worker != nil {
		v.worker.kill()
	}
	for i := len(v.done) - 1; i >= 0; i-- {
		v.done[i]()
	}
}

// perform is the whole play.
func (v *supervisor) perform(ctx context.Context) error {
	if err := v.startWorker(ctx); err != nil {
		return err
	}
	if err := v.submitTwice(ctx); err != nil {
		return err
	}
	for range v.kills {
		if err := v.killInPhase(ctx, phases[v.killPhase-1]); err != nil {
			return err
		}
		if err := v.startWorker(ctx); err != nil {
			return err
		}
	}
	return v.awaitEnd(ctx)
}

// startWorker starts a worker and waits until it is ready.
func (v *supervisor) startWorker(ctx context.Context) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	v.addr = l.Addr().String()
	_ = l.Close()
	v.started++
	env := []string{
		"REDIS_URL=" + v.redis, "DATABASE_URL=" + v.database(), "OPENAI_BASE_URL=" + v.model.BaseURL(),
		"OPENAI_API_KEY=none", "OPENAI_MODEL=" + modelserver.Model,
		"SLACK_BOT_TOKEN=" + notifytest.Token, "SLACK_CHANNEL=" + notifytest.Channel, "SLACK_API_URL=" + v.slack.URL(), "SLACK_WEBHOOK_URL=",
	}
	args := []string{
		"-addr", v.addr, "-dir", v.dir, "-queue", v.queue, "-prefix", v.queue,
		"-max-crashes", strconv.Itoa(v.kills + 5),
	}
	v.worker, err = startProcess(filepath.Join(v.dir, fmt.Sprintf("worker-%d.log", v.started)), env, args)
	if err != nil {
		return err
	}
	v.story.tell("worker %d started (process %d)", v.started, v.worker.pid())
	return v.poll(ctx, "the worker's /readyz", func() (bool, error) {
		select {
		case <-v.worker.ended:
			return false, fmt.Errorf("worker %d ended at once: see its log in %s", v.started, v.dir)
		default:
		}
		res, err := http.Get("http://" + v.addr + "/readyz")
		if err != nil {
			return false, nil
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK, nil
	})
}

// submitTwice is a double click.
func (v *supervisor) submitTwice(ctx context.Context) error {
	body, err := json.Marshal(orchestrator.NewRun{RunID: v.runID, Requirement: requirement})
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	statuses := make([]int, 2)
	for i := range statuses {
		wg.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+v.addr+"/runs", bytes.NewReader(body))
			if err != nil {
				return
			}
			req.Header.Set("Content-Type", "application/json")
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				return
			}
			_ = res.Body.Close()
			statuses[i] = res.StatusCode
		})
	}
	wg.Wait()
	for _, status := range statuses {
		switch status {
		case http.StatusAccepted:
			v.accepted++
		case http.StatusConflict, http.StatusOK:
			v.refused++
		}
	}
	v.story.tell("the run is submitted twice at the same moment: HTTP %d and %d", statuses[0], statuses[1])
	if v.accepted == 0 {
		return errors.New("neither submission was accepted")
	}
	return nil
}

// killInPhase waits until a call of the phase is open at the model, after one that
// was answered where the phase makes several, and kills the worker.
func (v *supervisor) killInPhase(ctx context.Context, phase string) error {
	seen := 0
	if n := len(v.killed); n > 0 {
		seen = v.killed[n-1].seq
	}
	open := func(c modelserver.Call) bool {
		return c.Phase == phase && c.Seq > seen && c.Outcome == modelserver.Open && (v.answered(phase) || asksOnce[phase])
	}
	c, err := v.model.Await(ctx, open)
	if err != nil {
		return fmt.Errorf("no call of phase %s: %w", phase, err)
	}
	v.worker.kill()
	v.killed = append(v.killed, kill{at: time.Now(), phase: phase, seq: c.Seq})
	v.story.tell("SIGKILL for worker %d in the middle of phase %s, while the model answers its call for %s", v.started, phase, c.Task)
	v.worker = nil
	return nil
}

// asksOnce lists the phases that make one call.
var asksOnce = map[string]bool{"context": true, "testing": true}

func (v *supervisor) answered(phase string) bool {
	for _, c := range v.model.Calls() {
		if c.Phase == phase && c.Outcome == modelserver.Completed {
			return true
		}
	}
	return false
}

// awaitEnd waits until the run has ended and people were told, and ends the worker
// as a deploy would.
func (v *supervisor) awaitEnd(ctx context.Context) error {
	err := v.poll(ctx, "the end of the run", func() (bool, error) {
		r, err := v.runs.Get(ctx, v.runID)
		return r.Status.Ended(), err
	})
	if err != nil {
		return err
	}
	err = v.poll(ctx, "the notification", func() (bool, error) { return len(v.slack.Seen(notifytest.Channel)) > 0, nil })
	if err != nil {
		return err
	}
	v.story.tell("told in Slack: %q", firstLine(v.slack.Seen(notifytest.Channel)[0].Text))
	w := v.worker
	v.worker = nil
	return w.stop()
}

// poll asks a process or a database, neither of which calls back.
func (v *supervisor) poll(ctx context.Context, what string, ok func() (bool, error)) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if yes, err := ok(); yes || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
}
