package idempotent

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/nexuscore/onceq/internal/lease"
	"github.com/nexuscore/onceq/internal/runkey"
	"github.com/nexuscore/onceq/internal/scope"
	"github.com/nexuscore/onceq/internal/setting"
)

// Attempt is one execution of a handler for a run, holding the run's lease. A
// handler finds its own with FromContext. It is safe for concurrent use.
type Attempt struct {
	g        *Guard
	lease    *lease.Lease
	outer    context.Context // asynq's, only to see how it ended
	delivery delivery
	crashes  int
	returned atomic.Bool // the handler has: how the attempt ends is being written

	mu     sync.Mutex // guards result
	result []byte
}

type attemptKey struct{}

// FromContext returns the attempt that ctx belongs to, and whether there is one.
func FromContext(ctx context.Context) (*Attempt, bool) {
	a, ok := ctx.Value(attemptKey{}).(*Attempt)
	return a, ok
}

// MustFromContext is FromContext for handlers that cannot work without a guard: it
// panics, naming the middleware that is missing.
func MustFromContext(ctx context.Context) *Attempt {
	a, ok := FromContext(ctx)
	if !ok {
		panic("idempotent: no attempt in the context: is the handler wrapped by Guard.Middleware?")
	}
	return a
}

// Key is the run's key.
func (a *Attempt) Key() string { return a.lease.Key }

// Number is 1 for the first attempt of a generation.
func (a *Attempt) Number() int { return a.lease.Attempt }

// Crashes is how many attempts of this generation died without an outcome since the
// last phase was saved.
func (a *Attempt) Crashes() int { return a.crashes }

// Generation is 1 until Producer.Rerun starts the run again.
func (a *Attempt) Generation() int { return a.lease.Generation }

// Token is the fencing token: larger than that of every earlier attempt of the
// run. A store that refuses writes with a token below one it has seen is safe from
// attempts that lost their lease and do not know yet.
func (a *Attempt) Token() int64 { return a.lease.Token }

// Err is nil while the lease is provably held; else it wraps ErrLeaseLost. It asks
// the clock, not Redis.
func (a *Attempt) Err() error { return a.lease.Err() }

// SetResult sets what the run leaves behind when the handler returns nil. It is
// stored with the outcome, read back by Guard.Lookup, and written to asynq's
// ResultWriter, also for a duplicate that is skipped. The last call wins. The error
// wraps ErrInvalid when the result is larger than WithMaxResult allows.
func (a *Attempt) SetResult(result []byte) error {
	if len(result) > a.g.maxResult {
		return setting.Invalidf("result has %d bytes, at most %d are allowed (WithMaxResult)", len(result), a.g.maxResult)
	}
	a.mu.Lock()
	a.result = append([]byte{}, result...)
	a.mu.Unlock()
	return nil
}

// Final reports whether the run would fail for good if the handler returned err
// now: err is permanent, or transient with no retry left. It is false for nil, and
// while asynq puts the task back because the server shuts down.
func (a *Attempt) Final(err error) bool {
	if err == nil || a.lease.Err() != nil || errors.Is(err, ErrLeaseLost) {
		return false
	}
	class, _ := a.g.classify(err)
	return class == ClassPermanent || class == ClassTransient && a.delivery.spent() && !putBackByAsynq(a.outer)
}

// Progress records that the attempt in ctx got something done; see
// WithProgressTimeout. Without an attempt it does nothing.
func Progress(ctx context.Context) {
	if a, ok := FromContext(ctx); ok {
		a.lease.Progressed()
	}
}

// delivery is what asynq says of the task that carries the run.
type delivery struct {
	key         string
	generation  int
	fingerprint string
	id, queue   string
	retried     int
	maxRetry    int
	timeout     time.Duration
	task        *asynq.Task
}

// spent reports whether asynq archives the task at the next error, whatever
// IsFailure says. A handler that was called without asynq has no budget to spend.
func (d *delivery) spent() bool { return d.id != "" && d.retried >= d.maxRetry }

var errForeign = errors.New("onceq: the task is of another prefix")

func (g *Guard) delivered(ctx context.Context, t *asynq.Task) (delivery, error) {
	d := delivery{generation: 1, task: t}
	d.id, _ = asynq.GetTaskID(ctx)
	d.queue, _ = asynq.GetQueueName(ctx)
	d.retried, _ = asynq.GetRetryCount(ctx)
	d.maxRetry, _ = asynq.GetMaxRetry(ctx)
	if end, ok := ctx.Deadline(); ok {
		d.timeout = time.Until(end).Round(time.Second)
	}
	h := t.Headers()
	if p := h[headerPrefix]; p != "" && p != g.prefix {
		return d, fmt.Errorf("%w: %q, this guard's is %q: give tenants queues of their own", errForeign, p, g.prefix)
	}
	d.key = h[KeyHeader]
	if d.key == "" {
		d.key = d.id
	}
	if g.keyFunc != nil {
		if k := g.keyFunc(t); k != "" {
			d.key = k
		}
	}
	if err := runkey.Validate(d.key); err != nil {
		return d, setting.Invalidf("task %q of type %q: %w", d.id, t.Type(), err)
	}
	if s := h[headerGeneration]; s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return d, setting.Invalidf("task %s: header %s is %q, want a number from 1", d.id, headerGeneration, s)
		}
		d.generation = n
	}
	d.fingerprint = h[headerFingerprint]
	if d.fingerprint == "" {
		d.fingerprint = Fingerprint(t.Type(), t.Payload())
	}
	return d, nil
}

// skipped says that a delivery has nothing to do, and why.
type skipped struct {
	state  State
	result []byte
	reason string
	// Of a run that failed: its last attempt, and whether somebody was told.
	token   int64
	attempt int
	told    bool
	// Of a delivery of an older generation: the newer one, how long its producer may
	// still be enqueueing it (negative: it has begun), and its payload's fingerprint.
	newer       int
	wait        time.Duration
	fingerprint string
}

// begin asks Redis for the lease. Context and attempt are set, or what makes it skip the
// delivery, or an error: *ContendedError, or one that wraps ErrPoisoned or ErrUnavailable.
func (g *Guard) begin(ctx context.Context, d delivery) (context.Context, *Attempt, *skipped, error) {
	owner, base := randomID(16), g.base(d.key)
	payload, keep := d.task.Payload(), 1
	if len(payload) > g.maxPayload {
		payload, keep = nil, 0
	}
	g.note(ctx, noted{key: d.key, kind: noteLease, ms: ms(g.ttl)})
	call, cancel := context.WithTimeout(ctx, g.opTimeout)
	defer cancel()
	sent := time.Now()
	v, err := g.run.Run(call, beginScript, g.withIndex(runkey.Lock(base), recordKey(base), runkey.Checkpoint(base), enqueueKey(base), voidKey(base, owner)),
		owner, ms(g.ttl), ms(g.retention), d.generation, d.fingerprint, g.maxCrashes, g.process, runkey.Escape(d.key),
		d.id, d.queue, d.task.Type(), payload, d.maxRetry, ms(d.timeout), d.retried, keep)
	if err != nil {
		// The lease may be ours all the same. Nobody would extend it, but a run must
		// not wait for its TTL, nor count it as a crash.
		_, _ = g.release(ctx, d.key, owner, handback{reason: "begin was not answered", void: voidFor})
		return nil, nil, nil, fmt.Errorf("begin of run %q: %w", d.key, err)
	}
	r, _ := v.([]any)
	return g.began(ctx, d, owner, sent, reply(r))
}

func (g *Guard) began(ctx context.Context, d delivery, owner string, sent time.Time, r reply) (context.Context, *Attempt, *skipped, error) {
	switch r.str(0) {
	case "begun":
	case "held":
		return nil, nil, nil, &ContendedError{
			Key: d.key, Holder: r.str(1), RetryAfter: time.Duration(r.num(2)) * time.Millisecond, token: r.num(3),
		}
	case "resting":
		return nil, nil, nil, &ContendedError{Key: d.key, RetryAfter: time.Duration(r.num(1)) * time.Millisecond, token: r.num(2)}
	case "succeeded":
		return nil, nil, &skipped{state: StateSucceeded, result: r.bytes(2)}, nil
	case "failed":
		return nil, nil, &skipped{state: StateFailed, reason: r.str(2), token: r.num(1), attempt: int(r.num(3)), told: r.str(4) == "1"}, nil
	case "stale":
		return nil, nil, &skipped{newer: int(r.num(1)), wait: time.Duration(r.num(2)) * time.Millisecond, fingerprint: r.str(3),
			reason: fmt.Sprintf("generation %d, the run is at %d", d.generation, r.num(1))}, nil
	case "poisoned":
		return nil, nil, nil, fmt.Errorf("%w: %d attempts of run %q died without an outcome", ErrPoisoned, r.num(2), d.key)
	default:
		return nil, nil, nil, fmt.Errorf("begin of run %q: %w %v", d.key, errNoAnswer, r)
	}
	outer := ctx
	ctx, l := lease.New(ctx, lease.Config{
		Prefix: g.prefix, Key: d.key, Base: g.base(d.key),
		Owner: owner, Token: r.num(1), Attempt: int(r.num(2)), Generation: d.generation,
		Fingerprint: d.fingerprint, Stamp: r.str(4), Snapshot: r.bytes(5),
		TTL: g.ttl, Margin: g.ttl / 10, Rest: g.policy.longest(),
	}, sent)
	a := &Attempt{g: g, lease: l, outer: outer, delivery: d, crashes: int(r.num(3))}
	ctx = context.WithValue(scope.New(ctx, "", ""), attemptKey{}, a)
	return ctx, a, nil, nil
}

func (g *Guard) withIndex(keys ...string) []string {
	if g.indexed {
		keys = append(keys, processLeasesKey(g.prefix, g.process), processesKey(g.prefix), presentKey(g.prefix))
	}
	return keys
}

func ms(d time.Duration) int64 { return d.Milliseconds() }

func atoi(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}
