package idempotent_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
)

// fault is a hook that decides what becomes of each command of a client.
type fault struct{ judge atomic.Pointer[verdict] }

type verdict func(cmd redis.Cmder, send func() error) error

func (f *fault) on(v verdict) { f.judge.Store(&v) }

func (f *fault) off() { f.judge.Store(nil) }

func (f *fault) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *fault) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		send := func() error { return next(ctx, cmd) }
		if v := f.judge.Load(); v != nil {
			return (*v)(cmd, send)
		}
		return send()
	}
}

func (f *fault) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// enqueues reports whether cmd is asynq's enqueue of a task with this ID.
func enqueues(cmd redis.Cmder, id string) bool {
	a := cmd.Args()
	return len(a) > 3 && (a[0] == "evalsha" || a[0] == "eval") && a[3] == "asynq:{default}:t:"+id && a[2] == 2
}

// script matches the commands that run the script in file.
func script(t *testing.T, file string) (src string, is func(redis.Cmder) bool) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	src, sha := string(b), redis.NewScript(string(b)).Hash()
	return src, func(cmd redis.Cmder) bool {
		a := cmd.Args()
		return len(a) > 3 && (a[1] == src || a[1] == sha)
	}
}

// lose sends a command and puts reply in the place of what came back, once. A first
// try with a script that Redis does not have yet does not count.
func (f *fault) lose(match func(redis.Cmder) bool, reply func(send func() error) error) {
	f.on(func(cmd redis.Cmder, send func() error) error {
		if !match(cmd) {
			return send()
		}
		if err := send(); err != nil {
			return err
		}
		f.off()
		return reply(send)
	})
}

// again repeats a command, as go-redis does by itself when a reply is lost.
func again(send func() error) error { return send() }

// withFaults must be called before others use the client.
func (w *world) withFaults() *fault {
	f := &fault{}
	w.rdb.AddHook(f)
	return f
}

// deaf loses the replies of a script to pipelines, about some keys: as where the node of
// a cluster that has them hangs.
type deaf struct{ script, on string }

func (d deaf) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (d deaf) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (d deaf) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	src, err := os.ReadFile(d.script)
	if err != nil {
		panic(err)
	}
	sha := redis.NewScript(string(src)).Hash()
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			if a := cmd.Args(); len(a) > 3 && a[1] == sha && strings.Contains(fmt.Sprint(a[3]), d.on) {
				cmd.SetErr(errCut)
			}
		}
		return err
	}
}
