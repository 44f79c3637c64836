package integration

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/redistest"
)

const masterName = "main"

// failover is a master, a replica whose link can be cut, and a sentinel.
type failover struct {
	*world
	master  *redistest.Server
	replica *redistest.Server
}

func newFailover(t *testing.T, set settings) *failover {
	t.Helper()
	f := &failover{master: redistest.Real(t)}
	host, port, _ := net.SplitHostPort(f.master.Addr)
	f.replica = redistest.Real(t, "--replicaof", host, port)
	set.Sentinel = startSentinel(t, f.master.Addr)
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: masterName, SentinelAddrs: []string{set.Sentinel}, DisableIdentity: true})
	t.Cleanup(func() { _ = rdb.Close() })
	set.Redis = []string{f.master.Addr}
	f.world = newWorldOn(t, set, rdb)
	f.caughtUp()
	return f
}

// lag keeps from the replica what is written from here on: its link breaks and is
// not made again, for it has a password that the master does not know. Sentinel
// promotes it all the same, unless that was long ago.
func (f *failover) lag() {
	f.t.Helper()
	ctx := f.t.Context()
	f.caughtUp()
	f.must(f.replica.Client().ConfigSet(ctx, "masterauth", "wrong").Err())
	f.must(f.master.Client().Do(ctx, "CLIENT", "KILL", "TYPE", "replica").Err())
	f.until("the link is broken", func() bool {
		return strings.Contains(f.replica.Client().Info(ctx, "replication").Val(), "master_link_status:down")
	})
	f.must(f.master.Client().Set(ctx, "test:lag", 1, time.Hour).Err())
}

// startSentinel starts a sentinel that is a quorum of its own, and returns when it
// knows the replica.
func startSentinel(t *testing.T, master string) string {
	t.Helper()
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		redistest.Skip(t, "redis-server is not installed")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	_, port, _ := net.SplitHostPort(addr)
	host, masterPort, _ := net.SplitHostPort(master)
	dir := t.TempDir()
	conf := filepath.Join(dir, "sentinel.conf")
	text := fmt.Sprintf("port %s\nbind 127.0.0.1\ndir %s\nsentinel monitor %s %s %s 1\n"+
		"sentinel down-after-milliseconds %s 2000\nsentinel failover-timeout %s 5000\n",
		port, dir, masterName, host, masterPort, masterName, masterName)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, conf, "--sentinel")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	c := redis.NewSentinelClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = c.Close() })
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		list, err := c.Replicas(t.Context(), masterName).Result()
		if err == nil && len(list) == 1 && list[0]["master-link-status"] == "ok" {
			return addr
		}
		if time.Now().After(end) {
			t.Fatalf("the sentinel does not see the replica: %v, %v", list, err)
		}
	}
}

// caughtUp returns when the replica has all that the master has.
func (f *failover) caughtUp() {
	f.t.Helper()
	rdb := f.master.Client()
	f.must(rdb.Incr(f.t.Context(), "test:mark").Err()) // not WAIT: it looks at the writes of its own connection
	mark := rdb.Get(f.t.Context(), "test:mark").Val()
	f.until("the replica has caught up", func() bool {
		return f.replica.Client().Get(f.t.Context(), "test:mark").Val() == mark
	})
}

// fail kills the master and returns when the replica is promoted.
func (f *failover) fail() {
	f.t.Helper()
	f.master.Kill()
	f.until("the replica is promoted", func() bool {
		role, err := f.replica.Client().Do(f.t.Context(), "ROLE").Slice()
		return err == nil && len(role) > 0 && role[0] == "master"
	})
	if f.replica.Client().Exists(f.t.Context(), "test:lag").Val() != 0 {
		f.t.Error("the replica did not lag")
	}
}

// The replica has all: the attempt under way goes on with its lease.
func TestFailover(t *testing.T) {
	t.Parallel()
	set := defaults()
	set.TTL = 30 * time.Second // longer than a failover takes
	f := newFailover(t, set)
	held, release := f.hold("phase planning", 1)
	f.inside()
	f.submit("7")
	f.receive(held)
	f.caughtUp()
	f.fail()
	release()
	f.awaitEnd("7")
	f.judge("7", want{attempts: 1})
}

// The replica lags by two phases, but knows the lease: the attempt goes on, and its
// next save makes good what the replica lost.
func TestFailoverToAReplicaThatLags(t *testing.T) {
	t.Parallel()
	set := defaults()
	set.TTL = 30 * time.Second
	f := newFailover(t, set)
	f.onNth("phase requirements", 1, func(point) verb { f.lag(); return goOn })
	held, release := f.hold("phase architecture", 1)
	f.inside()
	f.submit("7")
	f.receive(held)
	f.fail()
	if r := f.record("7"); r.State != idempotent.StateRunning {
		t.Errorf("the replica says %v, want running", r.State)
	}
	release()
	f.awaitEnd("7")
	f.judge("7", want{attempts: 1})
}

// The replica never heard that the run had begun: asynq delivers its task again and
// a second attempt begins beside the first, which nobody can prevent. The first one
// can write nothing more; the table has one outcome, the channel one message.
func TestFailoverToAReplicaThatNeverSawTheLease(t *testing.T) {
	t.Parallel()
	set := defaults()
	set.TTL = 30 * time.Second
	f := newFailover(t, set)
	f.submit("7")
	f.lag()
	held, release := f.hold("phase planning", 1)
	f.inside()
	f.receive(held)
	first := f.row("7").Token
	f.fail()
	f.awaitEnd("7") // by the second attempt, while the first is still in its phase
	if now := f.row("7").Token; now <= first {
		t.Errorf("token %d after %d, want a larger one", now, first)
	}
	want := want{again: []string{"phase context", "phase requirements", "phase planning"}, attempts: 2, paidAgain: 2}
	f.judge("7", want)
	before := f.kinds("7")
	release()
	f.asynqRecovers()
	f.judge("7", want)
	if after := f.kinds("7"); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("history %q, was %q: the first attempt wrote", after, before)
	}
}
