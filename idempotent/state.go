package idempotent

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/internal/lease"
	"github.com/nexuscore/onceq/internal/runkey"
	"github.com/nexuscore/onceq/internal/setting"
)

// State is what the record of a run says.
type State int

const (
	StateUnknown   State = iota // no record: never enqueued by a Producer and never begun, or forgotten
	StateQueued                 // enqueued, no attempt has begun in this generation
	StateRunning                // an attempt has begun and has not ended; without a lease it has died
	StateRetrying               // an attempt has ended, another will follow
	StateSucceeded              // terminal
	StateFailed                 // terminal until Rerun
)

var stateNames = [...]string{"unknown", "queued", "running", "retrying", "succeeded", "failed"}

// String returns the state in lower case.
func (s State) String() string {
	if s < 0 || int(s) >= len(stateNames) {
		return "state " + strconv.Itoa(int(s))
	}
	return stateNames[s]
}

func parseState(s string) State {
	for i, name := range stateNames {
		if name == s {
			return State(i)
		}
	}
	return StateUnknown
}

// Run is what Redis knows of a run.
type Run struct {
	Key         string
	State       State
	Generation  int
	Attempt     int   // attempts begun in this generation
	Crashes     int   // attempts of this generation that died without an outcome since a phase was saved
	Token       int64 // fencing token of the last attempt
	Holder      string
	LeaseLeft   time.Duration // zero: no attempt holds the lease
	Began       time.Time     // when the last attempt began; zero if none did
	Ended       time.Time     // when the outcome was written; zero if there is none
	RetryAt     time.Time     // when a retrying run is due
	Reason      string        // why the last attempt failed
	Delivery    string        // asynq task ID of the delivery that the last attempt came with
	Fingerprint string        // of the task that has the key; see Fingerprint
	Result      []byte        // what SetResult left; nil for none
}

// Lookup reads what Redis knows of a run. A run without a record has the state
// StateUnknown and no error; an error wraps ErrUnavailable, or ErrInvalid for a bad key.
// It takes 3 s at most, whatever the client's own timeouts.
func (g *Guard) Lookup(ctx context.Context, key string) (Run, error) {
	if err := runkey.Validate(key); err != nil {
		return Run{}, setting.Invalidf("%w", err)
	}
	found, err := within(ctx, g.opTimeout, func(ctx context.Context) (found, error) { return g.find(ctx, key) })
	if err != nil {
		g.run.LookAround(ctx, err)
		return Run{}, fmt.Errorf("lookup of run %q: %w: %w", key, lease.ErrUnavailable, err)
	}
	f := found.record
	r := Run{
		Key: key, State: parseState(f["state"]), Generation: int(atoi(f["gen"])), Attempt: int(atoi(f["attempt"])),
		Crashes: int(atoi(f["crashes"])), Token: atoi(f["token"]), Reason: f["reason"], Delivery: f["delivery"], Fingerprint: f["fp"],
		Began: unixMilli(f["began"]), Ended: unixMilli(f["ended"]), RetryAt: unixMilli(f["retry_at"]),
		LeaseLeft: max(0, found.left),
	}
	if r.State != StateSucceeded && r.State != StateFailed { // that of an older generation
		r.Ended = time.Time{}
	}
	if r.State != StateRetrying {
		r.RetryAt = time.Time{}
	}
	if r.LeaseLeft > 0 {
		r.Holder = f["process"]
	}
	if s, ok := f["result"]; ok {
		r.Result = []byte(s)
	}
	return r, nil
}

type found struct {
	record map[string]string
	left   time.Duration // of the lease
}

func (g *Guard) find(ctx context.Context, key string) (found, error) {
	base := g.base(key)
	var fields *redis.MapStringStringCmd
	var left *redis.DurationCmd
	_, err := g.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		fields = p.HGetAll(ctx, recordKey(base))
		left = p.PTTL(ctx, runkey.Lock(base))
		return nil
	})
	if err != nil {
		return found{}, err
	}
	return found{fields.Val(), left.Val()}, nil
}

func unixMilli(s string) time.Time {
	if n := atoi(s); n > 0 {
		return time.UnixMilli(n)
	}
	return time.Time{}
}
