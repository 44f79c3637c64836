package checkpointtest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/checkpoint"
	"github.com/nexuscore/onceq/checkpoint/checkpointtest"
	"github.com/nexuscore/onceq/internal/redistest"
	"github.com/nexuscore/onceq/internal/runkey"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func onRedis(t *testing.T, rdb redis.UniversalClient) checkpointtest.Fixture {
	t.Helper()
	store, err := checkpoint.NewRedisStore(rdb)
	if err != nil {
		t.Fatal(err)
	}
	return checkpointtest.Fixture{Store: store, Acquire: func(t *testing.T, run checkpoint.Ref) {
		if err := rdb.Set(t.Context(), runkey.Lock(run.Base), run.Owner, run.LeaseTTL).Err(); err != nil {
			t.Fatal(err)
		}
	}}
}

func TestMemoryStore(t *testing.T) {
	checkpointtest.TestStore(t, func(*testing.T) checkpointtest.Fixture {
		return checkpointtest.Fixture{Store: checkpoint.NewMemoryStore()}
	})
}

func TestRedisStoreOnMiniredis(t *testing.T) {
	checkpointtest.TestStore(t, func(t *testing.T) checkpointtest.Fixture {
		m, rdb := redistest.Mini(t)
		f := onRedis(t, rdb)
		m.ClockTTL(false)
		f.Wait = m.FastForward
		return f
	})
}

func TestRedisStoreOnRedis(t *testing.T) {
	srv := redistest.Real(t)
	checkpointtest.TestStore(t, func(t *testing.T) checkpointtest.Fixture {
		rdb := srv.Client()
		if err := rdb.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		return onRedis(t, rdb)
	})
}

// The checks of expiry, on the virtual clock of a bubble.
func TestMemoryStoreExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := checkpoint.NewMemoryStore()
		run := checkpoint.Ref{Base: "test:{r}", TTL: 10 * time.Second}
		if err := s.Save(t.Context(), run, "1", []byte("x")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Second)
		if err := s.SaveStep(t.Context(), run, "2", "b", "s", nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(9 * time.Second)
		if _, found, _ := s.Load(t.Context(), run); !found {
			t.Error("not found before its TTL: the step did not renew it")
		}
		time.Sleep(time.Second)
		if _, found, _ := s.Load(t.Context(), run); found {
			t.Error("found after its TTL")
		}
	})
}
