package idempotent_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/redistest"
)

const goldenFingerprint = "b956bb0cf66de072b6c232d415d73f33"

func TestKey(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{idempotent.Key("orchestrator-run", 42), "orchestrator-run-42"},
		{idempotent.Key("orchestrator-run", "550e8400-e29b"), "orchestrator-run=550e8400-e29b"},
		{idempotent.Key("a", "b-c"), "a=b-c"},
		{idempotent.Key("a-b", "c"), "a-b-c"},
		{idempotent.Key("a", -1), "a=-1"},
		{idempotent.Key("a=b", "c%3D"), "a%3Db-c%253D"},
	} {
		if c.got != c.want {
			t.Errorf("Key = %q, want %q", c.got, c.want)
		}
	}
}

func FuzzKey(f *testing.F) {
	f.Add("a", "b-c", "a-b", "c")
	f.Add("a=", "b", "a", "=b")
	f.Fuzz(func(t *testing.T, k1, i1, k2, i2 string) {
		if (k1 != k2 || i1 != i2) && idempotent.Key(k1, i1) == idempotent.Key(k2, i2) {
			t.Fatalf("Key(%q, %q) == Key(%q, %q)", k1, i1, k2, i2)
		}
	})
}

// Numbers from elsewhere, as from a newer version, print and map to something.
func TestUnknownNumbersHaveNames(t *testing.T) {
	if got := fmt.Sprint(idempotent.State(99), idempotent.State(-1), idempotent.Class(99), idempotent.Class(-1)); got != "state 99 state -1 class 99 class -1" {
		t.Errorf("%s", got)
	}
	if status, _ := idempotent.HTTPStatus(fmt.Errorf("run: %w", idempotent.ErrDuplicate)); status != 409 {
		t.Errorf("a bare ErrDuplicate is %d, want 409", status)
	}
}

func TestImpossibleSettingsDoNotStart(t *testing.T) {
	_, rdb := redistest.Mini(t)
	for want, o := range map[string]idempotent.Option{
		"WithPrefix":                idempotent.WithPrefix("a:b"),
		`WithPrefix: prefix "\xff"`: idempotent.WithPrefix("\xff"),
		`WithPrefix: prefix "ü"`:    idempotent.WithPrefix("ü"),
		`WithPrefix: prefix "a*"`:   idempotent.WithPrefix("a*"),
		"WithKeyFunc: nil":          idempotent.WithKeyFunc(nil),
		"WithOnFailed: nil":         idempotent.WithOnFailed(nil),
		"WithProcess: \"\\xff\"":    idempotent.WithProcess("\xff"),
		"WithTTL: 999ms":            idempotent.WithTTL(999 * time.Millisecond),
		"WithTTL: 2h":               idempotent.WithTTL(2 * time.Hour),
		"WithTTL: -1s":              idempotent.WithTTL(-time.Second),
		"WithGrace: -1ns":           idempotent.WithGrace(-1),
		"WithProgressTimeout":       idempotent.WithProgressTimeout(time.Second),
		"WithRetention: 1m":         idempotent.WithRetention(time.Minute),
		"WithMaxCrashes: 0":         idempotent.WithMaxCrashes(0),
		"WithMaxResult: -1":         idempotent.WithMaxResult(-1),
		"WithRetryBudget: 0":        idempotent.WithRetryBudget(0),
		"WithBackoff: base":         idempotent.WithBackoff(0, time.Second),
		"WithBackoff: limit":        idempotent.WithBackoff(time.Minute, time.Second),
		"WithLogger":                idempotent.WithLogger(nil),
		"WithClassifier":            idempotent.WithClassifier(nil),
		"WithProcess":               idempotent.WithProcess(strings.Repeat("x", 129)),
	} {
		if _, err := idempotent.New(rdb, o); !errors.Is(err, idempotent.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want ErrInvalid naming it", want, err)
		}
	}
	if _, err := idempotent.New(nil); !errors.Is(err, idempotent.ErrInvalid) {
		t.Errorf("New(nil): %v, want ErrInvalid", err)
	}
	var none *redis.Client
	if _, err := idempotent.New(none); !errors.Is(err, idempotent.ErrInvalid) {
		t.Errorf("New of a nil client: %v, want ErrInvalid", err)
	}
	if _, err := idempotent.New(rdb, nil); !errors.Is(err, idempotent.ErrInvalid) {
		t.Errorf("New with a nil option: %v, want ErrInvalid", err)
	}
	g, err := idempotent.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	var nobody *asynq.Client
	for _, c := range []idempotent.Enqueuer{nil, nobody} {
		if _, err := idempotent.NewProducer(g, c); !errors.Is(err, idempotent.ErrInvalid) {
			t.Errorf("NewProducer(g, %#v): %v, want ErrInvalid", c, err)
		}
	}
	if _, err := idempotent.NewProducer(g, enqueuerFunc(nil), idempotent.WithWindow(0)); !errors.Is(err, idempotent.ErrInvalid) {
		t.Errorf("WithWindow(0): %v, want ErrInvalid", err)
	}
}

// L14: a start on a Redis that may evict leases says so, once.
func TestEvictionPolicyIsWarnedOf(t *testing.T) {
	for policy, warnings := range map[string]int{"noeviction": 0, "volatile-lru": 1, "allkeys-random": 1} {
		rdb := redistest.Real(t, "--maxmemory-policy", policy).Client()
		var out bytes.Buffer
		if _, err := idempotent.New(rdb, idempotent.WithLogger(slog.New(slog.NewTextHandler(&out, nil)))); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(out.String(), "may evict leases"); got != warnings {
			t.Errorf("%s: %d warnings, want %d: %s", policy, got, warnings, out.String())
		}
	}
}
