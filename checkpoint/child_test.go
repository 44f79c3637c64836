package checkpoint

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/internal/lease"
	"github.com/nexuscore/onceq/internal/redistest"
	"github.com/nexuscore/onceq/internal/runkey"
)

const childEnv = "ONCEQ_CHECKPOINT_TEST_CHILD" // address of the Redis it works on

// child is a worker process: one phase, then one of 20 steps. It says on
// standard output what it does, and waits for a line before each step.
func child() {
	ctx := context.Background() // a process of its own
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv(childEnv), DisableIdentity: true})
	base := runkey.Base("onceq", "r")
	owner := fmt.Sprint("pid-", os.Getpid())
	rdb.Set(ctx, runkey.Lock(base), owner, time.Minute) // takes over at once
	snapshot, err := rdb.Get(ctx, runkey.Checkpoint(base)).Bytes()
	attempt := 2
	if err != nil {
		snapshot, attempt = nil, 1
	}
	ctx, _ = lease.New(ctx, lease.Config{
		Key: "r", Base: base, Owner: owner, Token: time.Now().UnixMicro(), Attempt: attempt, Generation: 1,
		Snapshot: snapshot, TTL: time.Minute, Margin: time.Second,
	}, time.Now())
	store, _ := NewRedisStore(rdb, quiet)
	in := bufio.NewScanner(os.Stdin)
	_, err = Run(ctx, store, []Phase[state]{
		{Name: "before", Run: func(context.Context, *state) error { fmt.Println("phase before"); return nil }},
		{Name: "p", Run: func(ctx context.Context, _ *state) error {
			for i := range 20 {
				in.Scan()
				_, err := Step(ctx, fmt.Sprint("s", i), func(context.Context) (int, error) {
					fmt.Println("step", i)
					return i, nil
				})
				if err != nil {
					return err
				}
				fmt.Println("done", i)
			}
			return nil
		}},
	}, state{})
	fmt.Println("end", err)
}

// C16: kill -9 in the middle of a phase of 20 steps.
func TestKilledInTheMiddleOfAPhase(t *testing.T) {
	t.Parallel()
	srv := redistest.Real(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ran := map[string]int{}
	// work starts a child, lets it begin n steps, and kills it.
	work := func(n int) (last string) {
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), childEnv+"="+srv.Addr)
		in, _ := cmd.StdinPipe()
		out, _ := cmd.StdoutPipe()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
		lines := bufio.NewScanner(out)
		_, _ = fmt.Fprintln(in)
		for done := 0; lines.Scan(); {
			last = lines.Text()
			if !strings.HasPrefix(last, "done") {
				ran[last]++
				continue
			}
			if done++; done == n {
				return last
			}
			_, _ = fmt.Fprintln(in)
		}
		return last
	}
	work(7)
	work(12)
	if last := work(30); last != "end <nil>" {
		t.Fatalf("last line %q, want the run to end well", last)
	}
	if ran["phase before"] != 1 {
		t.Errorf("phase before ran %d times, want 1", ran["phase before"])
	}
	for i := range 20 {
		if n := ran[fmt.Sprint("step ", i)]; n != 1 {
			t.Errorf("step %d ran %d times, want 1", i, n)
		}
	}
	if got := keys(t, srv.Client()); strings.Contains(got, "steps") {
		t.Errorf("keys %q, want no steps after the phase", got)
	}
}
