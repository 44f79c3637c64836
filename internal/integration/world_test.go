package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/logtest"
	"github.com/nexuscore/onceq/internal/modelserver"
	"github.com/nexuscore/onceq/internal/redistest"
	"github.com/nexuscore/onceq/notify"
	"github.com/nexuscore/onceq/notify/notifytest"
	"github.com/nexuscore/onceq/orchestrator"
)

// world is what outlives the workers of a test: broker, database, model, channel;
// and what the workers did, as seen from there.
type world struct {
	t     *testing.T
	set   settings
	srv   *redistest.Server // nil on a cluster
	rdb   redis.UniversalClient
	insp  *asynq.Inspector
	model *modelserver.Server
	slack *notifytest.Slack
	api   *stack // takes runs in
	log   logtest.Log

	mu     sync.Mutex // guards the fields below
	seen   map[string]int
	byRun  map[string]int // "run what" of points with a run
	steer  map[string]func(point) verb
	sender int // process that last took a notification to send
	procs  map[int]*process
}

// newWorld starts everything but workers, on a Redis of its own.
func newWorld(t *testing.T, set settings, redisArgs ...string) *world {
	t.Helper()
	srv := redistest.Real(t, redisArgs...)
	set.Redis = []string{srv.Addr}
	w := newWorldOn(t, set, srv.Client())
	w.srv = srv
	return w
}

func newWorldOn(t *testing.T, set settings, rdb redis.UniversalClient) *world {
	t.Helper()
	w := &world{t: t, set: set, rdb: rdb, seen: map[string]int{}, byRun: map[string]int{}, steer: map[string]func(point) verb{}, procs: map[int]*process{}}
	w.insp = asynq.NewInspectorFromRedisClient(rdb)
	var err error
	w.model, err = modelserver.Start("127.0.0.1:0")
	w.must(err)
	t.Cleanup(func() { _ = w.model.Close() })
	w.slack, err = notifytest.NewSlack()
	w.must(err)
	t.Cleanup(w.slack.Close)
	points := httptest.NewServer(http.HandlerFunc(w.serve))
	t.Cleanup(points.Close)
	w.set.Database, w.set.Model, w.set.Slack, w.set.Points = filepath.Join(t.TempDir(), "runs.db"), w.model.BaseURL(), w.slack.URL(), points.URL
	w.loadScripts()
	w.api, err = newStack(w.set, w.reached, w.logger())
	w.must(err)
	t.Cleanup(w.api.close)
	w.must(w.api.outbox.Migrate(t.Context()))
	w.must(w.api.runs.Migrate(t.Context()))
	t.Cleanup(w.endAll)
	t.Cleanup(func() {
		if t.Failed() || os.Getenv("ONCEQ_TEST_LOG") != "" {
			t.Logf("log of this process and its children:\n%s\n%s", tail(w.log.String(), 16<<10), w.queued())
		}
	})
	return w
}

// loadScripts keeps NOSCRIPT from making one command two.
func (w *world) loadScripts() {
	w.t.Helper()
	for _, pkg := range []string{"idempotent", "checkpoint", "llmcache"} {
		all, err := scripts(pkg)
		w.must(err)
		for _, text := range all {
			w.must(w.rdb.ScriptLoad(w.t.Context(), text).Err())
		}
	}
}

func (w *world) logger() *slog.Logger { return slog.New(slog.NewTextHandler(&w.log, nil)) }

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// serve receives the points of children.
func (w *world) serve(rw http.ResponseWriter, r *http.Request) {
	var p point
	if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	_, _ = io.WriteString(rw, string(w.reached(p)))
}

// reached counts a point and answers what the test wants.
func (w *world) reached(p point) verb {
	w.mu.Lock()
	w.seen[p.What]++
	p.N = w.seen[p.What]
	if p.Run != "" {
		w.byRun[p.Run+" "+p.What]++
	}
	if p.What == "before sending" {
		w.sender = p.PID
	}
	f := w.steer[p.What]
	w.mu.Unlock()
	if f == nil {
		return goOn
	}
	return f(p)
}

// on sets what is done at each point of that name.
func (w *world) on(what string, f func(point) verb) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.steer[what] = f
}

// onNth does something at the nth point of that name alone.
func (w *world) onNth(what string, nth int, f func(point) verb) {
	w.on(what, func(p point) verb {
		if p.N != nth {
			return goOn
		}
		return f(p)
	})
}

// hold keeps the nth point of that name until release is called. reached is sent
// the point.
func (w *world) hold(what string, nth int) (reached chan point, release func()) {
	reached, open := make(chan point, 1), make(chan struct{})
	release = sync.OnceFunc(func() { close(open) })
	w.t.Cleanup(release)
	w.onNth(what, nth, func(p point) verb {
		reached <- p
		<-open
		return goOn
	})
	return reached, release
}

func (w *world) count(what string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen[what]
}

// of is how often a run reached a point.
func (w *world) of(runID, what string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.byRun[w.api.runs.Key(runID)+" "+what]
}

// receive waits for a point that is held.
func (w *world) receive(c <-chan point) point {
	w.t.Helper()
	select {
	case p := <-c:
		return p
	case <-time.After(patience):
		w.t.Fatal("the point was not reached")
		panic("unreachable")
	}
}

// patience is for what must happen at all.
const patience = 60 * time.Second

// until waits for a state, of which nobody tells.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(patience); !ok(); {
		if time.Now().After(end) {
			w.t.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// submit takes a run in.
func (w *world) submit(runID string) {
	w.t.Helper()
	if _, err := w.api.dispatcher.Create(w.t.Context(), orchestrator.NewRun{RunID: runID, Requirement: requirement(runID)}); err != nil {
		w.t.Fatalf("Create: %v", err)
	}
}

func (w *world) row(runID string) orchestrator.Run {
	w.t.Helper()
	r, err := w.api.runs.Get(w.t.Context(), runID)
	w.must(err)
	return r
}

func (w *world) record(runID string) idempotent.Run {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	for {
		r, err := w.api.guard.Lookup(ctx, w.api.runs.Key(runID))
		if err == nil || ctx.Err() != nil {
			w.must(err)
			return r
		}
	}
}

// kinds are the kinds of a run's history, with the phase where there is one.
func (w *world) kinds(runID string) []string {
	w.t.Helper()
	list, err := w.api.runs.History(w.t.Context(), runID)
	w.must(err)
	var kinds []string
	for _, e := range list {
		kinds = append(kinds, strings.TrimSpace(string(e.Kind)+" "+e.Phase))
	}
	return kinds
}

// awaitEnd waits until the table, Redis and the channel say that a run has ended.
func (w *world) awaitEnd(runID string) {
	w.t.Helper()
	w.until("the row has an outcome", func() bool { return w.row(runID).Status.Ended() })
	w.until("so has Redis", func() bool {
		s := w.record(runID).State
		return s == idempotent.StateSucceeded || s == idempotent.StateFailed
	})
	w.until("people are told, and it is on record", func() bool {
		list, err := w.api.outbox.List(w.t.Context(), notify.Filter{RunID: runID})
		return err == nil && len(list) == 1 && list[0].State == notify.StateSent
	})
}

// asynqRecovers lets asynq recover what it still calls active, now instead of in a
// minute or two: it does so when a server starts, with tasks whose lease is long over.
func (w *world) asynqRecovers() {
	w.t.Helper()
	w.asynqRecoversWith(0)
}

// asynqRecoversWith is asynqRecovers where so many tasks end in the archive.
func (w *world) asynqRecoversWith(archived int) {
	w.t.Helper()
	ctx := w.t.Context()
	for _, id := range w.rdb.LRange(ctx, "asynq:{"+queue+"}:active", 0, -1).Val() {
		w.must(w.rdb.ZAdd(ctx, "asynq:{"+queue+"}:lease", redis.Z{Score: 1, Member: id}).Err())
	}
	w.mu.Lock()
	children := len(w.procs) > 0
	w.mu.Unlock()
	if children {
		w.start()
	} else {
		w.inside()
	}
	w.awaitQueue(archived)
}

func (w *world) awaitEmptyQueue() {
	w.t.Helper()
	w.awaitQueue(0)
}

// awaitQueue waits until nothing is left in the queue but archived tasks.
func (w *world) awaitQueue(archived int) {
	w.t.Helper()
	var q *asynq.QueueInfo
	w.until("the queue is empty", func() bool {
		var err error
		q, err = w.insp.GetQueueInfo(queue)
		if err != nil { // Redis may have lost asynq's list of queues, which a client writes once
			_ = w.rdb.SAdd(w.t.Context(), "asynq:queues", queue)
		}
		return err == nil && q.Active+q.Pending+q.Retry+q.Scheduled == 0
	})
	if q.Archived != archived {
		w.t.Errorf("%d tasks archived, want %d", q.Archived, archived)
		list, _ := w.insp.ListArchivedTasks(queue)
		for _, i := range list {
			w.t.Errorf("archived: %s: %s", i.ID, i.LastErr)
		}
	}
}

// queued is what asynq has, for the log of a test that fails.
func (w *world) queued() string {
	var b strings.Builder
	for _, list := range []func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error){
		w.insp.ListPendingTasks, w.insp.ListActiveTasks, w.insp.ListRetryTasks, w.insp.ListScheduledTasks, w.insp.ListArchivedTasks,
	} {
		tasks, err := list(queue)
		if err != nil {
			fmt.Fprintln(&b, err)
		}
		for _, i := range tasks {
			fmt.Fprintf(&b, "task %s is %s, retried %d of %d, next %v, last error %q\n", i.ID, i.State, i.Retried, i.MaxRetry, i.NextProcessAt, i.LastErr)
		}
	}
	return b.String()
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }
