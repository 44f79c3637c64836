package checkpoint

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/internal/setting"
)

func TestInvalidArguments(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t)
	var tr trail
	ok := tr.phases("1")
	for _, c := range []struct {
		what  string
		run   func() error
		wants string
	}{
		{"no phases", func() error { _, err := Run(t.Context(), store, nil, state{}); return err }, "phases: 0 given, 1 to 1000"},
		{"empty name", func() error { _, err := Run(t.Context(), store, tr.phases("a", ""), state{}); return err }, "phases[1]: the name is empty"},
		{"long name", func() error {
			_, err := Run(t.Context(), store, tr.phases(strings.Repeat("x", 257)), state{})
			return err
		}, "257 bytes, at most 256"},
		{"not UTF-8", func() error { _, err := Run(t.Context(), store, tr.phases("\xff"), state{}); return err }, "UTF-8"},
		{"same name", func() error { _, err := Run(t.Context(), store, tr.phases("a", "b", "a"), state{}); return err }, `phases[2]: the name "a" is that of phases[0]`},
		{"nil Run", func() error { _, err := Run(t.Context(), store, []Phase[state]{{Name: "a"}}, state{}); return err }, `phases[0] "a": Run is nil`},
		{"nil store", func() error { _, err := Run(t.Context(), nil, ok, state{}); return err }, "store is nil"},
		{"empty key", func() error { _, err := Run(ContextWithKey(t.Context(), ""), store, ok, state{}); return err }, "ContextWithKey: run key is empty"},
		{"nil option", func() error { _, err := Run(t.Context(), store, ok, state{}, nil); return err }, "option 0 is nil"},
		{"breaker for Run", func() error {
			_, err := Run(t.Context(), store, ok, state{}, WithBreaker(1, time.Second))
			return err
		}, "NewRedisStore"},
		{"typed nil store", func() error { _, err := Run(t.Context(), (*RedisStore)(nil), ok, state{}); return err }, "store is nil"},
		{"nil client", func() error { _, err := NewRedisStore(nil); return err }, "client is nil"},
		{"typed nil client", func() error { _, err := NewRedisStore((*redis.Client)(nil)); return err }, "client is nil"},
		{"nil option of a store", func() error { _, err := NewRedisStore(rdb, WithStrict(), nil); return err }, "option 1 is nil"},
		{"nil sealer", func() error { _, err := NewRedisStore(rdb, WithSealer(nil)); return err }, "WithSealer"},
		{"nil sealer over another", func() error {
			_, err := Run(t.Context(), newStore(t, rdb, WithSealer(sealer(t, "k"))), ok, state{}, WithSealer(nil))
			return err
		}, "WithSealer"},
		{"typed nil sealer", func() error { _, err := NewRedisStore(rdb, WithSealer((*noSealer)(nil))); return err }, "WithSealer"},
		{"typed nil codec", func() error { _, err := NewRedisStore(rdb, WithCodec((*jsonCodec)(nil))); return err }, "WithCodec"},
		{"ttl", func() error { _, err := NewRedisStore(rdb, WithTTL(0)); return err }, "WithTTL: 0s, at least 1ms"},
		{"ttl under 1 ms", func() error { _, err := NewRedisStore(rdb, WithTTL(time.Microsecond)); return err }, "1ms"},
		{"timeout", func() error { _, err := NewRedisStore(rdb, WithTimeout(-1)); return err }, "WithTimeout"},
		{"size", func() error { _, err := NewRedisStore(rdb, WithMaxSize(0)); return err }, "WithMaxSize"},
		{"version", func() error { _, err := NewRedisStore(rdb, WithVersion(0)); return err }, "WithVersion: 0"},
		{"prefix", func() error { _, err := NewRedisStore(rdb, WithPrefix("a:b")); return err }, "WithPrefix"},
		{"logger", func() error { _, err := NewRedisStore(rdb, WithLogger(nil)); return err }, "WithLogger"},
		{"codec", func() error { _, err := NewRedisStore(rdb, WithCodec(nil)); return err }, "WithCodec"},
		{"codec's name", func() error { _, err := NewRedisStore(rdb, WithCodec(misnamed{JSON})); return err }, "WithCodec: its name"},
		{"fingerprint", func() error {
			_, err := Run(t.Context(), store, ok, state{}, WithFingerprint("\xd4\x1d"))
			return err
		}, "hex.EncodeToString"},
		{"observer", func() error { _, err := NewRedisStore(rdb, WithObserver(nil)); return err }, "WithObserver"},
		{"migration", func() error { _, err := NewRedisStore(rdb, WithMigration()); return err }, "WithMigration"},
		{"breaker", func() error { _, err := NewRedisStore(rdb, WithBreaker(0, time.Second)); return err }, "WithBreaker"},
		{"aes key", func() error { _, err := NewAESGCM([]byte("short")); return err }, "5 bytes, 16, 24 or 32"},
	} {
		err := c.run()
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.wants) {
			t.Errorf("%s: %v, want ErrInvalid with %q", c.what, err, c.wants)
		}
	}
	if tr.String() != "" {
		t.Errorf("phases %q ran", &tr)
	}
}

// One value for all packages: a host tests for it once, and package idempotent does not
// retry it.
func TestErrInvalidIsTheLibrarys(t *testing.T) {
	if ErrInvalid != setting.ErrInvalid {
		t.Errorf("ErrInvalid is %v, want that of package setting", ErrInvalid)
	}
}

type misnamed struct{ Codec }

func (misnamed) Name() string { return "gob\xff" }

// noSealer is what a constructor of a host's left behind beside an error.
type noSealer struct{ Sealer }

// What Run refuses in every attempt is known at start.
func TestValidate(t *testing.T) {
	t.Parallel()
	_, store := mini(t, WithSealer(sealer(t, "k")))
	var tr trail
	ok := tr.phases("1", "2")
	for what, got := range map[string]error{
		"phases": Validate(store, tr.phases("1", "1")), "no phases": Validate[state](store, nil),
		"no Run": Validate(store, []Phase[state]{{Name: "1"}}), "store": Validate(nil, ok),
		"WithTTL": Validate(store, ok, WithTTL(0)), "WithBreaker": Validate(store, ok, WithBreaker(1, time.Second)),
		"nil option": Validate(store, ok, nil), "WithMigration": Validate(NewMemoryStore(), ok, WithMigration()),
	} {
		if !errors.Is(got, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, got)
		}
	}
	if err := Validate(store, ok, WithMigration(), WithTTL(time.Hour)); err != nil {
		t.Errorf("options that go with the store's: %v", err)
	}
	if tr.String() != "" {
		t.Errorf("phases %q ran", &tr)
	}
}

func TestRunInsideRun(t *testing.T) {
	t.Parallel()
	_, store := mini(t)
	ctx := ContextWithKey(t.Context(), "r")
	var inner error
	_, err := Run(ctx, store, []Phase[state]{{Name: "outer", Run: func(ctx context.Context, s *state) error {
		var tr trail
		_, inner = Run(ctx, store, tr.phases("x"), *s)
		if _, err := Run(ContextWithKey(ctx, "another"), store, tr.phases("x"), *s); err != nil {
			t.Errorf("another run inside: %v, want nil", err)
		}
		return nil
	}}}, state{})
	if err != nil || !errors.Is(inner, ErrInvalid) || !strings.Contains(inner.Error(), `"outer"`) {
		t.Errorf("outer %v, inner %v; want nil and ErrInvalid naming the outer phase", err, inner)
	}
}
