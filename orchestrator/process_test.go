package orchestrator_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"
)

// process is a worker process of a world with connections of its own. Once it is dead
// nothing that it does reaches Redis or the database.
type process struct {
	*world
	dead      atomic.Bool // Redis
	deadStore atomic.Bool // the database
}

var errDead = errors.New("the process is dead")

// newProcess starts one beside w's own, on the same Redis and database.
func (w *world) newProcess(s setup) *process {
	w.t.Helper()
	p := &process{}
	rdb := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:6379", Protocol: 2, DisableIdentity: true, MaxRetries: -1,
		Dialer: func(context.Context, string, string) (net.Conn, error) { return w.mini.Dial() },
	})
	w.t.Cleanup(func() { _ = rdb.Close() })
	rdb.AddHook(deadRedis{&p.dead})
	db := w.base.Open(w.t)
	check := func(tx *gorm.DB) {
		if p.deadStore.Load() {
			_ = tx.AddError(errDead)
		}
	}
	cb := db.Callback()
	w.must(cb.Create().Before("gorm:create").Register("dead", check))
	w.must(cb.Query().Before("gorm:query").Register("dead", check))
	w.must(cb.Update().Before("gorm:update").Register("dead", check))
	w.must(cb.Raw().Before("gorm:raw").Register("dead", check))
	w.must(cb.Row().Before("gorm:row").Register("dead", check))
	p.world = &world{t: w.t, base: w.base, mini: w.mini, rdb: rdb, db: db, team: &team{}}
	p.assemble(s)
	return p
}

func (p *process) die() { p.dead.Store(true); p.deadStore.Store(true) }

// dieIn kills the process in the middle of a phase; it does nothing after that.
func (p *process) dieIn(phase string) func(context.Context, string, int) error {
	return func(_ context.Context, now string, _ int) error {
		if now == phase {
			p.die()
		}
		if p.dead.Load() {
			return errDead
		}
		return nil
	}
}

type deadRedis struct{ dead *atomic.Bool }

func (d deadRedis) DialHook(next redis.DialHook) redis.DialHook { return next }

func (d deadRedis) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if d.dead.Load() {
			cmd.SetErr(errDead)
			return errDead
		}
		return next(ctx, cmd)
	}
}

func (d deadRedis) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if d.dead.Load() {
			for _, c := range cmds {
				c.SetErr(errDead)
			}
			return errDead
		}
		return next(ctx, cmds)
	}
}
