// Package script runs embedded Lua scripts on Redis, and sends those of many
// goroutines in one pipeline.
//
// go-redis has a pipeliner of that kind too. It is experimental, must be closed
// by whoever made it and keeps a connection for itself; this one starts no
// goroutine until there is work and leaves none when there is none.
package script

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/internal/lease"
)

const (
	maxBatch = 128
	// One batch is under way at a time: what is called meanwhile is the next. Another
	// goes out beside one that takes longer than slow, so that a connection that hangs
	// holds up nobody else.
	slow      = 5 * time.Millisecond
	maxFlying = 4
	// maxWait bounds a batch that no caller waits for any longer.
	maxWait = 5 * time.Second
)

// Call is one script with its keys and arguments.
type Call struct {
	Script *redis.Script
	Keys   []string
	Args   []any
}

// Runner is safe for concurrent use and needs no closing.
type Runner struct {
	rdb    redis.UniversalClient
	direct bool // the client itself gives up at a context's deadline

	mu      sync.Mutex // guards the fields below
	queue   []*call
	flying  int
	sent    time.Time // when the last batch went out
	watch   *time.Timer
	watched bool
}

type call struct {
	Call
	ctx  context.Context
	done chan struct{} // closed after cmd is set
	cmd  *redis.Cmd
}

// NewRunner returns a runner on rdb.
func NewRunner(rdb redis.UniversalClient) *Runner {
	r := &Runner{rdb: rdb}
	switch c := rdb.(type) {
	case *redis.Client:
		r.direct = c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		r.direct = c.Options().ContextTimeoutEnabled
	case *redis.Ring:
		r.direct = c.Options().ContextTimeoutEnabled
	}
	return r
}

// Client is the client the runner sends on.
func (r *Runner) Client() redis.UniversalClient { return r.rdb }

// Run sends the call, alone or with what other goroutines send now, and
// returns when the reply is there or ctx has ended; where the client has
// ContextTimeoutEnabled perhaps only at ctx's deadline. A script may then have run,
// or may still: every script must be safe to run twice for the same owner.
//
// The error is nil, a reply error from Redis (see IsReply), or it wraps
// lease.ErrUnavailable.
func (r *Runner) Run(ctx context.Context, s *redis.Script, keys []string, args ...any) (any, error) {
	what := Call{s, keys, args}
	if r.alone(ctx) {
		defer r.next()
		return result(r.one(ctx, what))
	}
	return r.add(ctx, what).wait(ctx)
}

// Send sends the call alone or with others, in no promised order, and waits for
// nothing: it is for what costs only time when it is lost.
func (r *Runner) Send(ctx context.Context, s *redis.Script, keys []string, args ...any) {
	r.add(context.WithoutCancel(ctx), Call{s, keys, args}) // the caller may be gone before it is sent
}

// alone reports whether the caller is to send its call by itself, which saves two
// changes of goroutines: it can rely on the client to come back, and nothing is under
// way that could be waited for.
func (r *Runner) alone(ctx context.Context) bool {
	if _, bounded := ctx.Deadline(); !bounded || !r.direct || ctx.Err() != nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.flying > 0 {
		return false
	}
	r.flying++
	r.sent = time.Now()
	return true
}

// next goes on with what was called while a caller sent its own.
func (r *Runner) next() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) > 0 {
		go r.drain()
		return
	}
	r.flying--
}

func (r *Runner) add(ctx context.Context, what Call) *call {
	c := &call{Call: what, ctx: ctx, done: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = append(r.queue, c)
	r.hurry()
	return c
}

// hurry sends what is queued if nothing is under way, or not for a while.
func (r *Runner) hurry() {
	if len(r.queue) == 0 || r.flying == maxFlying {
		return
	}
	if left := slow - time.Since(r.sent); r.flying > 0 && left > 0 {
		r.lookIn(left)
		return
	}
	r.flying++
	r.sent = time.Now()
	go r.drain()
}

// lookIn makes sure that hurry is called in a while, by a timer and not a goroutine:
// there is nothing to stop.
func (r *Runner) lookIn(d time.Duration) {
	switch {
	case r.watched:
		return
	case r.watch == nil:
		r.watch = time.AfterFunc(d, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.watched = false
			r.hurry()
		})
	default:
		r.watch.Reset(d)
	}
	r.watched = true
}

func (c *call) wait(ctx context.Context) (any, error) {
	select {
	case <-c.done:
	case <-ctx.Done():
		select {
		case <-c.done: // the reply was first
		default:
			return nil, fmt.Errorf("%w: %w", lease.ErrUnavailable, ctx.Err())
		}
	}
	return result(c.cmd)
}

func result(cmd *redis.Cmd) (any, error) {
	v, err := cmd.Result()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return v, classify(err)
}

// drain sends batches until the queue is empty.
func (r *Runner) drain() {
	for {
		r.mu.Lock()
		n := min(len(r.queue), maxBatch)
		if n == 0 {
			r.queue = nil
			r.flying--
			r.mu.Unlock()
			return
		}
		batch := r.queue[:n:n]
		r.queue = r.queue[n:]
		r.sent = time.Now()
		r.mu.Unlock()
		r.send(batch)
		// Those who have their reply now often have more to send: let them.
		runtime.Gosched()
	}
}

func (r *Runner) send(batch []*call) {
	live := batch[:0]
	for _, c := range batch {
		if c.ctx.Err() == nil { // nobody waits for the others: do not run them late
			live = append(live, c)
		}
	}
	if len(live) == 0 {
		return
	}
	// Not the context of one caller: its end would fail the others' calls.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(live[0].ctx), maxWait)
	defer cancel()
	if len(live) == 1 {
		live[0].cmd = r.one(ctx, live[0].Call)
		close(live[0].done)
		return
	}
	r.pipeline(ctx, live)
}

func (r *Runner) one(ctx context.Context, c Call) *redis.Cmd {
	cmd := c.Script.EvalSha(ctx, r.rdb, c.Keys, c.Args...)
	if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		cmd = c.Script.Eval(ctx, r.rdb, c.Keys, c.Args...)
	}
	r.LookAround(ctx, cmd.Err())
	return cmd
}

func (r *Runner) pipeline(ctx context.Context, calls []*call) {
	cmds := make([]*redis.Cmd, len(calls))
	pipe := r.rdb.Pipeline()
	for i, c := range calls {
		cmds[i] = c.Script.EvalSha(ctx, pipe, c.Keys, c.Args...)
	}
	_, _ = pipe.Exec(ctx) // each command carries its own error
	for i, c := range calls {
		c.cmd = cmds[i]
		if redis.HasErrorPrefix(c.cmd.Err(), "NOSCRIPT") {
			c.cmd = c.Script.Eval(ctx, r.rdb, c.Keys, c.Args...)
		}
		r.LookAround(ctx, c.cmd.Err())
		close(c.done)
	}
}

// LookAround asks a cluster client to learn anew which node has which slots, when one
// did not answer. By itself it does so when a node redirects it, which a dead one
// cannot, and once a minute: leases do not live that long. The client does it in the
// background, and not more often than a few times a second. It is for commands that
// do not go through the runner.
func (r *Runner) LookAround(ctx context.Context, err error) {
	if cluster, ok := r.rdb.(interface{ ReloadState(context.Context) }); ok && noReply(err) {
		cluster.ReloadState(ctx)
	}
}

// noReply reports whether err is about the way to Redis, not from it.
func noReply(err error) bool {
	var reply redis.Error
	return err != nil && !errors.As(err, &reply)
}

// IsReply reports whether err came from Redis itself as an error reply: the
// script did not run to its end. Overload and failover replies count as
// unavailable instead, see Run.
func IsReply(err error) bool {
	return err != nil && !errors.Is(err, lease.ErrUnavailable)
}

// refused are replies by which Redis says "not now": the command did not take
// effect, and the same command may later.
var refused = []string{"LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "OOM", "NOREPLICAS", "MISCONF"}

func classify(err error) error {
	if err == nil {
		return nil
	}
	var reply redis.Error
	if errors.As(err, &reply) {
		for _, p := range refused {
			if redis.HasErrorPrefix(err, p) {
				return fmt.Errorf("%w: %w", lease.ErrUnavailable, err)
			}
		}
		return err
	}
	return fmt.Errorf("%w: %w", lease.ErrUnavailable, err)
}

// Result is what one of the calls of RunAll returned.
type Result struct {
	Value any
	Err   error // as that of Run
}

// RunAll sends calls in one pipeline of its own and returns their results in
// order. It is bounded by ctx even where the client's own timeouts are longer.
func (r *Runner) RunAll(ctx context.Context, calls []Call) []Result {
	batch := make([]*call, len(calls))
	for i := range calls {
		batch[i] = &call{Call: calls[i], ctx: ctx, done: make(chan struct{})}
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxWait)
		defer cancel()
		r.pipeline(ctx, batch)
	}()
	results := make([]Result, len(calls))
	for i, c := range batch {
		results[i].Value, results[i].Err = c.wait(ctx)
	}
	return results
}
