package integration

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nexuscore/onceq/internal/redistest"
)

// clustered is a world on a cluster, and two runs: one on a master that neither
// asynq's queue nor the index of leases needs, one on another.
type clustered struct {
	*world
	nodes        *redistest.ClusterServers
	victim       *redistest.Server
	there, other string
}

func newClustered(t *testing.T, set settings, args ...string) *clustered {
	t.Helper()
	c := redistest.Cluster(t, args...)
	set.Redis = c.Addrs()
	w := &clustered{nodes: c, world: newWorldOn(t, set, c.Client())}
	needed := map[*redistest.Server]bool{c.NodeOf("asynq:{" + queue + "}:pending"): true, c.NodeOf("onceq:{leases}:processes"): true}
	for i := 0; w.there == "" || w.other == ""; i++ {
		id := fmt.Sprint(i)
		if node := c.NodeOf("{" + w.api.runs.Key(id) + "}"); !needed[node] && (w.victim == nil || w.victim == node) {
			w.victim, w.there = node, id
		} else if needed[node] {
			w.other = id
		}
	}
	return w
}

// One master of three is killed without a replica. The runs on it rest until it is
// back, those on the others go on.
func TestClusterLosesAMaster(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want want
	}{
		{"with persistence", []string{"--appendonly", "yes", "--appendfsync", "always"},
			want{again: []string{"phase planning"}, attempts: 2, crashes: 1}},
		{"without", nil,
			want{again: []string{"phase context", "phase requirements", "phase planning"}, attempts: 2, paidAgain: 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newClustered(t, defaults(), c.args...)
			held, release := w.hold("phase planning", 1)
			w.inside()
			w.submit(w.there)
			w.receive(held)
			w.victim.Kill()
			w.submit(w.other)
			w.awaitEnd(w.other)
			w.judge(w.other, want{attempts: 1})
			time.Sleep(8 * time.Second) // beyond the TTL
			release()
			w.must(w.victim.Start())
			w.awaitEnd(w.there)
			w.judge(w.there, c.want)
			w.asynqRecovers()
		})
	}
}

// A master with a replica that has all: the replica takes over, and the attempt under
// way goes on with its lease.
func TestClusterFailover(t *testing.T) {
	t.Parallel()
	set := defaults()
	set.TTL = 30 * time.Second // longer than a failover takes
	w := newClustered(t, set)
	replica := w.nodes.Replica(w.victim)
	held, release := w.hold("phase planning", 1)
	w.inside()
	w.submit(w.there)
	w.receive(held)
	w.until("the replica has caught up", func() bool {
		return w.victim.Client().Wait(t.Context(), 1, time.Second).Val() == 1
	})
	w.victim.Kill()
	w.until("the replica is promoted", func() bool {
		role, err := replica.Client().Do(t.Context(), "ROLE").Slice()
		return err == nil && len(role) > 0 && role[0] == "master"
	})
	release()
	w.awaitEnd(w.there)
	w.judge(w.there, want{attempts: 1})
}

// One master of three freezes: its connections stay open and nothing answers. Runs on
// the others neither wait for it nor lose their leases, also when it has the index of leases.
func TestClusterMasterFreezes(t *testing.T) {
	for name, index := range map[string]bool{"with the index": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			masterFreezes(t, index)
		})
	}
}

func masterFreezes(t *testing.T, index bool) {
	w := newClustered(t, defaults())
	if index {
		w.victim = w.nodes.NodeOf("onceq:{leases}:processes")
	}
	var there, others []string
	for i := 0; len(there) < 6 || len(others) < 6; i++ {
		id := fmt.Sprint(i)
		if w.nodes.NodeOf("{"+w.api.runs.Key(id)+"}") == w.victim {
			there = append(there, id)
		} else {
			others = append(others, id)
		}
	}
	there, others = there[:6], others[:6]
	held, open := make(chan point, len(there)), make(chan struct{})
	release := sync.OnceFunc(func() { close(open) })
	t.Cleanup(release)
	w.on("phase planning", func(p point) verb {
		if p.N <= len(there) {
			held <- p
			<-open
		}
		return goOn
	})
	w.inside()
	for _, id := range there {
		w.submit(id)
	}
	for range there {
		w.receive(held)
	}
	w.victim.Signal(syscall.SIGSTOP)
	thaw := sync.OnceFunc(func() { w.victim.Signal(syscall.SIGCONT) })
	t.Cleanup(thaw)
	reached, goesOn := w.hold("phase testing", 1)
	for _, id := range others {
		w.submit(id)
	}
	w.receive(reached)
	release()                     // now they save, in vain
	time.Sleep(3 * w.set.TTL / 2) // one of the others lives on heartbeats alone
	goesOn()
	for _, id := range others {
		w.awaitEnd(id)
	}
	thaw()
	for _, id := range others {
		w.judge(id, want{attempts: 1})
	}
	for _, id := range there {
		w.awaitEnd(id)
	}
	w.asynqRecovers()
}
