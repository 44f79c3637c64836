package llmcache

import (
	"context"
	"errors"
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
	"github.com/nexuscore/onceq/internal/runkey"
)

// onEach returns keys of runs by their server, as node says of a run's ledger.
func onEach(node func(book string) string) map[string][]string {
	runs := map[string][]string{}
	for i := range 100 {
		key := fmt.Sprint("run", i)
		addr := node(bookKey(runkey.Base("onceq", key)))
		runs[addr] = append(runs[addr], key)
	}
	return runs
}

// A server in trouble is left alone by itself: answers on another are replayed, and
// ledgers there read, meanwhile.
func TestServersOfARingFailByThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := map[string]*miniredis.Miniredis{}
		for _, addr := range []string{"127.0.0.1:1", "127.0.0.1:2"} {
			nodes[addr], _ = redistest.Bubble(t)
		}
		ring := redis.NewRing(&redis.RingOptions{
			Addrs:    map[string]string{"a": "127.0.0.1:1", "b": "127.0.0.1:2"},
			Protocol: 2, DisableIdentity: true, HeartbeatFrequency: 24 * time.Hour,
			Dialer: func(_ context.Context, _, addr string) (net.Conn, error) { return nodes[addr].Dial() },
		})
		defer func() { _ = ring.Close() }()
		on := func(key string) string {
			shard, err := ring.GetShardClientForKey(key)
			if err != nil {
				t.Fatal(err)
			}
			return shard.Options().Addr
		}
		runs := onEach(on)
		// The total is where the trouble is, so that every run has something to write there.
		bad := on(totalKey("onceq"))
		good := map[string]string{"127.0.0.1:1": "127.0.0.1:2", "127.0.0.1:2": "127.0.0.1:1"}[bad]
		var log logtest.Log
		c := open(t, ring, WithLogger(log.Logger()))
		var m model
		// paid makes four calls of a run, and does so again in its next attempt.
		paid := func(addr string, want int64) {
			t.Helper()
			before := m.calls.Load()
			key := runs[addr][0]
			runs[addr] = runs[addr][1:]
			for range 2 {
				ctx, l := attempt(t, t.Context(), key, "p")
				for i := range 4 {
					do(t, ctx, c, &m, fmt.Sprint(i))
				}
				l.End()
			}
			if got := m.calls.Load() - before; got != want {
				t.Errorf("run on %s: %d calls paid, want %d", addr, got, want)
			}
		}
		nodes[bad].SetError("LOADING")
		paid(bad, 8)
		last := runs[good][0]
		paid(good, 4)
		if a, err := c.Ledger().Of(t.Context(), last); err != nil || a.Paid.Calls != 4 || a.Saved.Calls != 4 {
			t.Errorf("ledger of a run on %s: %+v, %v; want 4 calls paid and 4 saved", good, a, err)
		}
		if _, err := c.Ledger().Total(t.Context()); !errors.Is(err, ErrUnavailable) {
			t.Errorf("total: %v, want ErrUnavailable", err)
		}
		nodes[bad].SetError("")
		paid(bad, 8) // it is left alone for a minute
		time.Sleep(time.Minute + time.Second)
		paid(bad, 4)
		if out := log.String(); log.Count(slog.LevelWarn) != 1 ||
			strings.Count(out, "breaker changed") != strings.Count(out, "server="+bad) {
			t.Errorf("want one warning, and each change with the server that was in trouble:\n%s", out)
		}
		if n := c.servers.known.Len(); n != 2 {
			t.Errorf("%d servers are kept, want 2", n)
		}
		if err := c.Flush(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// The same with a master of a real cluster that dies.
func TestAMasterThatIsDeadLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	rdb := cluster.Client()
	runs := onEach(func(book string) string { return cluster.NodeOf(book).Addr })
	var log logtest.Log
	c := open(t, rdb, WithLogger(log.Logger()), WithTimeout(100*time.Millisecond))
	dead := cluster.Nodes[0]
	onDead, onOther := runs[dead.Addr][0], runs[cluster.Nodes[1].Addr][0]
	warm, _ := attempt(t, t.Context(), onOther, "p") // the client learns the slots
	var m model
	do(t, warm, c, &m)
	dead.Kill()
	ctx, _ := attempt(t, t.Context(), onDead, "p")
	for i := range 4 {
		do(t, ctx, c, &m, fmt.Sprint(i))
	}
	for range 2 {
		ctx, _ = attempt(t, t.Context(), onOther, "p")
		for i := range 4 {
			do(t, ctx, c, &m, fmt.Sprint(i))
		}
	}
	if n, s := m.calls.Load(), c.Stats(); n != 9 || s.Hits != 4 || s.Passed != 4 {
		t.Errorf("%d calls, %+v; want 4 passed on the dead master, and 4 replayed on another", n, s)
	}
	if out := log.String(); log.Count(slog.LevelWarn) != 1 || strings.Count(out, "server="+dead.Addr) != 1 {
		t.Errorf("want one line, which names %s:\n%s", dead.Addr, out)
	}
}

// stuck is a store that does not answer for the total.
type stuck struct{ Store }

func (s stuck) Count(ctx context.Context, key, id string, add Account, ttl time.Duration) error {
	if key == totalKey("onceq") {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.Store.Count(ctx, key, id, add, ttl)
}

// Who reads a ledger does not wait for a server that hangs and has others.
func TestALedgerIsReadWhileAnotherServerHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, nil, WithStore(stuck{NewMemoryStore()}))
		c.servers.name = func(key string) string {
			if key == totalKey("onceq") {
				return "hangs"
			}
			return "that of " + key
		}
		var m model
		pay := func(run string) {
			ctx, l := attempt(t, t.Context(), run, "p")
			defer l.End()
			do(t, With(ctx, Scope(SharedScope), Refresh()), c, &m)
		}
		pay("run")
		flushed := make(chan error)
		go func() { flushed <- c.Flush(t.Context()) }()
		synctest.Wait()
		begin := time.Now()
		a, err := c.Ledger().Of(t.Context(), "run")
		if took := time.Since(begin); err != nil || a.Paid.Calls != 1 || took != 0 {
			t.Errorf("%d calls paid, %v, after %v; want 1 at once", a.Paid.Calls, err, took)
		}
		if err := <-flushed; !errors.Is(err, ErrUnavailable) {
			t.Errorf("Flush: %v, want ErrUnavailable", err)
		}
		// What comes while a flush hangs is written all the same.
		pay("before")
		time.Sleep(tallyRetry + 100*time.Millisecond)
		pay("meanwhile")
		time.Sleep(2 * tallyRetry)
		for _, run := range []string{"before", "meanwhile"} {
			sums, err := c.store.Sums(t.Context(), bookKey(runkey.Base("onceq", run)))
			if err != nil || sums.Paid.Calls != 1 {
				t.Errorf("%s: %d calls in the store, %v; want 1 without anybody asking", run, sums.Paid.Calls, err)
			}
		}
	})
}
