package idempotent

import (
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/nexuscore/onceq/internal/redistest"
)

func newTestRecoverer(t *testing.T) (*Recoverer, func(args ...any) any) {
	t.Helper()
	_, rdb := redistest.Mini(t)
	g, err := New(rdb, WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))))
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewRecoverer(g)
	if err != nil {
		t.Fatal(err)
	}
	return r, func(args ...any) any {
		v, err := rdb.Do(t.Context(), args...).Result()
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return v
	}
}

// L4: what a recoverer saw is old by the time it acts. What happened since stands.
func TestFailByAnOldView(t *testing.T) {
	const key = "onceq:{k}:run"
	for name, c := range map[string]struct {
		since []any
		want  string
	}{
		"nothing":                 {nil, "failed"},
		"another attempt began":   {[]any{"HSET", key, "token", 8}, "running"},
		"its attempt is held":     {[]any{"SET", "onceq:{k}:lock", "o", "PX", 1000}, "running"},
		"it succeeded":            {[]any{"HSET", key, "state", "succeeded"}, "succeeded"},
		"it was queued once more": {[]any{"HSET", key, "state", "queued"}, "queued"},
	} {
		t.Run(name, func(t *testing.T) {
			r, do := newTestRecoverer(t)
			do("HSET", key, "state", "running", "token", 7)
			if c.since != nil {
				do(c.since...)
			}
			o := orphan{key: "k", token: 7, taskType: "x"}
			for range 2 { // a lost reply makes it run twice
				if err := r.fail(t.Context(), o, nil, "why"); err != nil {
					t.Fatal(err)
				}
			}
			r.work.Wait()
			if got := do("HGET", key, "state"); got != c.want {
				t.Errorf("state %v, want %s", got, c.want)
			}
		})
	}
}

// An entry that was written anew since it was found stays as it is.
func TestMoveByAnOldView(t *testing.T) {
	r, do := newTestRecoverer(t)
	do("ZADD", "onceq:{leases}:of:p", 100, "same", 200, "renewed", 100, "gone")
	r.put(t.Context(), []move{
		{entry: entry{process: "p", member: "same", score: "100"}, in: time.Minute},
		{entry: entry{process: "p", member: "renewed", score: "100"}, in: time.Minute},
		{entry: entry{process: "p", member: "gone", score: "100"}, to: nowhere},
		{entry: entry{process: "p", member: "never", score: "100"}, in: time.Minute},
	})
	if got := do("ZRANGE", "onceq:{leases}:of:p", 0, -1); len(got.([]any)) != 1 || got.([]any)[0] != "renewed" {
		t.Errorf("still under p: %v, want renewed alone", got)
	}
	if got := do("ZRANGE", "onceq:{leases}:waiting", 0, -1); len(got.([]any)) != 1 || got.([]any)[0] != "same" {
		t.Errorf("waiting: %v, want same alone", got)
	}
}

// A claim keeps other recoverers away for its time and no longer.
func TestOneClaimsAnOrphan(t *testing.T) {
	r, do := newTestRecoverer(t)
	do("HSET", "onceq:{k}:run", "state", "running", "token", 7)
	judge := func(caller string, ms int) string {
		v, err := judgeScript.Run(t.Context(), r.g.rdb, []string{"onceq:{k}:lock", "onceq:{k}:run"}, "", caller, ms, 1000).Result()
		if err != nil {
			t.Fatal(err)
		}
		return v.([]any)[0].(string)
	}
	for _, step := range []struct {
		caller string
		ms     int
		want   string
	}{{"a", 60_000, "running"}, {"b", 60_000, "claimed"}, {"a", 60_000, "running"}, {"b", 0, "running"}, {"a", 60_000, "claimed"}} {
		if got := judge(step.caller, step.ms); got != step.want {
			t.Errorf("%s asks: %s, want %s", step.caller, got, step.want)
		}
	}
}
