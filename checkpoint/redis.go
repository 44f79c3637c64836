package checkpoint

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/internal/breaker"
	"github.com/nexuscore/onceq/internal/lease"
	"github.com/nexuscore/onceq/internal/script"
	"github.com/nexuscore/onceq/internal/setting"
)

var (
	//go:embed load.lua
	loadLua string
	//go:embed save.lua
	saveLua string
	//go:embed steps.lua
	stepsLua string
	//go:embed step.lua
	stepLua string
	//go:embed clear.lua
	clearLua string

	loadScript  = redis.NewScript(loadLua)
	saveScript  = redis.NewScript(saveLua)
	stepsScript = redis.NewScript(stepsLua)
	stepScript  = redis.NewScript(stepLua)
	clearScript = redis.NewScript(clearLua)
)

// RedisStore is a [Store] on Redis 6.2 or later, alone, with Sentinel or as a
// cluster. Build one with [NewRedisStore] and share it: it counts, and leaves a
// server alone for a while when it does not answer. It starts no goroutine that
// outlives its calls and needs no closing.
type RedisStore struct {
	run     *script.Runner
	cfg     config
	count   counters
	brk     breaker.Config
	servers script.PerServer[server]
}

// NewRedisStore returns a store on rdb, which must be the Redis that the guard
// keeps its leases on. The options are the defaults of the runs on the store.
// The error wraps [ErrInvalid] and names the option.
func NewRedisStore(rdb redis.UniversalClient, opts ...Option) (*RedisStore, error) {
	if setting.IsNil(rdb) {
		return nil, setting.Invalidf("NewRedisStore: the client is nil")
	}
	s := &RedisStore{run: script.NewRunner(rdb), cfg: defaults()}
	if err := s.cfg.apply(opts); err != nil {
		return nil, err
	}
	s.brk = breaker.Config{
		Name:   "checkpoint",
		Logger: slog.New(slog.DiscardHandler), // two lines an outage, not two a minute: see note
	}
	if s.cfg.breaker != nil {
		s.brk.Failures, s.brk.Open = uint32(s.cfg.breaker.failures), s.cfg.breaker.open
		s.cfg.breaker = nil
	}
	return s, nil
}

// Stats returns what happened on this store since it was built, in this process.
func (s *RedisStore) Stats() Stats { return s.count.stats() }

func (s *RedisStore) shared() (config, *counters) { return s.cfg, &s.count }

// trouble reports whether an error is no answer.
func trouble(err error) bool {
	return err != nil && !errors.Is(err, ErrLeaseLost) && !errors.Is(err, ErrHeld)
}

// Load implements [Store]. Under a lease the first snapshot is the one that came
// with the lease, without a round trip.
func (s *RedisStore) Load(ctx context.Context, run Ref) ([]byte, bool, error) {
	if l := holder(ctx, run); l != nil {
		if snapshot, ok := l.TakeSnapshot(); ok {
			return snapshot, snapshot != nil, nil
		}
	}
	reply, err := s.list(ctx, run, loadScript, []string{lockKey(run), snapshotKey(run)}, run.Owner)
	if err != nil || len(reply) == 0 {
		return nil, false, err
	}
	snapshot, ok := reply[0].(string)
	if !ok {
		return nil, false, unexpected(reply)
	}
	return []byte(snapshot), true, nil
}

// Save implements [Store].
func (s *RedisStore) Save(ctx context.Context, run Ref, phase string, snapshot []byte) error {
	steps := stepsKey(run, phase)
	err := s.write(ctx, run, saveScript, []string{lockKey(run), snapshotKey(run), steps},
		run.Owner, snapshot, run.TTL.Milliseconds(), run.LeaseTTL.Milliseconds())
	if l := holder(ctx, run); l != nil && err == nil {
		l.DropsSteps(steps)
	}
	return err
}

// stepsAtOnce bounds what one reply of LoadSteps carries: much more would take longer
// than the timeout of a call.
const stepsAtOnce = 4 << 20

// LoadSteps implements [Store]. It is one round trip for up to 4 MB of results, and one
// for each 4 MB more; WithTimeout bounds each.
func (s *RedisStore) LoadSteps(ctx context.Context, run Ref, phase, basis string) (map[string][]byte, error) {
	steps := stepsKey(run, phase)
	if l := holder(ctx, run); l != nil {
		l.HoldsSteps(steps)
	}
	results := map[string][]byte{}
	args := []any{run.Owner, basis, stepsAtOnce}
	for {
		short, cancel := context.WithTimeout(ctx, s.cfg.timeout)
		reply, err := s.list(short, run, stepsScript, []string{lockKey(run), steps}, args...)
		cancel()
		switch {
		case err != nil:
			return nil, err
		case len(reply) == 0:
			return results, nil
		case len(reply) != 2:
			return nil, unexpected(reply)
		}
		found, ok1 := reply[0].([]any)
		rest, ok2 := reply[1].([]any)
		if !ok1 || !ok2 || len(found)%2 != 0 {
			return nil, unexpected(reply)
		}
		for i := 0; i < len(found); i += 2 {
			name, ok1 := found[i].(string)
			result, ok2 := found[i+1].(string)
			if !ok1 || !ok2 {
				return nil, unexpected(reply)
			}
			results[name] = []byte(result)
		}
		if len(rest) == 0 {
			return results, nil
		}
		args = append(args[:3:3], rest...)
	}
}

// SaveStep implements [Store].
func (s *RedisStore) SaveStep(ctx context.Context, run Ref, phase, basis, step string, result []byte) error {
	steps := stepsKey(run, phase)
	if l := holder(ctx, run); l != nil {
		l.HoldsSteps(steps) // before it is sent: the reply may be lost
	}
	return s.write(ctx, run, stepScript, []string{lockKey(run), steps, snapshotKey(run)},
		run.Owner, basis, step, result, run.TTL.Milliseconds(), run.LeaseTTL.Milliseconds())
}

// Clear implements [Store].
func (s *RedisStore) Clear(ctx context.Context, run Ref, phases []string) error {
	keys := make([]string, 0, 2+len(phases))
	keys = append(keys, lockKey(run), snapshotKey(run))
	for _, p := range phases {
		keys = append(keys, stepsKey(run, p))
	}
	reply, err := s.call(ctx, clearScript, keys, run.Owner)
	if err != nil {
		return err
	}
	if reply != int64(1) {
		return refused(run)
	}
	return nil
}

// write runs a script that extends the lease, and tells the lease.
func (s *RedisStore) write(ctx context.Context, run Ref, sc *redis.Script, keys []string, args ...any) error {
	sent := time.Now()
	reply, err := s.call(ctx, sc, keys, args...)
	if err != nil {
		return err
	}
	if reply != int64(1) {
		return refused(run)
	}
	if l := holder(ctx, run); l != nil {
		l.Renewed(sent)
	}
	return nil
}

// list runs a script that answers {0} or {1, ...}, and returns what follows.
func (s *RedisStore) list(ctx context.Context, run Ref, sc *redis.Script, keys []string, args ...any) ([]any, error) {
	reply, err := s.call(ctx, sc, keys, args...)
	if err != nil {
		return nil, err
	}
	items, ok := reply.([]any)
	switch {
	case !ok || len(items) == 0:
		return nil, unexpected(reply)
	case items[0] != int64(1):
		return nil, refused(run)
	}
	return items[1:], nil
}

func (s *RedisStore) call(ctx context.Context, sc *redis.Script, keys []string, args ...any) (reply any, err error) {
	srv := s.server(keys[0])
	err = srv.brk.Do(func() error {
		reply, err = s.run.Run(ctx, sc, keys, args...)
		return err
	})
	srv.note(err)
	if err != nil && !errors.Is(err, ErrUnavailable) {
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return reply, err
}

// holder returns the lease in ctx if it is the one that run is held by.
func holder(ctx context.Context, run Ref) *lease.Lease {
	if l, ok := lease.FromContext(ctx); ok && l.Base == run.Base && l.Owner == run.Owner {
		return l
	}
	return nil
}

func refused(run Ref) error {
	if run.Owner == "" {
		return ErrHeld
	}
	return ErrLeaseLost
}

func unexpected(reply any) error {
	return fmt.Errorf("%w: unexpected reply of type %T from a script", ErrUnavailable, reply)
}
