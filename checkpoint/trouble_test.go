package checkpoint

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/internal/logtest"
	"github.com/nexuscore/onceq/internal/redistest"
)

// C13
func TestErrorRepliesPassThrough(t *testing.T) {
	t.Parallel()
	for _, reply := range []string{
		"OOM command not allowed when used memory > 'maxmemory'.",
		"READONLY You can't write against a read only replica.",
		"CROSSSLOT Keys in request don't hash to the same slot",
		"MISCONF Redis is configured to save RDB snapshots",
		"NOPERM this user has no permissions",
		"LOADING Redis is loading the dataset in memory",
	} {
		m, rdb := redistest.Mini(t)
		var l logtest.Log
		store := newStore(t, rdb, WithLogger(l.Logger()))
		var tr trail
		list := tr.phases("1", "2", "3", "4")
		list[1].Run = func(context.Context, *state) error { m.SetError(reply); return nil }
		list[2].Run = func(ctx context.Context, _ *state) error {
			got, err := Step(ctx, "s", func(context.Context) (int, error) { return 7, nil })
			if got != 7 {
				t.Errorf("step = %d", got)
			}
			return err
		}
		a := begin(t, rdb, "r")
		_, err := Run(a.ctx, store, list, state{})
		m.SetError("")
		if err != nil || tr.String() != "1 4" {
			t.Errorf("%s: ran %q, %v; want the run to complete", reply, &tr, err)
		}
		if got := l.Count(slog.LevelWarn, slog.LevelError); got != 1 {
			t.Errorf("%s: %d lines, want one\n%s", reply, got, &l)
		}
		if s := store.Stats(); s.PassThroughs != 4 || s.Saves != 1 || s.Lost != 0 {
			t.Errorf("%s: %+v, want 1 save and 4 passed through", reply, s)
		}
		if got := rdb.Get(t.Context(), ckpt).Val(); !strings.Contains(got, `"last_done":"1"`) {
			t.Errorf("%s: snapshot %.100q, want that of phase 1", reply, got)
		}
	}
}

func TestRealOutOfMemoryAndReadOnly(t *testing.T) {
	t.Parallel()
	srv := redistest.Real(t)
	rdb := srv.Client()
	for _, c := range []struct{ what, on, off string }{
		{"OOM", "maxmemory 1", "maxmemory 0"},
		{"READONLY", "replicaof 127.0.0.1 1", "replicaof no one"},
	} {
		store := newStore(t, rdb)
		var tr trail
		list := tr.phases("1", "2", "3")
		list[1].Run = func(ctx context.Context, _ *state) error { return configure(ctx, rdb, c.on) }
		a := begin(t, rdb, c.what)
		_, err := Run(a.ctx, store, list, state{})
		if err := configure(t.Context(), rdb, c.off); err != nil {
			t.Fatal(err)
		}
		if err != nil || tr.String() != "1 3" || store.Stats().PassThroughs != 2 {
			t.Errorf("%s: ran %q, %v, %+v; want the run to complete", c.what, &tr, err, store.Stats())
		}
	}
}

func configure(ctx context.Context, rdb *redis.Client, line string) error {
	f := strings.Fields(line)
	if f[0] == "replicaof" {
		return rdb.ReplicaOf(ctx, f[1], f[2]).Err()
	}
	return rdb.ConfigSet(ctx, f[0], f[1]).Err()
}

// An outage that outlasts the breaker's pause: each call is bounded, Redis is
// left alone, two lines are logged in all, and saving goes on by itself.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, rdb := redistest.Bubble(t)
		down, first := false, true
		rdb = redis.NewClient(&redis.Options{
			Addr: "127.0.0.1:6379", Protocol: 2, DisableIdentity: true, MaxRetries: -1, ConnMaxIdleTime: time.Millisecond,
			Dialer: func(context.Context, string, string) (net.Conn, error) {
				if down {
					return nil, errors.New("dial: down")
				}
				return m.Dial()
			},
		})
		defer func() { _ = rdb.Close() }()
		var l logtest.Log
		store := newStore(t, rdb, WithLogger(l.Logger()))
		ctx := ContextWithKey(t.Context(), "r")
		var tr trail
		names := strings.Fields("1 2 3 4 5 6 7 8 9")
		list := tr.phases(names...)
		for i, p := range list {
			list[i].Run = func(ctx context.Context, s *state) error {
				time.Sleep(10 * time.Second) // idle connections are closed meanwhile
				down = first && i >= 1 && i < 6
				return p.Run(ctx, s)
			}
		}
		start := time.Now()
		if _, err := Run(ctx, store, failing(list, "9"), state{}); !errors.Is(err, errBoom) {
			t.Fatal(err)
		}
		if d := time.Since(start); d > 100*time.Second {
			t.Errorf("the run took %v, its work 90s: calls were not bounded", d)
		}
		if s := store.Stats(); s.PassThroughs != 7 {
			// 2 to 6 while it is down, 7 and 8 while the breaker is open
			t.Errorf("%+v, want 7 passed through", s)
		}
		time.Sleep(time.Minute)
		first = false
		if _, err := Run(ctx, store, failing(list, "9"), state{}); !errors.Is(err, errBoom) {
			t.Fatal(err)
		}
		if got := l.Count(slog.LevelWarn); got != 3 { // two failed phases, one outage
			t.Errorf("%d WARN lines, want 3\n%s", got, &l)
		}
		if out := l.String(); strings.Count(out, "pass through") != 1 || strings.Count(out, "stored again") != 1 {
			t.Errorf("want one line for each transition:\n%s", out)
		}
		if s := store.Stats(); s.Saves != 1+7 {
			t.Errorf("%+v, want 8 saves", s)
		}
	})
}

// A server that accepts and never answers.
func TestASilentRedisIsBounded(t *testing.T) {
	t.Parallel()
	m, rdb := redistest.Mini(t)
	store := newStore(t, rdb, WithTimeout(20*time.Millisecond))
	a := begin(t, rdb, "r")
	var tr trail
	list := tr.phases("1", "2")
	list[0].Run = func(context.Context, *state) error { m.Lock(); return nil }
	start := time.Now()
	_, err := Run(a.ctx, store, list, state{})
	d := time.Since(start)
	m.Unlock()
	if err != nil || tr.String() != "2" || store.Stats().PassThroughs != 2 || d > 2*time.Second {
		t.Errorf("ran %q, %v in %v, %+v; want it to pass through in time", &tr, err, d, store.Stats())
	}
	if err := rdb.Ping(t.Context()).Err(); err != nil { // the late commands are over
		t.Error(err)
	}
}

// An outage that outlasts the lease ends the attempt.
func TestAnOutageLongerThanTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, rdb := redistest.Bubble(t)
		store := newStore(t, rdb)
		a := begin(t, rdb, "r")
		var tr trail
		list := tr.phases("1", "2", "3", "4")
		for i, p := range list {
			list[i].Run = func(ctx context.Context, s *state) error {
				if i == 0 {
					m.SetError("LOADING")
				}
				time.Sleep(10 * time.Second)
				return p.Run(ctx, s)
			}
		}
		_, err := Run(a.ctx, store, list, state{})
		m.SetError("")
		if !errors.Is(err, ErrLeaseLost) || tr.String() != "1 2 3" {
			t.Errorf("ran %q, %v; want ErrLeaseLost when 27 s are over", &tr, err)
		}
		if got := keys(t, rdb); strings.Contains(got, "ckpt") {
			t.Errorf("keys %q", got)
		}
		a.End()
	})
}

// C4: the save was applied, its reply was lost.
func TestALostReply(t *testing.T) {
	t.Parallel()
	m, _ := redistest.Mini(t)
	cut := make(chan struct{}, 1)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr(), DisableIdentity: true,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			return &deaf{c, cut}, err
		}})
	t.Cleanup(func() { _ = rdb.Close() })
	store := newStore(t, rdb)
	var tr trail
	warm := begin(t, rdb, "warm")
	_, _ = Run(warm.ctx, store, []Phase[state]{{Name: "1", Run: tr.steps(1, -1)}}, state{})
	list := tr.phases("1", "2")
	list[0].Run = func(ctx context.Context, s *state) error {
		cut <- struct{}{}
		err := tr.steps(1, -1)(ctx, s)
		cut <- struct{}{}
		return err
	}
	a := begin(t, rdb, "r")
	_, err := Run(a.ctx, store, list, state{})
	if err != nil || len(cut) != 0 {
		t.Fatalf("%v, %d replies still to lose; want a yes both times", err, len(cut))
	}
	if s := store.Stats(); s.Saves != 3 || s.Steps != 2 || s.PassThroughs != 0 || s.Lost != 0 {
		t.Errorf("%+v, want every save and step a yes", s)
	}
}

// deaf loses a reply, and the connection with it, for each token in cut.
type deaf struct {
	net.Conn
	cut chan struct{}
}

func (d *deaf) Read(p []byte) (int, error) {
	n, err := d.Conn.Read(p)
	select {
	case <-d.cut:
		_ = d.Conn.Close()
		return 0, errors.New("reply lost")
	default:
		return n, err
	}
}
