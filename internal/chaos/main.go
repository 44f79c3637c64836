// Chaos runs the whole library for a while, with several worker processes on a
// Redis of its own, kills and freezes what can be killed and frozen, and then
// proves from outside what the library promises: see docs/guarantees.md.
//
//	go run ./internal/chaos -duration 3m -seed 1
//
// The seed decides all that is planned: the runs, their faults, and when what
// happens to whom. It exits with 1 when a proof fails, and leaves a page with a
// picture in chaos-report/ either way.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	if spec := os.Getenv(workerEnv); spec != "" {
		os.Exit(work(spec))
	}
	s, err := parse(os.Args[1:])
	if err != nil {
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := chaos(ctx, s)
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
	}
	if err != nil || !ok {
		stop()
		os.Exit(1)
	}
}

// settings are what the command line says.
type settings struct {
	duration    time.Duration
	drain       time.Duration
	seed        uint64
	workers     int
	concurrency int
	runs        int
	ttl         time.Duration
	dir         string
}

func parse(args []string) (s settings, err error) {
	fs := flag.NewFlagSet("chaos", flag.ContinueOnError)
	fs.DurationVar(&s.duration, "duration", 3*time.Minute, "how long things go wrong")
	fs.DurationVar(&s.drain, "drain", 4*time.Minute, "how long all may take to end after that")
	fs.Uint64Var(&s.seed, "seed", 0, "of the plan; 0 for another each time")
	fs.IntVar(&s.workers, "workers", 4, "worker processes")
	fs.IntVar(&s.concurrency, "concurrency", 4, "runs at a time in each")
	fs.IntVar(&s.runs, "runs", 0, "how many; 0 for 100 a minute")
	fs.DurationVar(&s.ttl, "ttl", 4*time.Second, "of a lease")
	fs.StringVar(&s.dir, "dir", "chaos-report", "`directory` of the report; what is in it is replaced")
	if err := fs.Parse(args); err != nil {
		return s, err
	}
	if s.seed == 0 {
		s.seed = rand.Uint64N(1_000_000) + 1
	}
	if s.runs == 0 {
		s.runs = max(1, int(100*s.duration.Minutes()))
	}
	switch {
	case s.duration < 10*time.Second:
		err = fmt.Errorf("-duration %v: at least 10s", s.duration)
	case s.workers < 2:
		err = fmt.Errorf("-workers %d: at least 2", s.workers)
	case s.concurrency < 1:
		err = fmt.Errorf("-concurrency %d: at least 1", s.concurrency)
	case s.ttl < 2*time.Second:
		err = fmt.Errorf("-ttl %v: at least 2s", s.ttl)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
	}
	return s, err
}

// chaos is one soak: what is planned happens, all runs end, and it is proven.
func chaos(ctx context.Context, s settings) (ok bool, err error) {
	p := makePlan(s)
	fmt.Printf("chaos: seed %d, %v, %d runs, %d workers of %d, plan %s\n", s.seed, s.duration, s.runs, s.workers, s.concurrency, p.fingerprint())
	if err := os.RemoveAll(s.dir); err != nil {
		return false, err
	}
	if err := os.MkdirAll(filepath.Join(s.dir, "logs"), 0o755); err != nil {
		return false, err
	}
	v, err := newSupervisor(ctx, s, p)
	if err != nil {
		return false, err
	}
	defer v.close()
	if err := v.perform(ctx); err != nil {
		return false, err
	}
	e, err := v.evidence(ctx)
	if err != nil {
		return false, err
	}
	proof := prove(e)
	if err := writeReport(s, e, proof); err != nil {
		return false, err
	}
	fmt.Print(proof)
	fmt.Printf("report: %s\n", filepath.Join(s.dir, "index.html"))
	return proof.ok(), nil
}
