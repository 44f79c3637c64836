package llmcache

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/internal/lease"
	"github.com/nexuscore/onceq/internal/script"
)

//go:embed begin.lua
var beginLua string

//go:embed extend.lua
var extendLua string

//go:embed finish.lua
var finishLua string

//go:embed abandon.lua
var abandonLua string

//go:embed count.lua
var countLua string

var (
	beginScript   = redis.NewScript(beginLua)
	extendScript  = redis.NewScript(extendLua)
	finishScript  = redis.NewScript(finishLua)
	abandonScript = redis.NewScript(abandonLua)
	countScript   = redis.NewScript(countLua)
)

// redisStore is the Store on Redis. Each method is one script, Sums two round
// trips.
type redisStore struct{ run *script.Runner }

func newRedisStore(rdb redis.UniversalClient) *redisStore {
	return &redisStore{script.NewRunner(rdb)}
}

func (s *redisStore) Begin(ctx context.Context, slot Slot, c Claim) (Begun, error) {
	keys := []string{slot.Key, slot.lease(), slot.flights(), slot.once(c.Owner)}
	v, err := s.run.Run(ctx, beginScript, slot.withBook(keys), c.Owner, c.Lease.Milliseconds(), slot.ID, c.Note,
		c.Keep.Milliseconds(), c.Touch.Milliseconds(), flag(c.Renew), flag(c.Refuse),
		c.Limit.Calls, c.Limit.Tokens, c.Limit.CostMicros, c.Fence)
	if err != nil {
		return Begun{}, err
	}
	reply, _ := v.([]any)
	if len(reply) < 2 {
		return Begun{}, odd("begin", v)
	}
	text, _ := reply[1].(string)
	number, _ := reply[1].(int64)
	switch reply[0] {
	case "found":
		ttl, ok := reply[len(reply)-1].(int64)
		if len(reply) != 3 || !ok {
			return Begun{}, odd("begin", v)
		}
		return Begun{State: StateFound, Data: []byte(text), TTL: millis(ttl)}, nil
	case "mine":
		return Begun{State: StateMine, Note: text}, nil
	case "held":
		return Begun{State: StateHeld, TTL: millis(number)}, nil
	case "ambiguous":
		return Begun{State: StateAmbiguous, Note: text}, nil
	case "spent":
		totals, err := s.Sums(ctx, slot.Book)
		return Begun{State: StateSpent, Totals: totals}, err
	}
	return Begun{}, odd("begin", v)
}

func (s *redisStore) Extend(ctx context.Context, slot Slot, owner string, ttl time.Duration) (bool, error) {
	return s.yes(ctx, extendScript, []string{slot.lease(), slot.flights()}, owner, ttl.Milliseconds(), slot.ID)
}

func (s *redisStore) Finish(ctx context.Context, slot Slot, owner string, a Stored) (bool, error) {
	args := []any{owner, slot.ID, a.Data, a.TTL.Milliseconds(), a.Keep.Milliseconds()}
	a.Cost.fields(func(name string, n int64) { args = append(args, name, n) })
	return s.yes(ctx, finishScript, slot.withBook([]string{slot.Key, slot.lease(), slot.flights()}), args...)
}

func (s *redisStore) Abandon(ctx context.Context, slot Slot, owner string, cost Account, keep time.Duration) error {
	args := []any{owner, slot.ID, keep.Milliseconds()}
	cost.fields(func(name string, n int64) { args = append(args, name, n) })
	_, err := s.yes(ctx, abandonScript, slot.withBook([]string{slot.lease(), slot.flights()}), args...)
	return err
}

func (s *redisStore) Count(ctx context.Context, key, id string, add Account, ttl time.Duration) error {
	args := []any{ttl.Milliseconds()}
	add.fields(func(name string, n int64) { args = append(args, name, n) })
	if len(args) == 1 {
		return nil
	}
	_, err := s.yes(ctx, countScript, []string{key, key + ":once:" + id}, args...)
	return err
}

// Sums asks twice: which leases to look at stands in the in-flight records.
func (s *redisStore) Sums(ctx context.Context, key string) (Account, error) {
	rdb := s.run.Client()
	pipe := rdb.Pipeline()
	sums, flights := pipe.HGetAll(ctx, key), pipe.HGetAll(ctx, key+":flights")
	if _, err := pipe.Exec(ctx); err != nil {
		return Account{}, unavailable(err)
	}
	var a Account
	for name, value := range sums.Val() {
		if p := a.field(name); p != nil {
			*p, _ = strconv.ParseInt(value, 10, 64)
		}
	}
	if len(flights.Val()) == 0 {
		return a, nil
	}
	pipe = rdb.Pipeline()
	held := make([]*redis.IntCmd, 0, len(flights.Val()))
	for id, record := range flights.Val() {
		_, rest, _ := strings.Cut(record, " ") // "<owner> <fence> <note>"
		_, note, _ := strings.Cut(rest, " ")
		a.Open = append(a.Open, openCall(id, note))
		held = append(held, pipe.Exists(ctx, key+":"+id+":lease"))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return Account{}, unavailable(err)
	}
	for i := range held {
		a.Open[i].Held = held[i].Val() == 1
	}
	sortOpen(a.Open)
	return a, nil
}

func (s *redisStore) yes(ctx context.Context, sc *redis.Script, keys []string, args ...any) (bool, error) {
	v, err := s.run.Run(ctx, sc, keys, args...)
	return v == int64(1), err
}

func odd(what string, v any) error { return fmt.Errorf("llmcache: %s script answered %v", what, v) }

func unavailable(err error) error { return fmt.Errorf("%w: %w", lease.ErrUnavailable, err) }

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

// note is what an in-flight record says of a call.
type note struct {
	Model string `json:"model,omitempty"`
	Label string `json:"label,omitempty"`
	Since int64  `json:"since"` // Unix ms
}

// openCall reads a note; one that cannot be read is a call all the same.
func openCall(id, text string) OpenCall {
	var n note
	_ = json.Unmarshal([]byte(text), &n)
	return OpenCall{ID: id, Model: n.Model, Label: n.Label, Since: time.UnixMilli(n.Since)}
}
