package idempotent_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/logtest"
	"github.com/nexuscore/onceq/internal/redistest"
)

// A look costs what is orphaned, not what is running.
func TestScanOfManyLiveRuns(t *testing.T) {
	srv := redistest.Real(t)
	rdb := srv.Client()
	const processes, each = 10, 10_000
	soon := float64(time.Now().Add(time.Hour).UnixMilli())
	for p := range processes {
		name := fmt.Sprint("p", p)
		members := make([]redis.Z, each)
		for i := range members {
			members[i] = redis.Z{Score: soon + float64(i), Member: fmt.Sprint("run-", p, "-", i)}
		}
		if err := rdb.ZAdd(t.Context(), "onceq:{leases}:of:"+name, members...).Err(); err != nil {
			t.Fatal(err)
		}
		rdb.ZAdd(t.Context(), "onceq:{leases}:processes", redis.Z{Score: soon + each, Member: name})
	}
	own := srv.Client()
	var n redistest.Counter
	g := newGuardOn(t, own, "me")
	own.AddHook(&n)
	looks := func() int64 { // counted by the server, so that nothing is missed
		info := rdb.Info(t.Context(), "commandstats").Val()
		var calls int64
		for line := range strings.SplitSeq(info, "\r\n") {
			if rest, ok := strings.CutPrefix(line, "cmdstat_evalsha:calls="); ok {
				_, _ = fmt.Sscan(strings.SplitN(rest, ",", 2)[0], &calls)
			}
		}
		return calls
	}
	startRecoverer(t, g, idempotent.WithInterval(20*time.Millisecond))
	waitFor(t, "a look", func() bool { return looks() > 3 })
	n.Reset()
	before := looks()
	waitFor(t, "fifty looks", func() bool { return looks() >= before+50 })
	commands, scans := n.Commands(), looks()-before
	if commands > scans+2 { // one may be on its way
		t.Errorf("%d commands for %d looks at %d live runs, want one each", commands, scans, processes*each)
	}
	var usec float64
	for line := range strings.SplitSeq(rdb.Info(t.Context(), "commandstats").Val(), "\r\n") {
		if _, rest, ok := strings.Cut(line, "cmdstat_evalsha:"); ok {
			_, rest, _ = strings.Cut(rest, "usec_per_call=")
			_, _ = fmt.Sscan(strings.SplitN(rest, ",", 2)[0], &usec)
		}
	}
	t.Logf("a look at %d live runs of %d processes takes Redis %v µs", processes*each, processes, usec)
	if usec > 5000 {
		t.Errorf("a look takes Redis %v µs, want it cheap", usec)
	}
}

// Runs that cannot be judged do not keep their places before those that can.
func TestRunsThatCannotBeJudgedMakeWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for _, key := range []string{"gone-1", "gone-2", "gone-3", "well"} { // in the index's order
			died(t, w.rdb, key)
			w.rdb.ZAdd(t.Context(), "onceq:{leases}:of:dead-1", redis.Z{Score: 1, Member: key}) // long ago, by virtual time
		}
		w.rdb.AddHook(deaf{script: "recover_judge.lua", on: "gone"})
		if _, err := w.client.Enqueue(task("x"), asynq.TaskID("other"), asynq.ProcessIn(time.Hour)); err != nil { // makes the queue
			t.Fatal(err)
		}
		var log logtest.Log
		g := w.newGuard(idempotent.WithLogger(log.Logger()))
		w.recover(g, idempotent.WithBatch(3))
		time.Sleep(4500 * time.Millisecond)
		if got := w.tasks(); !slices.Equal(got, []string{"other scheduled", "well~r1700000000000000 pending"}) {
			t.Errorf("tasks %v, want a delivery of the one that can be judged", got)
		}
		if n := strings.Count(log.String(), "not judged"); n < 3 || n > 6 {
			t.Errorf("said %d times in 4.5 s, want once a look:\n%s", n, log.String())
		}
	})
}

// lagging makes asynq's keys of a queue slow to answer, or silent.
type lagging struct {
	queue  string
	takes  time.Duration
	judged *atomic.Int64
}

func (s lagging) DialHook(next redis.DialHook) redis.DialHook { return next }
func (s lagging) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if a := cmd.Args(); len(a) > 3 && strings.HasPrefix(fmt.Sprint(a[3]), "asynq:{"+s.queue+"}:t:") {
			time.Sleep(s.takes)
		}
		return next(ctx, cmd)
	}
}

func (s lagging) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		s.judged.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

// Runs whose deliveries lie in a queue that nobody serves are looked at now and then, not
// again and again by each recoverer that finds them claimed.
func TestRecoverersDoNotUndoEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		const runs = 40
		for i := range runs {
			key := fmt.Sprintf("k%02d", i)
			died(t, w.rdb, key)
			w.rdb.ZAdd(t.Context(), "onceq:{leases}:of:dead-1", redis.Z{Score: 1, Member: key})
			if _, err := w.client.Enqueue(task("x"), asynq.TaskID(key)); err != nil {
				t.Fatal(err)
			}
		}
		var judged atomic.Int64
		w.rdb.AddHook(lagging{"default", 20 * time.Millisecond, &judged})
		for range 5 {
			w.recover(w.newGuard())
		}
		time.Sleep(2 * time.Minute)
		if n := judged.Load(); n > 5*5*runs { // five recoverers, four times 30 s and the first
			t.Errorf("%d runs were judged %d times in two minutes, want at most %d", runs, n, 5*5*runs)
		}
	})
}

// A queue whose keys do not answer, as on a master that hangs, costs a look one question:
// runs of other queues do not wait for all of its own.
func TestASilentQueueDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for _, key := range []string{"a1", "a2", "a3", "a4", "a5", "a6", "b"} {
			died(t, w.rdb, key)
			w.rdb.ZAdd(t.Context(), "onceq:{leases}:of:dead-1", redis.Z{Score: 1, Member: key})
			queue := "default"
			if key != "b" {
				queue = "silent"
				w.rdb.HSet(t.Context(), "onceq:{"+key+"}:run", "queue", queue)
			}
			if _, err := w.client.Enqueue(task("x"), asynq.TaskID("other-"+key), asynq.Queue(queue), asynq.ProcessIn(time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
		w.rdb.AddHook(lagging{"silent", time.Minute, new(atomic.Int64)})
		r := w.recover(w.newGuard())
		time.Sleep(6 * time.Second)
		if got := w.tasks(); !slices.Contains(got, "b~r1700000000000000 pending") {
			t.Errorf("tasks %v, want a delivery of b", got)
		}
		r.Shutdown()
		time.Sleep(2 * time.Minute) // what hangs ends
	})
}

// A run of which nothing can be told does not put off the others of its queue.
func TestARunThatIsLeftAloneDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for _, key := range []string{"a-large", "b-small"} {
			died(t, w.rdb, key)
			w.rdb.ZAdd(t.Context(), "onceq:{leases}:of:dead-1", redis.Z{Score: 1, Member: key})
		}
		w.rdb.HDel(t.Context(), "onceq:{a-large}:run", "payload") // and asynq has never heard of the queue
		r := w.recover(w.newGuard())
		time.Sleep(5 * time.Second)
		r.Shutdown()
		if got := w.tasks(); !slices.Equal(got, []string{"b-small~r1700000000000000 pending"}) {
			t.Errorf("tasks %v, want a delivery of the other", got)
		}
	})
}
