package checkpoint

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/internal/redistest"
)

// servers runs a benchmark on miniredis and on Redis.
func servers(b *testing.B, bench func(*testing.B, redis.UniversalClient)) {
	b.Run("miniredis", func(b *testing.B) {
		_, rdb := redistest.Mini(b)
		bench(b, rdb)
	})
	b.Run("redis", func(b *testing.B) { bench(b, redistest.Real(b).Client()) })
}

// doc is a state of 2 KB.
type doc struct {
	Goal     string
	Sections []string
	Scores   map[string]float64
}

func newDoc() doc {
	return doc{"a plan", []string{strings.Repeat("lorem ", 150), strings.Repeat("ipsum ", 150)}, map[string]float64{"a": 1, "b": 0.5}}
}

func nop(context.Context, *doc) error { return nil }

// BenchmarkSave is a run of seven phases under a lease: seven saves.
func BenchmarkSave(b *testing.B) {
	servers(b, func(b *testing.B, rdb redis.UniversalClient) {
		store := newStore(b, rdb)
		a := begin(b, rdb, "r")
		list := make([]Phase[doc], 7)
		for i := range list {
			list[i] = Phase[doc]{Name: string(rune('a' + i)), Run: nop}
		}
		b.ReportAllocs()
		for b.Loop() {
			a.Lease.TakeSnapshot()
			rdb.Del(a.ctx, a.Base+":ckpt")
			if _, err := Run(a.ctx, store, list, newDoc()); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkResume reads a snapshot of 2 KB that came with the lease.
func BenchmarkResume(b *testing.B) {
	servers(b, func(b *testing.B, rdb redis.UniversalClient) {
		store := newStore(b, rdb)
		list := []Phase[doc]{{Name: "1", Run: nop}, {Name: "2", Run: func(context.Context, *doc) error { return errBoom }}}
		_, _ = Run(begin(b, rdb, "r").ctx, store, list, newDoc())
		a := begin(b, rdb, "r", again)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Run(a.ctx, store, list, doc{}); !errors.Is(err, errBoom) {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkStep(b *testing.B) {
	servers(b, func(b *testing.B, rdb redis.UniversalClient) {
		store := newStore(b, rdb)
		a := begin(b, rdb, "r")
		b.ReportAllocs()
		_, err := Run(a.ctx, store, []Phase[doc]{{Name: "1", Run: func(ctx context.Context, _ *doc) error {
			for b.Loop() {
				p := ctx.Value(phaseKey{}).(*phaseRun)
				p.release("s")
				if _, err := Step(ctx, "s", func(context.Context) (string, error) { return "result", nil }); err != nil {
					return err
				}
			}
			return nil
		}}}, doc{})
		if err != nil {
			b.Fatal(err)
		}
	})
}

// BenchmarkEncode is what a save costs besides Redis.
func BenchmarkEncode(b *testing.B) {
	cfg, d := defaults(), newDoc()
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := cfg.encode(envelope{Done: []string{"a"}, LastDone: "a", Stamp: "s"}, &d, nil); err != nil {
			b.Fatal(err)
		}
	}
}
