package idempotent_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/redistest"
)

const (
	workerEnv = "ONCEQ_TEST_WORKER" // the Redis that a worker process serves; several: a cluster
	eventList = "test:events"
)

// TestWorkerProcess is no test: it is a worker at default settings when the test
// binary is started again as one. Its handler does what the payload says.
func TestWorkerProcess(t *testing.T) {
	addrs := os.Getenv(workerEnv)
	if addrs == "" {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	rdb := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: strings.Split(addrs, ",")})
	guard, err := idempotent.New(rdb, idempotent.WithProcess("pid-"+strconv.Itoa(os.Getpid())))
	if err != nil {
		t.Fatal(err)
	}
	srv := asynq.NewServerFromRedisClient(rdb, guard.ServerConfig(asynq.Config{Concurrency: 10, LogLevel: asynq.FatalLevel, ShutdownTimeout: time.Second}))
	mux := asynq.NewServeMux()
	mux.Use(guard.Middleware)
	mux.HandleFunc(taskType, func(ctx context.Context, task *asynq.Task) error {
		a := idempotent.MustFromContext(ctx)
		report(rdb, "begun", a)
		switch how := string(task.Payload()); {
		case how == "hang":
			<-context.Background().Done() // whatever becomes of ctx
		case strings.HasPrefix(how, "hang until "):
			if n, _ := strconv.Atoi(how[len("hang until "):]); a.Number() < n {
				<-context.Background().Done()
			}
		}
		report(rdb, "ended", a)
		return nil
	})
	if err := srv.Start(mux); err != nil {
		t.Fatal(err)
	}
	rec, err := idempotent.NewRecoverer(guard)
	if err != nil {
		t.Fatal(err)
	}
	if err := rec.Start(); err != nil {
		t.Fatal(err)
	}
	rdb.RPush(ctx, eventList, fmt.Sprintf("up - 0 0 %d", os.Getpid()))
	<-ctx.Done()
	srv.Shutdown()
	rec.Shutdown()
	os.Exit(0) // a handler that hangs must not keep the process
}

func report(rdb redis.UniversalClient, what string, a *idempotent.Attempt) {
	rdb.RPush(context.Background(), eventList, fmt.Sprintf("%s %s %d %d %d", what, a.Key(), a.Number(), a.Crashes(), os.Getpid()))
}

// event is what a worker process reports.
type event struct {
	what, key        string
	attempt, crashes int
	pid              int
	at               time.Time
}

// fleet is worker processes on a Redis of their own.
type fleet struct {
	t        *testing.T
	addrs    string
	rdb      redis.UniversalClient
	guard    *idempotent.Guard
	producer *idempotent.Producer
	insp     *asynq.Inspector
	workers  map[int]*exec.Cmd
}

func newFleet(t *testing.T, workers int) *fleet {
	t.Helper()
	srv := redistest.Real(t)
	return newFleetOn(t, srv.Client(), workers, srv.Addr)
}

func newFleetOn(t *testing.T, rdb redis.UniversalClient, workers int, addrs ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, addrs: strings.Join(addrs, ","), rdb: rdb, workers: map[int]*exec.Cmd{}}
	var err error
	if f.guard, err = idempotent.New(f.rdb, idempotent.WithLogger(quiet)); err != nil {
		t.Fatal(err)
	}
	if f.producer, err = idempotent.NewProducer(f.guard, asynq.NewClientFromRedisClient(f.rdb)); err != nil {
		t.Fatal(err)
	}
	f.insp = asynq.NewInspectorFromRedisClient(f.rdb)
	t.Cleanup(func() {
		for pid := range f.workers {
			f.end(pid, syscall.SIGKILL)
		}
	})
	for range workers {
		f.start()
	}
	return f
}

// start returns when the worker is up and seen as present.
func (f *fleet) start() int {
	f.t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestWorkerProcess$", "-test.timeout=0")
	cmd.Env = append(os.Environ(), workerEnv+"="+f.addrs)
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.workers[cmd.Process.Pid] = cmd
	f.next("up", "")
	pid := strconv.Itoa(cmd.Process.Pid)
	f.until("a worker is present", func() bool {
		members := f.rdb.ZRange(f.t.Context(), "onceq:{leases}:present", 0, -1).Val()
		return slices.ContainsFunc(members, func(m string) bool { return strings.HasPrefix(m, "pid-"+pid+"-") })
	})
	return cmd.Process.Pid
}

func (f *fleet) end(pid int, sig syscall.Signal) {
	f.t.Helper()
	cmd := f.workers[pid]
	if cmd == nil {
		f.t.Fatalf("no worker %d", pid)
	}
	delete(f.workers, pid)
	_ = cmd.Process.Signal(sig)
	_ = cmd.Wait()
}

func (f *fleet) enqueue(key, how string, opts ...asynq.Option) {
	f.t.Helper()
	_, err := f.producer.Enqueue(f.t.Context(), key, task(how), append([]asynq.Option{asynq.Timeout(time.Hour)}, opts...)...)
	if err != nil {
		f.t.Fatal(err)
	}
}

// next waits for the next event of that kind, of that run.
func (f *fleet) next(what, key string) event {
	f.t.Helper()
	for {
		got, err := f.rdb.BLPop(f.t.Context(), 90*time.Second, eventList).Result()
		if err != nil {
			f.t.Fatalf("waiting for %s %s: %v", what, key, err)
		}
		e := event{at: time.Now()}
		if _, err := fmt.Sscan(got[1], &e.what, &e.key, &e.attempt, &e.crashes, &e.pid); err != nil {
			f.t.Fatalf("event %q: %v", got[1], err)
		}
		if e.what == what && (key == "" || e.key == key) {
			return e
		}
	}
}

// until waits for a state of Redis, which sends no event.
func (f *fleet) until(what string, ok func() bool) {
	f.t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(end) {
			f.t.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (f *fleet) state(key string) idempotent.Run {
	f.t.Helper()
	r, err := f.guard.Lookup(f.t.Context(), key)
	if err != nil {
		f.t.Fatal(err)
	}
	return r
}

// The claim at default settings: a run whose worker is killed begins its next
// attempt on a living one within 5 s, median of ten 4 s. Also L3: nobody helps.
func TestKilledWorkersRunGoesOnInSeconds(t *testing.T) {
	f := newFleet(t, 2)
	var took []time.Duration
	kills, slack := 10, time.Duration(1)
	if testing.Short() {
		kills = 2
	}
	if os.Getenv("CI") != "" { // a shared machine; asynq alone needs 58 s and more
		slack = 2
	}
	for i := range kills {
		key := "k" + strconv.Itoa(i)
		f.enqueue(key, "hang until 2")
		first := f.next("begun", key)
		killed := time.Now()
		f.end(first.pid, syscall.SIGKILL)
		second := f.next("begun", key)
		took = append(took, second.at.Sub(killed))
		if second.attempt != 2 || second.crashes != 1 || second.pid == first.pid {
			t.Fatalf("%+v after %+v, want attempt 2 after one crash", second, first)
		}
		f.next("ended", key)
		f.start()
	}
	t.Logf("from SIGKILL to the next attempt: %v", took)
	slices.Sort(took)
	if median := (took[(kills-1)/2] + took[kills/2]) / 2; median > 4*time.Second*slack {
		t.Errorf("median %v of %v, want at most 4s", median, took)
	}
	if slowest := took[kills-1]; slowest > 5*time.Second*slack {
		t.Errorf("slowest %v of %v, want at most 5s", slowest, took)
	}
	for i := range kills {
		key := "k" + strconv.Itoa(i)
		f.until(key+" succeeds", func() bool { return f.state(key).State == idempotent.StateSucceeded })
	}
}

// L10: three kills with MaxRetry(3) use up no retry.
func TestKillsUseNoRetry(t *testing.T) {
	f := newFleet(t, 2)
	f.enqueue("k", "hang until 4", asynq.MaxRetry(3))
	for i := 1; i <= 3; i++ {
		e := f.next("begun", "k")
		if e.attempt != i || e.crashes != i-1 {
			t.Fatalf("%+v, want attempt %d", e, i)
		}
		f.end(e.pid, syscall.SIGKILL)
		f.start()
	}
	if e := f.next("ended", "k"); e.attempt != 4 || e.crashes != 3 {
		t.Fatalf("%+v, want it done in the fourth attempt", e)
	}
	info, err := f.insp.ListArchivedTasks("default")
	if err != nil || len(info) != 0 {
		t.Fatalf("archived: %v, %v; want none", info, err)
	}
	if m := f.rdb.HMGet(t.Context(), "onceq:{k}:run", "max_retry", "retried").Val(); m[0] != "3" || m[1] != "0" {
		t.Fatalf("last delivery had max retry %v, retried %v; want 3 and 0", m[0], m[1])
	}
}

// L13: a server that shuts down while a handler ignores its context. asynq puts the
// task back, the lease dies with the process, and the run runs once more.
func TestShutdownWithAHungHandler(t *testing.T) {
	f := newFleet(t, 2)
	f.enqueue("k", "hang until 2", asynq.MaxRetry(1))
	first := f.next("begun", "k")
	f.end(first.pid, syscall.SIGTERM)
	left := time.Now()
	e := f.next("ended", "k")
	if e.attempt != 2 || e.crashes != 0 {
		t.Fatalf("%+v, want it done in the second attempt, and a shutdown not to count as a crash", e)
	}
	if d := e.at.Sub(left); d > 10*time.Second {
		t.Errorf("went on after %v, want it not to wait for the TTL", d)
	}
	f.until("it succeeds", func() bool { return f.state("k").State == idempotent.StateSucceeded })
	f.until("the queue is empty", func() bool {
		q, err := f.insp.GetQueueInfo("default")
		return err == nil && q.Active+q.Pending+q.Retry+q.Archived+q.Scheduled <= 1 // the dead delivery, until asynq recovers it
	})
	if n := f.rdb.LLen(t.Context(), eventList).Val(); n != 0 {
		t.Fatalf("%d further events, want none: %v", n, f.rdb.LRange(t.Context(), eventList, 0, -1).Val())
	}
}

// The same on Redis Cluster, where the index is written beside the lease, and where
// only one node sees a subscription. The keys of the runs are on all nodes.
func TestKilledWorkersOnCluster(t *testing.T) {
	t.Parallel() // it waits most of the time
	c := redistest.Cluster(t)
	rdb := c.Client()
	f := newFleetOn(t, rdb, 2, c.Addrs()...)
	keys := []string{"a", "b", "c", "d", "e", "f"}
	ran := map[int][]string{} // worker → its runs
	for _, k := range keys {
		f.enqueue(k, "hang until 2")
		pid := f.next("begun", k).pid
		ran[pid] = append(ran[pid], k)
	}
	f.start() // the one that lives
	for pid, keys := range ran {
		killed := time.Now()
		f.end(pid, syscall.SIGKILL)
		for range keys {
			e := f.next("begun", "")
			if d := e.at.Sub(killed); !slices.Contains(keys, e.key) || d > 6*time.Second || e.attempt != 2 || e.crashes != 1 {
				t.Fatalf("%+v after %v, want the second attempt of one of %v within 6s", e, d, keys)
			}
		}
		for _, k := range keys { // before the next kill, which may be of the worker that took it over
			f.until(k+" succeeds", func() bool { return f.state(k).State == idempotent.StateSucceeded })
		}
	}
	f.until("the index is empty", func() bool {
		return rdb.Exists(t.Context(), "onceq:{leases}:waiting").Val()+rdb.ZCard(t.Context(), "onceq:{leases}:processes").Val() == 0
	})
	for _, n := range c.Nodes {
		node := n.Client()
		for _, k := range node.Keys(t.Context(), "onceq:*").Val() {
			if node.PTTL(t.Context(), k).Val() < 0 {
				t.Errorf("%s has no TTL", k)
			}
		}
	}
}

// A process that is frozen keeps its connections: the TTL decides. Thawed, it can
// change nothing.
func TestFrozenWorker(t *testing.T) {
	t.Parallel() // it waits most of the time
	if testing.Short() {
		t.Skip("takes a lease's TTL")
	}
	f := newFleet(t, 2)
	f.enqueue("k", "hang until 2")
	first := f.next("begun", "k")
	frozen := time.Now()
	_ = f.workers[first.pid].Process.Signal(syscall.SIGSTOP)
	second := f.next("begun", "k")
	if d := second.at.Sub(frozen); second.pid == first.pid || d < 15*time.Second || d > 33*time.Second {
		t.Fatalf("%+v after %v, want the other worker after the lease's rest and at most 33s", second, d)
	}
	f.next("ended", "k")
	f.until("it succeeds", func() bool { return f.state("k").State == idempotent.StateSucceeded })
	before := f.state("k")
	_ = f.workers[first.pid].Process.Signal(syscall.SIGCONT)
	f.enqueue("other", "done") // the thawed one serves again, or its neighbour does
	f.next("ended", "other")
	f.end(first.pid, syscall.SIGTERM)
	if after := f.state("k"); after.Token != before.Token || after.State != idempotent.StateSucceeded {
		t.Fatalf("%+v, was %+v: the thawed worker changed it", after, before)
	}
}
