package checkpoint

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/internal/logtest"
	"github.com/nexuscore/onceq/internal/redistest"
)

// onEach returns keys of runs by their server, as node says of a run's lock.
func onEach(node func(lock string) string) map[string][]string {
	runs := map[string][]string{}
	for i := range 100 {
		key := fmt.Sprint("run", i)
		addr := node("onceq:{" + key + "}:lock")
		runs[addr] = append(runs[addr], key)
	}
	return runs
}

// A server in trouble is left alone by itself: runs on another are saved meanwhile.
func TestServersOfARingFailByThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := map[string]*miniredis.Miniredis{}
		for _, addr := range []string{"127.0.0.1:1", "127.0.0.1:2"} {
			servers[addr], _ = redistest.Bubble(t)
		}
		ring := redis.NewRing(&redis.RingOptions{
			Addrs:    map[string]string{"a": "127.0.0.1:1", "b": "127.0.0.1:2"},
			Protocol: 2, DisableIdentity: true, HeartbeatFrequency: 24 * time.Hour,
			Dialer: func(_ context.Context, _, addr string) (net.Conn, error) { return servers[addr].Dial() },
		})
		defer func() { _ = ring.Close() }()
		runs := onEach(func(lock string) string {
			shard, err := ring.GetShardClientForKey(lock)
			if err != nil {
				t.Fatal(err)
			}
			return shard.Options().Addr
		})
		var l logtest.Log
		store := newStore(t, ring, WithLogger(l.Logger()))
		saved := func(addr string, want int64) {
			t.Helper()
			before := store.Stats().Saves
			key := runs[addr][0]
			runs[addr] = runs[addr][1:]
			var tr trail
			if _, err := Run(ContextWithKey(t.Context(), key), store, tr.phases(strings.Fields("1 2 3 4")...), state{}); err != nil {
				t.Fatal(err)
			}
			if got := store.Stats().Saves - before; got != want {
				t.Errorf("run on %s: %d phases saved, want %d", addr, got, want)
			}
		}
		servers["127.0.0.1:1"].SetError("LOADING")
		saved("127.0.0.1:1", 0)
		saved("127.0.0.1:2", 4)
		saved("127.0.0.1:1", 0)
		servers["127.0.0.1:1"].SetError("")
		saved("127.0.0.1:1", 0) // it is left alone for a minute
		time.Sleep(time.Minute + time.Second)
		saved("127.0.0.1:1", 4)
		lines := l.String()
		for _, want := range []string{"pass through", "stored again"} {
			if n := strings.Count(lines, want); n != 1 {
				t.Errorf("%d lines say %q, want 1:\n%s", n, want, lines)
			}
		}
		if l.Count(slog.LevelWarn) != 1 || strings.Count(lines, "server=127.0.0.1:1") != 2 {
			t.Errorf("want the server that was in trouble named twice:\n%s", lines)
		}
		if n := store.servers.Len(); n != 2 {
			t.Errorf("%d servers are kept, want 2", n)
		}
	})
}

// The same with a master of a real cluster that dies.
func TestAMasterThatIsDeadLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t)
	rdb := c.Client()
	runs := onEach(func(lock string) string { return c.NodeOf(lock).Addr })
	var l logtest.Log
	store := newStore(t, rdb, WithLogger(l.Logger()))
	dead := c.Nodes[0]
	var tr trail
	list := tr.phases("1", "2", "3", "4", "5", "6", "7")
	a, b := begin(t, rdb, runs[dead.Addr][0]), begin(t, rdb, runs[c.Nodes[1].Addr][0])
	dead.Kill()
	for i, run := range []attempt{a, a, b} {
		if _, err := Run(run.ctx, store, list, state{}); err != nil {
			t.Errorf("run %d: %v", i, err)
		}
	}
	if s := store.Stats(); s.Saves != 7 || s.PassThroughs < 14 {
		t.Errorf("%+v, want one run saved", s)
	}
	if out := l.String(); l.Count(slog.LevelWarn) != 1 || strings.Count(out, "server="+dead.Addr) != 1 {
		t.Errorf("want one line, which names %s:\n%s", dead.Addr, out)
	}
}
