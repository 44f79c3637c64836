package script_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
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

// Whatever Redis says instead of an answer: the script may have run in part.
func TestAnErrorReplyCannotTell(t *testing.T) {
	m, rdb := redistest.Mini(t)
	r := script.NewRunner(rdb)
	for _, reply := range []string{
		"OOM command not allowed when used memory > 'maxmemory'.",
		"ERR Error running script (call to f_1): @user_script:20: @user_script: 20: -OOM command not allowed when used memory > 'maxmemory'.", // Redis 6.2
		"READONLY You can't write against a read only replica.",
		"LOADING Redis is loading the dataset in memory",
		"CROSSSLOT Keys in request don't hash to the same slot",
		"NOPERM this user has no permissions to run the 'evalsha' command",
		"ERR user_script:1: bad",
	} {
		m.SetError(reply)
		_, err := r.Run(t.Context(), echo, nil, "x")
		all := r.RunAll(t.Context(), []script.Call{{Script: echo, Args: []any{"x"}}})
		m.SetError("")
		for _, err := range []error{err, all[0].Err} {
			if !errors.Is(err, lease.ErrUnavailable) || !strings.Contains(err.Error(), reply) {
				t.Errorf("%s: err %v, want ErrUnavailable and what Redis said", reply, err)
			}
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

// twoServers routes keys as a cluster client does.
type twoServers struct {
	redis.UniversalClient
	a, b *redis.Client
}

func (c *twoServers) MasterForKey(_ context.Context, key string) (*redis.Client, error) {
	if strings.HasPrefix(key, "a") {
		return c.a, nil
	}
	return c.b, nil
}

// hung holds up whatever is about a key of server a.
type hung struct{ free chan struct{} }

func (h *hung) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h *hung) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.hold(cmd)
		return next(ctx, cmd)
	}
}
func (h *hung) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.hold(cmds...)
		return next(ctx, cmds)
	}
}

func (h *hung) hold(cmds ...redis.Cmder) {
	for _, cmd := range cmds {
		if args := cmd.Args(); len(args) > 3 && args[3] == "a" {
			<-h.free
			return
		}
	}
}

// One server of a cluster hangs: calls of the others are not behind its calls, neither
// in batches of many callers nor in one caller's own.
func TestAHungServerHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Bubble(t)
		h := &hung{free: make(chan struct{})}
		rdb.AddHook(h)
		a, b := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), redis.NewClient(&redis.Options{Addr: "127.0.0.1:2"})
		defer func() { _, _ = a.Close(), b.Close() }()
		r := script.NewRunner(&twoServers{rdb, a, b})
		if !r.Sharded() || r.Server("a") != "127.0.0.1:1" || r.Server("b") != "127.0.0.1:2" {
			t.Fatalf("sharded %v, a on %q, b on %q", r.Sharded(), r.Server("a"), r.Server("b"))
		}
		start := time.Now()
		bound, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var hanging sync.WaitGroup
		for range 20 {
			hanging.Go(func() { _, _ = r.Run(bound, echo, []string{"a"}, "x") })
			time.Sleep(10 * time.Millisecond) // each its own batch, until no more may be under way
		}
		got, err := r.Run(t.Context(), echo, []string{"b"}, "y")
		if err != nil || got != "y" || time.Since(start) > 300*time.Millisecond {
			t.Errorf("Run on the other server: %v, %v after %v", got, err, time.Since(start))
		}
		all := r.RunAll(bound, []script.Call{{Script: echo, Keys: []string{"a"}, Args: []any{"x"}}, {Script: echo, Keys: []string{"b"}, Args: []any{"y"}}})
		if !errors.Is(all[0].Err, lease.ErrUnavailable) || all[1].Err != nil || all[1].Value != "y" {
			t.Errorf("RunAll: %+v, want no answer and y", all)
		}
		hanging.Wait()
		close(h.free)
	})
}

// What nobody waits for does not pile up while a server hangs.
func TestSendsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Bubble(t)
		h := &hung{free: make(chan struct{})}
		rdb.AddHook(h)
		r := script.NewRunner(rdb)
		incr := redis.NewScript(`return redis.call('INCR', KEYS[2])`)
		for range 5000 {
			r.Send(t.Context(), incr, []string{"a", "n"})
		}
		synctest.Wait()
		close(h.free)
		time.Sleep(time.Second)
		if n, _ := rdb.Get(t.Context(), "n").Int(); n < 1024 || n > 1024+4*128 {
			t.Errorf("%d were sent after all, want at most those that waited (1024) and were under way (4 x 128)", n)
		}
	})
}

// Who asks at the same time gets the same: a second breaker would forget what the first
// has counted.
func TestPerServer(t *testing.T) {
	var p script.PerServer[int]
	var both sync.WaitGroup // are making one
	both.Add(2)
	got := make(chan *int, 2)
	for i := range 2 {
		go func() {
			got <- p.Of("a", func() *int {
				both.Done()
				both.Wait()
				return &i
			})
		}()
	}
	a := <-got
	if other := <-got; other != a {
		t.Error("two that asked at once got different values")
	}
	if b := p.Of("b", func() *int { return new(int) }); b == a || p.Of("a", nil) != a || p.Len() != 2 {
		t.Errorf("%d kept, want one for each of two servers", p.Len())
	}
}
