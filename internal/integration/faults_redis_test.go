package integration

import (
	"os"
	"slices"
	"testing"
	"time"
)

// inside starts a worker in this process.
func (w *world) inside(change ...func(*settings)) *stack {
	w.t.Helper()
	set := w.set
	for _, c := range change {
		c(&set)
	}
	at := func(p point) verb {
		p.PID = os.Getpid()
		return w.reached(p)
	}
	k, err := newStack(set, at, w.logger())
	w.must(err)
	w.t.Cleanup(k.close)
	w.must(k.work(w.logger()))
	return k
}

func (w *world) do(args ...any) {
	w.t.Helper()
	w.must(w.rdb.Do(w.t.Context(), args...).Err())
}

// What Redis does wrong while a run is in its third phase. The run always ends with
// one outcome and one message; the table says what was repeated.
func TestRedisFaults(t *testing.T) {
	const (
		short = time.Second     // below the lease's rest, whenever it was last extended
		long  = 8 * time.Second // beyond its TTL
	)
	var (
		nothing    = want{attempts: 1}
		thePhase   = want{again: []string{"phase planning"}, attempts: 2, crashes: 1}
		everything = want{again: []string{"phase context", "phase requirements", "phase planning"}, attempts: 2, paidAgain: 2}
		durable    = []string{"--appendonly", "yes", "--appendfsync", "always"}
	)
	replicaOf := func(w *world, d time.Duration) {
		w.do("REPLICAOF", "127.0.0.1", "1") // a master that is not there
		time.Sleep(d)
		w.do("REPLICAOF", "NO", "ONE")
	}
	for _, c := range []struct {
		name  string
		args  []string // of redis-server
		fault func(w *world)
		// until says at which point the fault is over, if not where it began: what
		// happens until then meets it.
		until string
		want  want
	}{
		{"CLIENT PAUSE below the TTL", nil, func(w *world) { w.do("CLIENT", "PAUSE", short.Milliseconds(), "ALL") }, "", nothing},
		{"CLIENT PAUSE beyond the TTL", nil, func(w *world) { w.do("CLIENT", "PAUSE", long.Milliseconds(), "ALL"); time.Sleep(long) }, "", thePhase},
		{"killed and restarted, with persistence", durable, func(w *world) { w.srv.Kill(); w.must(w.srv.Start()) }, "", nothing},
		{"killed and restarted later, with persistence", durable, func(w *world) { w.srv.Kill(); time.Sleep(long); w.must(w.srv.Start()) }, "", thePhase},
		{"stopped and restarted, with persistence", durable, func(w *world) { w.srv.Stop(); w.must(w.srv.Start()) }, "", nothing},
		{"killed and restarted, without persistence", nil, func(w *world) { w.srv.Kill(); w.must(w.srv.Start()) }, "", everything},
		{"FLUSHALL", nil, func(w *world) { w.do("FLUSHALL") }, "", everything},
		{"OOM for three phases", nil, func(w *world) { w.do("CONFIG", "SET", "maxmemory", "1") }, "phase testing", nothing},
		{"OOM beyond the TTL", nil, func(w *world) { w.do("CONFIG", "SET", "maxmemory", "1"); time.Sleep(long) }, "phase testing", nothing},
		{"OOM when the outcome is written", nil, func(w *world) { w.do("CONFIG", "SET", "maxmemory", "1") }, "later", nothing},
		{"READONLY below the TTL", nil, func(w *world) { replicaOf(w, short) }, "", nothing},
		{"READONLY beyond the TTL", nil, func(w *world) { replicaOf(w, long) }, "", thePhase},
		{"NOREPLICAS for three phases", nil, func(w *world) { w.do("CONFIG", "SET", "min-replicas-to-write", "1") }, "phase testing", nothing},
		{"NOREPLICAS beyond the TTL", nil, func(w *world) {
			w.do("CONFIG", "SET", "min-replicas-to-write", "1")
			time.Sleep(long)
			w.do("CONFIG", "SET", "min-replicas-to-write", "0")
		}, "", thePhase},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, defaults(), c.args...)
			heal := func() {
				w.do("CONFIG", "SET", "maxmemory", "0")
				w.do("CONFIG", "SET", "min-replicas-to-write", "0")
			}
			held, release := w.hold("phase planning", 1)
			if c.until != "" && c.until != "later" {
				w.onNth(c.until, 1, func(point) verb { heal(); return goOn })
			}
			w.inside()
			w.submit("7")
			w.receive(held)
			c.fault(w)
			release()
			if c.until == "later" {
				w.until("the row says SUCCESS", func() bool { return w.row("7").Status.Ended() })
				time.Sleep(long) // the lease is extended meanwhile, for that takes no memory
				heal()
			}
			w.awaitEnd("7")
			w.judge("7", c.want)
			w.asynqRecovers()
			w.judge("7", c.want)
			w.retriesUsed("7", "0")
			if c.until == "phase testing" && !slices.Contains(w.kinds("7"), "phase_unsaved planning") {
				t.Errorf("history %q: the save met no fault", w.kinds("7"))
			}
		})
	}
}
