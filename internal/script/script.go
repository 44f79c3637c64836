// Package script runs embedded Lua scripts on Redis, and sends those of many
// goroutines in one pipeline.
//
// go-redis has a pipeliner of that kind too. It is experimental, must be closed
// by whoever made it and keeps a connection for itself; this one starts no
// goroutine until there is work and leaves none when there is none.
package script

import (
	"context"

	"github.com/redis/go-redis/v9"
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
	direct bool                    // the client itself gives up at a context's deadline
	server func(key string) string // nil where there is one
	lanes  PerServer[lane]
}

// NewRunner returns a runner on rdb.
func NewRunner(rdb redis.UniversalClient) *Runner {
	r := &Runner{rdb: rdb, server: servers(rdb)}
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

// Sharded reports whether the keys of different runs may be on different servers.
func (r *Runner) Sharded() bool { return r.server != nil }

// Server names the server that has a key, as far as the client knows without asking:
// "" where it does not, or has only one.
func (r *Runner) Server(key string) string {
	if r.server == nil {
		return ""
	}
	return r.server(key)
}

// Client is the client the runner sends on.
func (r *Runner) Client() redis.UniversalClient { return r.rdb }

// Run sends the call, alone or with what other goroutines send now, and
// returns when the reply is there or ctx has ended. With ContextTimeoutEnabled a
// cancelled ctx may be noticed only at its deadline. A script may then have run,
// or may still: every script must be safe to run twice for the same owner.
//
// The error is nil or wraps lease.ErrUnavailable, and what Redis replied.
func (r *Runner) Run(ctx context.Context, s *redis.Script, keys []string, args ...any) (any, error) {
	what := Call{s, keys, args}
	l := r.lane(what)
	if l.alone(ctx) {
		defer l.next()
		return result(r.one(ctx, what))
	}
	return l.add(ctx, what).wait(ctx)
}

// Send sends the call alone or with others, in no promised order, and waits for
// nothing: it is for what costs only time when it is lost.
func (r *Runner) Send(ctx context.Context, s *redis.Script, keys []string, args ...any) {
	what := Call{s, keys, args}
	if l := r.lane(what); !l.full() {
		l.add(context.WithoutCancel(ctx), what) // the caller may be gone before it is sent
	}
}

// Result is what one of the calls of RunAll returned.
type Result struct {
	Value any
	Err   error // as that of Run
}

// RunAll sends calls in a pipeline of their own for each server and returns their
// results in order. It is bounded by ctx even where the client's own timeouts are longer.
func (r *Runner) RunAll(ctx context.Context, calls []Call) []Result {
	all := make([]*call, len(calls))
	batches := map[*lane][]*call{} // a server that does not answer must not hide what others say
	for i, what := range calls {
		all[i] = newCall(ctx, what)
		l := r.lane(what)
		batches[l] = append(batches[l], all[i])
	}
	for _, batch := range batches {
		go func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxWait)
			defer cancel()
			r.pipeline(ctx, batch)
		}()
	}
	results := make([]Result, len(calls))
	for i, c := range all {
		results[i].Value, results[i].Err = c.wait(ctx)
	}
	return results
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
