package script_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/internal/lease"
	"github.com/nexuscore/onceq/internal/redistest"
	"github.com/nexuscore/onceq/internal/script"
)

func TestMain(m *testing.M) { redistest.Main(m) }

var echo = redis.NewScript(`return ARGV[1]`)

func TestRunSurvivesScriptFlush(t *testing.T) {
	_, rdb := redistest.Mini(t)
	r := script.NewRunner(rdb)
	for range 2 {
		got, err := r.Run(t.Context(), echo, []string{"k"}, "hello")
		if err != nil || got != "hello" {
			t.Fatalf("Run = %v, %v; want hello", got, err)
		}
		if err := rdb.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestManyCallersShareRoundTrips(t *testing.T) {
	_, rdb := redistest.Mini(t)
	r := script.NewRunner(rdb)
	var n redistest.Counter
	if _, err := r.Run(t.Context(), echo, nil, "warm"); err != nil {
		t.Fatal(err)
	}
	rdb.AddHook(&n)
	var wg sync.WaitGroup
	for range 500 {
		wg.Go(func() {
			if got, err := r.Run(t.Context(), echo, nil, "x"); err != nil || got != "x" {
				t.Errorf("Run = %v, %v; want x", got, err)
			}
		})
	}
	wg.Wait()
	if n.Commands() != 500 {
		t.Errorf("%d commands for 500 calls", n.Commands())
	}
	if n.RoundTrips() > 400 {
		t.Errorf("%d round trips for 500 calls at once: nothing was batched", n.RoundTrips())
	}
}

func TestOneCallersEndIsNotAnothers(t *testing.T) {
	m, rdb := redistest.Mini(t)
	r := script.NewRunner(rdb)
	m.Lock() // every command waits
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error, 2)
	go func() { _, err := r.Run(ctx, echo, nil, "a"); errs <- err }()
	cancel()
	if err := <-errs; !errors.Is(err, lease.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled caller: %v, want ErrUnavailable for context.Canceled", err)
	}
	go func() { _, err := r.Run(t.Context(), echo, nil, "b"); errs <- err }()
	m.Unlock()
	if err := <-errs; err != nil {
		t.Errorf("other caller: %v, want nil", err)
	}
}

func TestDeadlineHoldsWhateverTheClientsTimeouts(t *testing.T) {
	m, rdb := redistest.Mini(t)
	r := script.NewRunner(rdb)
	m.Lock()
	defer m.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := r.Run(ctx, echo, nil, "a")
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, lease.ErrUnavailable) {
		t.Fatalf("err = %v, want ErrUnavailable for DeadlineExceeded", err)
	}
}

func TestAnswersStayApart(t *testing.T) {
	m, rdb := redistest.Mini(t)
	r := script.NewRunner(rdb)
	for _, c := range []struct {
		reply   string
		isReply bool
	}{
		{"OOM command not allowed when used memory > 'maxmemory'.", false},
		{"READONLY You can't write against a read only replica.", false},
		{"LOADING Redis is loading the dataset in memory", false},
		{"CROSSSLOT Keys in request don't hash to the same slot", true},
		{"ERR user_script:1: bad", true},
	} {
		m.SetError(c.reply)
		_, err := r.Run(t.Context(), echo, nil, "x")
		m.SetError("")
		if err == nil || script.IsReply(err) != c.isReply || errors.Is(err, lease.ErrUnavailable) == c.isReply {
			t.Errorf("%s: err %v, IsReply %v, want %v", c.reply, err, script.IsReply(err), c.isReply)
		}
	}
}

func TestSendOutlivesItsCaller(t *testing.T) {
	_, rdb := redistest.Mini(t)
	r := script.NewRunner(rdb)
	ctx, cancel := context.WithCancel(t.Context())
	r.Send(ctx, redis.NewScript(`redis.call('SET', KEYS[1], ARGV[1]) return redis.call('LPUSH', KEYS[2], 1)`), []string{"k", "done"}, "sent")
	cancel() // nobody waits for it: it is sent all the same
	if err := rdb.BLPop(t.Context(), 10*time.Second, "done").Err(); err != nil {
		t.Fatal(err)
	}
	if got := rdb.Get(t.Context(), "k").Val(); got != "sent" {
		t.Fatalf("k is %q, want what Send wrote", got)
	}
}

// clustered is a client that can look for the nodes of a cluster.
type clustered struct {
	redis.UniversalClient
	reloads atomic.Int32
}

func (c *clustered) ReloadState(context.Context) { c.reloads.Add(1) }

// A cluster client learns nothing from a node that is dead: it is told to look. What
// a node says, also when it says no, is no reason to.
func TestADeadNodeMakesAClusterClientLook(t *testing.T) {
	m, rdb := redistest.Mini(t)
	c := &clustered{UniversalClient: rdb}
	r := script.NewRunner(c)
	calls := []script.Call{{Script: echo, Args: []any{"x"}}, {Script: redis.NewScript(`return redis.error_reply("OOM no")`)}, {Script: redis.NewScript(`return nil`)}}
	for _, call := range calls {
		_, _ = r.Run(t.Context(), call.Script, call.Keys, call.Args...)
	}
	r.RunAll(t.Context(), calls)
	if n := c.reloads.Load(); n != 0 {
		t.Errorf("looked %d times although the node answered", n)
	}
	m.Close()
	if _, err := r.Run(t.Context(), echo, nil, "x"); !errors.Is(err, lease.ErrUnavailable) {
		t.Fatalf("err %v, want unavailable", err)
	}
	single := c.reloads.Load()
	r.RunAll(t.Context(), calls)
	if all := c.reloads.Load(); single == 0 || all <= single {
		t.Errorf("looked %d times after a call, %d after a pipeline, want at least one for each", single, all-single)
	}
}

// stuck holds up the first command that passes, until it is let go.
type stuck struct {
	once atomic.Bool
	free chan struct{}
}

func (s *stuck) DialHook(next redis.DialHook) redis.DialHook { return next }
func (s *stuck) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if s.once.CompareAndSwap(false, true) {
			<-s.free
		}
		return next(ctx, cmd)
	}
}
func (s *stuck) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A batch on a connection that hangs delays another by milliseconds, not by its timeout.
func TestAHangingBatchHoldsUpNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Bubble(t)
		s := &stuck{free: make(chan struct{})}
		rdb.AddHook(s)
		r := script.NewRunner(rdb)
		first := make(chan error, 1)
		go func() {
			_, err := r.Run(t.Context(), echo, nil, "a")
			first <- err
		}()
		synctest.Wait()
		start := time.Now()
		if got, err := r.Run(t.Context(), echo, nil, "b"); err != nil || got != "b" {
			t.Errorf("Run = %v, %v; want b", got, err)
		}
		if took := time.Since(start); took > 10*time.Millisecond {
			t.Errorf("waited %v for a call of somebody else", took)
		}
		start = time.Now()
		if _, err := r.Run(t.Context(), echo, nil, "c"); err != nil || time.Since(start) > 10*time.Millisecond {
			t.Errorf("the next: %v after %v, want nil at once", err, time.Since(start))
		}
		close(s.free)
		if err := <-first; err != nil {
			t.Error(err)
		}
	})
}

// A client that keeps to its contexts' deadlines needs no goroutine to wait for it.
func TestACallerOfAPunctualClientSendsByItself(t *testing.T) {
	m, slow := redistest.Mini(t)
	opts := *slow.Options()
	opts.ContextTimeoutEnabled, opts.MaxRetries = true, -1
	rdb := redis.NewClient(&opts)
	defer func() { _ = rdb.Close() }()
	r := script.NewRunner(rdb)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if got, err := r.Run(ctx, echo, nil, "x"); err != nil || got != "x" {
		t.Fatalf("Run = %v, %v; want x", got, err)
	}
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			if got, err := r.Run(ctx, echo, nil, i); err != nil || got != strconv.Itoa(i) {
				t.Errorf("Run = %v, %v; want %d", got, err, i)
			}
		})
	}
	wg.Wait()
	m.Lock()
	defer m.Unlock()
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	// The client's own words: its clock may be a little ahead of the context's.
	if _, err := r.Run(short, echo, nil, "x"); !errors.Is(err, lease.ErrUnavailable) {
		t.Errorf("err = %v, want ErrUnavailable at the deadline", err)
	}
}
