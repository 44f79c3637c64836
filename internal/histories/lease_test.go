package histories

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/checkpoint"
	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/lease"
	"github.com/nexuscore/onceq/internal/redistest"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // it has much to say of a Redis that is down
	redistest.Main(m)
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

var (
	seed   = flag.Uint64("seed", 0, "of the faults; 0 for another each time")
	length = flag.Duration("length", 6*time.Second, "of each recorded history")
)

const (
	leaseTTL  = time.Second
	processes = 3
	slots     = 4 // runs at a time
	hands     = 4 // handlers of a process at a time
)

// TestLinearizable: whatever happens between the attempts and Redis, the answers
// are those of one register that was asked one command after the other.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	ops := record(t, newSeed(t), *length, nil, false)
	demand(t, ops, porcupine.Ok)
}

// TestLinearizableAcrossRestarts is the same with a Redis that is killed, and
// forgets nothing it has answered.
func TestLinearizableAcrossRestarts(t *testing.T) {
	t.Parallel()
	ops := record(t, newSeed(t), *length, nil, true)
	demand(t, ops, porcupine.Ok)
}

// TestBrokenLeases: the same test refuses leases with one fault each.
func TestBrokenLeases(t *testing.T) {
	t.Parallel()
	const whoHolds = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then"
	replace := func(old, new string) func(string) string {
		return func(source string) string { return strings.Replace(source, old, new, 1) }
	}
	for name, broken := range map[string]map[string]func(string) string{
		"release by anyone": {"abandon": replace(whoHolds, "if false then")},
		"finish by anyone":  {"finish": replace(whoHolds, "if false then")},
		"extend re-creates": {"extend": replace(whoHolds,
			"if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end\n"+whoHolds)},
		"extend never says lost":    {"extend": replace("return 0", "return 1")},
		"save by anyone":            {"save": replace("(holder or '') ~= ARGV[1]", "false")},
		"a token twice":             {"begin": replace("token = math.max(token + 1, now)", "token = 1")},
		"begin takes what is held":  {"begin": replace("if holder and holder ~= ARGV[1] then", "if holder ~= ARGV[1] then holder = false end\nif false then")},
		"begin forgets the outcome": {"begin": replace("if state == 'failed' then", "if state == 'failed' then state = 'retrying' end\nif false then")},
		"a lease lives too long": {
			"begin":  replace("'PX', ARGV[2]", "'PX', 2 * ARGV[2]"),
			"extend": replace("PEXPIRE', KEYS[1], ARGV[2]", "PEXPIRE', KEYS[1], 2 * ARGV[2]"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 10 { // the fault must meet an attempt that shows it
				ops := record(t, newSeed(t), min(*length, 3*time.Second), broken, false)
				if check(t, ops) == porcupine.Illegal {
					return
				}
			}
			t.Error("no history showed that this lease is broken")
		})
	}
}

func newSeed(t *testing.T) uint64 {
	s := *seed
	if s == 0 {
		s = rand.Uint64()
	}
	t.Logf("seed %d", s)
	return s
}

func check(t *testing.T, ops []recorded) porcupine.CheckResult {
	t.Helper()
	result := porcupine.CheckOperationsTimeout(model, withExpiry(ops), time.Minute)
	if result == porcupine.Unknown {
		t.Fatalf("%d commands could not be checked within a minute", len(ops))
	}
	return result
}

func demand(t *testing.T, ops []recorded, want porcupine.CheckResult) {
	t.Helper()
	if count(t, ops); t.Failed() {
		return
	}
	got := check(t, ops)
	if got == want {
		return
	}
	_, info := porcupine.CheckOperationsVerbose(model, withExpiry(ops), time.Minute)
	picture := filepath.Join(t.ArtifactDir(), "history.html")
	if err := porcupine.VisualizePath(model, info, picture); err != nil {
		t.Log(err)
	}
	t.Errorf("linearizable: %s, want %s; see %s", got, want, picture)
}

// count demands that the history has what it is about: a test that meets no
// refused extension proves nothing of them.
func count(t *testing.T, ops []recorded) {
	t.Helper()
	n := map[string]int{}
	for _, op := range ops {
		in, out := op.Input.(input), op.Output.(output)
		switch {
		case out.unknown:
			n["unknown"]++
		case out.kind == "succeeded" || out.kind == "failed":
			n["over"]++
		case in.name == "begin":
			n[out.kind]++
		case in.name == "save" || in.name == "step":
			n[fmt.Sprint("write ", out.yes)]++
		default:
			n[fmt.Sprint(in.name, " ", out.yes)]++
		}
	}
	t.Logf("%d commands: %v", len(ops), n)
	for _, kind := range []string{
		"unknown", "begun", "held", "over", "evict true", "extend true", "extend false",
		"write true", "write false", "abandon true", "abandon false", "finish true",
	} {
		if n[kind] == 0 {
			t.Errorf("the history has no %q", kind)
		}
	}
}

// theatre is where a history happens.
type theatre struct {
	*recorder
	prefix string
	runs   [slots]atomic.Int64 // which run is at each slot
}

func (th *theatre) key(slot int) string { return fmt.Sprintf("run-%d-%d", slot, th.runs[slot].Load()) }

func record(t *testing.T, seed uint64, length time.Duration, broken map[string]func(string) string, restarts bool) []recorded {
	t.Helper()
	srv := redistest.Real(t, "--appendonly", "yes", "--appendfsync", "always")
	th := &theatre{recorder: &recorder{commands: commands(t, broken), start: time.Now()}, prefix: "h"}
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var wg sync.WaitGroup
	var links []*link
	for p := range processes {
		rdb := redis.NewClient(&redis.Options{Addr: srv.Addr, MaxRetries: -1, DisableIdentity: true, PoolSize: 20})
		t.Cleanup(func() { _ = rdb.Close() })
		l := &link{recorder: th.recorder, client: p + 1, rng: rand.New(rand.NewPCG(seed, uint64(p)))}
		rdb.AddHook(l)
		links = append(links, l)
		w := newWorker(t, th, rdb)
		for h := range hands {
			rng := rand.New(rand.NewPCG(seed, uint64(100*(p+1)+h)))
			wg.Go(func() { w.work(ctx, rng) })
		}
	}
	wg.Go(func() { th.misfortune(ctx, t, srv, links, rand.New(rand.NewPCG(seed, 99)), restarts) })
	wg.Wait()
	for _, l := range links {
		l.close()
	}
	th.mu.Lock()
	defer th.mu.Unlock()
	return append([]recorded(nil), th.ops...)
}

// misfortune freezes processes, evicts locks, and pauses or kills Redis.
func (th *theatre) misfortune(ctx context.Context, t *testing.T, srv *redistest.Server, links []*link, rng *rand.Rand, restarts bool) {
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr, MaxRetries: -1, DisableIdentity: true})
	defer func() { _ = rdb.Close() }()
	for pause(ctx, 50*time.Millisecond+time.Duration(rng.Int64N(int64(200*time.Millisecond)))) {
		switch n := rng.IntN(20); {
		case n < 11:
			in := input{lock: th.prefix + ":{" + th.key(rng.IntN(slots)) + "}:lock", name: "evict"}
			s := th.begin(in, 0)
			gone, err := rdb.Del(context.WithoutCancel(ctx), in.lock).Result()
			th.end(0, s, output{unknown: err != nil, yes: gone == 1})
		case n < 17:
			links[rng.IntN(len(links))].freeze(leaseTTL + time.Duration(rng.Int64N(int64(leaseTTL))))
		case !restarts:
			_ = rdb.Do(ctx, "CLIENT", "PAUSE", 100+rng.IntN(1200)).Err()
		default:
			srv.Kill()
			pause(ctx, time.Duration(rng.Int64N(int64(leaseTTL))))
			if err := srv.Start(); err != nil {
				t.Errorf("redis-server does not come back: %v", err)
				return
			}
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// worker is a process of the library's, as far as Redis can tell.
type worker struct {
	th    *theatre
	rdb   *redis.Client
	guard *idempotent.Guard
	store *checkpoint.RedisStore
}

func newWorker(t *testing.T, th *theatre, rdb *redis.Client) *worker {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	g, err := idempotent.New(rdb, idempotent.WithPrefix(th.prefix), idempotent.WithTTL(leaseTTL),
		idempotent.WithMaxCrashes(1000), idempotent.WithLogger(quiet))
	if err != nil {
		t.Fatal(err)
	}
	s, err := checkpoint.NewRedisStore(rdb, checkpoint.WithLogger(quiet), checkpoint.WithBreaker(1_000_000, time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	return &worker{th: th, rdb: rdb, guard: g, store: s}
}

var errAgain = errors.New("again")

// work is delivered runs, one after the other.
func (w *worker) work(ctx context.Context, rng *rand.Rand) {
	for ctx.Err() == nil {
		slot := rng.IntN(slots)
		run := w.th.runs[slot].Load()
		task := asynq.NewTaskWithHeaders("histories", nil, map[string]string{"onceq-key": w.th.key(slot)})
		began := false
		err := w.guard.Middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
			began = true
			return w.handle(ctx, rng)
		})).ProcessTask(ctx, task)
		if err == nil || errors.Is(err, asynq.SkipRetry) {
			if !began || rng.IntN(2) == 0 { // someone has seen that it is over
				w.th.runs[slot].CompareAndSwap(run, run+1)
			}
		}
		pause(ctx, time.Duration(rng.Int64N(int64(60*time.Millisecond))))
	}
}

// handle is an attempt: it saves as it goes, and ends in one way or the other.
func (w *worker) handle(ctx context.Context, rng *rand.Rand) error {
	l, _ := lease.FromContext(ctx)
	ref := checkpoint.Ref{Base: l.Base, Owner: l.Owner, Token: l.Token, TTL: time.Hour, LeaseTTL: leaseTTL}
	stubborn := rng.IntN(3) == 0
	for i := range 1 + rng.IntN(5) {
		d := time.Duration(rng.Int64N(int64(150 * time.Millisecond)))
		if stubborn {
			pause(context.WithoutCancel(ctx), d)
			w.blind(ctx, rng, l, i)
			continue
		}
		if !pause(ctx, d) {
			return context.Cause(ctx)
		}
		if rng.IntN(2) == 0 {
			_ = w.store.Save(ctx, ref, "phase", fmt.Appendf(nil, "%s/%d", l.Owner[:6], i))
		} else {
			_ = w.store.SaveStep(ctx, ref, "phase", "basis", fmt.Sprint(i), []byte("result"))
		}
	}
	switch rng.IntN(4) {
	case 0:
		return nil
	case 1:
		return idempotent.Permanent(errAgain)
	}
	return errAgain
}

// blind sends what a process sends that froze after it had looked at its lease:
// the library itself would not, once it knows that the lease is gone.
func (w *worker) blind(ctx context.Context, rng *rand.Rand, l *lease.Lease, i int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	lock, record, snapshot, steps := l.Base+":lock", l.Base+":run", l.Base+":ckpt", l.Base+":steps:phase"
	ttl, hour := leaseTTL.Milliseconds(), time.Hour.Milliseconds()
	name, keys, args := "save", []string{lock, snapshot, steps}, []any{l.Owner, fmt.Sprintf("%s/%d", l.Owner[:6], i), hour, ttl}
	held := l.Err() == nil // only a lost one gives back or ends what it has not
	switch n := rng.IntN(6); {
	case n == 1:
		name, keys, args = "step", []string{lock, steps, snapshot}, []any{l.Owner, "basis", fmt.Sprint(i), "result", hour, ttl}
	case n == 2:
		name, keys, args = "extend", []string{lock, record}, []any{l.Owner, ttl, hour, "process", "member"}
	case n == 3 && !held:
		name, keys, args = "abandon", []string{lock, record, l.Base + ":enq:" + l.Owner}, []any{l.Owner, hour, "member", 0, "blind", "0", 0, 0}
	case n > 3 && !held:
		name, keys, args = "finish", []string{lock, record, snapshot}, []any{l.Owner, "succeeded", hour, "member", "", "", 4}
	}
	for sha, c := range w.th.commands {
		if c.name == name {
			_ = w.rdb.EvalSha(ctx, sha, keys, args...).Err()
		}
	}
}
