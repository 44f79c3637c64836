package idempotent_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// losing loses the replies of the next commands that have an argument with match in it:
// they take effect, and nobody hears of it.
type losing struct {
	mu    sync.Mutex
	match string
	times int
}

func (l *losing) next(match string, times int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.match, l.times = match, times
}

func (l *losing) hit(cmd redis.Cmder) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.times == 0 {
		return false
	}
	for _, a := range cmd.Args() {
		if s, ok := a.(string); ok && strings.Contains(s, l.match) {
			l.times--
			return true
		}
	}
	return false
}

func (l *losing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *losing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		// A script that is not known yet has no effect to lose the reply of.
		if !redis.HasErrorPrefix(err, "NOSCRIPT") && l.hit(cmd) {
			err = errCut
			cmd.SetErr(err)
		}
		return err
	}
}

func (l *losing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// slowly sends what names match only after a while.
type slowly struct {
	match string
	by    time.Duration
}

func (s *slowly) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *slowly) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.Contains(fmt.Sprintln(cmd.Args()...), s.match) {
			time.Sleep(s.by)
		}
		return next(ctx, cmd)
	}
}

func (s *slowly) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// recording keeps the first command that names match, which is not answered.
type recording struct {
	match  string
	effect bool // it is executed all the same
	args   []any
}

func (r *recording) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *recording) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if r.args != nil || !strings.Contains(fmt.Sprintln(cmd.Args()...), r.match) {
			return next(ctx, cmd)
		}
		if r.effect {
			if err := next(ctx, cmd); redis.HasErrorPrefix(err, "NOSCRIPT") {
				return err
			}
		} else if cmd.Name() == "evalsha" { // let the script be known first
			cmd.SetErr(proto("NOSCRIPT No matching script"))
			return cmd.Err()
		}
		r.args = cmd.Args()
		cmd.SetErr(errCut)
		return errCut
	}
}

func (r *recording) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// proto is an error as Redis answers it.
type proto string

func (p proto) Error() string { return string(p) }
func (proto) RedisError()     {}
