package faultproxy_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/internal/faultproxy"
	"github.com/nexuscore/onceq/internal/redistest"
)

func TestMain(m *testing.M) {
	redis.SetLogger(noLog{})
	redistest.Main(m)
}

type noLog struct{}

func (noLog) Printf(context.Context, string, ...any) {}

func start(t *testing.T) (direct, through *redis.Client, p *faultproxy.Proxy) {
	t.Helper()
	m, direct := redistest.Mini(t)
	p, err := faultproxy.New(m.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	through = redis.NewClient(&redis.Options{Addr: p.Addr, MaxRetries: -1, DisableIdentity: true})
	t.Cleanup(func() { _ = through.Close() })
	return direct, through, p
}

func TestCommands(t *testing.T) {
	for _, c := range []struct {
		verdict faultproxy.Verdict
		fails   bool
		value   string
	}{
		{faultproxy.Pass, false, "v"},
		{faultproxy.Cut, true, ""},
		{faultproxy.LoseReply, true, "v"},
	} {
		direct, through, p := start(t)
		p.Judge(func(args []string) faultproxy.Verdict {
			if strings.EqualFold(args[0], "set") && args[2] == "v" {
				return c.verdict
			}
			return faultproxy.Pass
		})
		if err := through.Set(t.Context(), "k", "v", 0).Err(); (err != nil) != c.fails {
			t.Errorf("%v: SET: %v", c.verdict, err)
		}
		if got := direct.Get(t.Context(), "k").Val(); got != c.value {
			t.Errorf("%v: %q is stored, want %q", c.verdict, got, c.value)
		}
		if err := through.Set(t.Context(), "k", "w", 0).Err(); err != nil {
			t.Errorf("%v: the next command: %v", c.verdict, err)
		}
	}
}

func TestSilence(t *testing.T) {
	_, through, p := start(t)
	if err := through.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	p.Silence()
	done := make(chan error, 1)
	go func() { done <- through.Ping(context.Background()).Err() }()
	select {
	case err := <-done:
		t.Fatalf("an answer through a silent link: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	p.Heal()
	if err := <-done; err != nil {
		t.Fatalf("what waited did not go through: %v", err)
	}
}

func TestDownAndDelay(t *testing.T) {
	_, through, p := start(t)
	p.Down()
	if err := through.Ping(t.Context()).Err(); err == nil {
		t.Fatal("an answer through a link that is down")
	}
	p.Heal()
	p.Delay(30 * time.Millisecond)
	began := time.Now()
	if err := through.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(began); d < 30*time.Millisecond {
		t.Errorf("answered after %v", d)
	}
}
