package redistest

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Masters is how many masters a Cluster has.
const Masters = 3

const slots = 16384

// ClusterServers are the nodes of a Redis Cluster of the test's own: three masters
// without replicas.
type ClusterServers struct {
	Nodes []*Server

	t testing.TB
}

// Cluster starts a Redis Cluster of redis-server processes on free ports, with
// further arguments for each, and waits until all nodes agree on it. The test is
// skipped, loudly, where there is no redis-server.
func Cluster(t testing.TB, args ...string) *ClusterServers {
	t.Helper()
	c := &ClusterServers{t: t}
	var buses []string
	for range Masters {
		n, bus := clusterNode(t, args...)
		buses = append(buses, bus)
		c.Nodes = append(c.Nodes, n)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for i, n := range c.Nodes {
		rdb := n.Client()
		do := func(args ...any) {
			if err := rdb.Do(ctx, args...).Err(); err != nil {
				t.Fatalf("%v: %v", args[:2], err)
			}
		}
		do("CLUSTER", "SET-CONFIG-EPOCH", i+1)
		if err := rdb.ClusterAddSlotsRange(ctx, i*slots/Masters, (i+1)*slots/Masters-1).Err(); err != nil {
			t.Fatalf("slots of node %d: %v", i, err)
		}
		host, port, _ := net.SplitHostPort(c.Nodes[0].Addr)
		if i > 0 {
			do("CLUSTER", "MEET", host, port, buses[0])
		}
	}
	for _, n := range c.Nodes {
		rdb := n.Client()
		for !agreed(rdb.ClusterInfo(ctx).Val()) {
			if ctx.Err() != nil {
				t.Fatalf("no cluster: %s", rdb.ClusterInfo(context.Background()).Val())
			}
			time.Sleep(20 * time.Millisecond) // a cluster that forms sends no event
		}
	}
	return c
}

func agreed(info string) bool {
	return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_slots_ok:16384")
}

// Addrs are the addresses of all nodes.
func (c *ClusterServers) Addrs() []string {
	addrs := make([]string, len(c.Nodes))
	for i, n := range c.Nodes {
		addrs[i] = n.Addr
	}
	return addrs
}

// Client returns a client on the cluster that is closed with the test.
func (c *ClusterServers) Client() *redis.ClusterClient {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs(), DisableIdentity: true})
	c.t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// NodeOf is the node that has the key's slot.
func (c *ClusterServers) NodeOf(key string) *Server {
	c.t.Helper()
	slot := c.Nodes[0].Client().ClusterKeySlot(context.Background(), key).Val()
	for i := range c.Nodes {
		if int(slot) < (i+1)*slots/Masters {
			return c.Nodes[i]
		}
	}
	c.t.Fatalf("no node has slot %d of %q", slot, key)
	return nil
}

// Replica adds a node that replicates the given master, and returns when it has all
// that the master has.
func (c *ClusterServers) Replica(master *Server, args ...string) *Server {
	c.t.Helper()
	n, bus := clusterNode(c.t, args...)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	rdb := n.Client()
	host, port, _ := net.SplitHostPort(n.Addr)
	if err := master.Client().Do(ctx, "CLUSTER", "MEET", host, port, bus).Err(); err != nil {
		c.t.Fatalf("CLUSTER MEET: %v", err)
	}
	id := master.Client().ClusterMyID(ctx).Val()
	wait := func(ok func() bool) {
		for !ok() {
			if ctx.Err() != nil {
				c.t.Fatalf("no replica: %s", rdb.Info(context.Background(), "replication").Val())
			}
			time.Sleep(50 * time.Millisecond) // a node that joins sends no event
		}
	}
	wait(func() bool { return rdb.ClusterReplicate(ctx, id).Err() == nil }) // refused until it has heard of that master
	wait(func() bool { return strings.Contains(rdb.Info(ctx, "replication").Val(), "master_link_status:up") })
	return n
}

// clusterNode starts a node of no cluster yet, and names its bus port.
func clusterNode(t testing.TB, args ...string) (*Server, string) {
	t.Helper()
	addr, err := freeAddr()
	if err != nil {
		t.Fatal(err)
	}
	_, bus, _ := net.SplitHostPort(addr) // the default, port + 10000, may be no port
	return Real(t, append([]string{
		"--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-node-timeout", "2000",
		"--cluster-require-full-coverage", "no",
	}, args...)...), bus
}
