package idempotent

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/nexuscore/onceq/internal/redistest"
)

func benchGuard(b *testing.B) (*Guard, *redistest.Counter) {
	b.Helper()
	rdb := redistest.Real(b).Client()
	g, err := New(rdb, WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		b.Fatal(err)
	}
	var n redistest.Counter
	rdb.AddHook(&n)
	return g, &n
}

func benchDelivery(key string) delivery {
	t := asynq.NewTask("bench", []byte(`{"goal":"a word counter"}`))
	return delivery{key: key, generation: 1, fingerprint: "f", id: key, queue: "default", task: t}
}

func mustBegin(b *testing.B, g *Guard, key string) *Attempt {
	b.Helper()
	_, a, skip, err := g.begin(b.Context(), benchDelivery(key))
	if err != nil || skip != nil {
		b.Fatal(err, skip)
	}
	return a
}

func BenchmarkBegin(b *testing.B) {
	g, n := benchGuard(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		mustBegin(b, g, fmt.Sprint("run-", i)).lease.End()
	}
	b.ReportMetric(float64(n.RoundTrips())/float64(b.N), "trips/op")
}

func BenchmarkFinish(b *testing.B) {
	g, n := benchGuard(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		a := mustBegin(b, g, fmt.Sprint("run-", i))
		n.Reset()
		b.StartTimer()
		if err := a.finish(b.Context(), StateSucceeded, ""); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		a.lease.End()
		b.StartTimer()
	}
	b.ReportMetric(float64(n.RoundTrips()), "trips/op")
}

// A delivery of a run that has succeeded.
func BenchmarkSkippedDuplicate(b *testing.B) {
	g, n := benchGuard(b)
	a := mustBegin(b, g, "run")
	if err := a.finish(b.Context(), StateSucceeded, ""); err != nil {
		b.Fatal(err)
	}
	a.lease.End()
	n.Reset()
	b.ReportAllocs()
	for b.Loop() {
		if _, _, skip, err := g.begin(b.Context(), benchDelivery("run")); skip == nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n.RoundTrips())/float64(b.N), "trips/op")
}

func BenchmarkFingerprint(b *testing.B) {
	payload := []byte(`{"goal":"a word counter","parameters":{"lines":true,"bytes":9007199254740993}}`)
	b.ReportAllocs()
	for b.Loop() {
		Fingerprint("orchestrator:run", payload)
	}
}
