// Package lease is what an attempt holds while it works on a run, and how the
// packages that write for the attempt find it.
//
// package idempotent makes leases; package checkpoint and package orchestrator
// ask them before they write and report what Redis said. None of them needs
// the others for that.
package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nexuscore/onceq/internal/scope"
)

// The two answers that are neither yes nor no.
var (
	// ErrLost says that the lease was ours and is no longer.
	ErrLost = errors.New("onceq: lease lost")
	// ErrUnavailable says that Redis gave no answer, or an error for one: the command may
	// or may not have taken effect.
	ErrUnavailable = errors.New("onceq: redis unavailable, cannot tell")
)

var errEnded = fmt.Errorf("%w: the attempt has ended", ErrLost)

// Config is what is known of an attempt when it begins. It never changes, but for the
// snapshot.
type Config struct {
	Prefix      string // tenant prefix of the guard
	Key         string // run key as the host gave it
	Base        string // runkey.Base(Prefix, Key)
	Owner       string // random, new for each attempt
	Token       int64  // fencing token, larger than that of any earlier attempt
	Attempt     int    // 1 for the first attempt of a generation
	Generation  int    // 1 for the first; Rerun adds one
	Fingerprint string // of the payload
	// Stamp changes when what earlier attempts stored must not be used: another
	// payload, or a rerun from scratch. Snapshots and steps carry it.
	Stamp string
	// Snapshot is the checkpoint as begin read it; nil when there was none, and once
	// it was taken. It saves checkpoint a round trip.
	Snapshot []byte
	// TTL is how long Redis keeps the lease after each extension.
	TTL time.Duration
	// Rest is how long the run may rest between two attempts: what an attempt leaves
	// behind for the next must live that long.
	Rest time.Duration
	// Margin is how long before Redis would expire it the lease counts as lost.
	Margin time.Duration
}

// Lease is safe for concurrent use.
type Lease struct {
	Config

	cancel context.CancelCauseFunc
	ended  chan struct{}
	root   scope.Scope

	mu       sync.Mutex // guards the fields below
	deadline time.Time  // monotonic; past it the lease cannot be proven
	err      error      // why it is over; nil while held
	timer    *time.Timer
	progress time.Time
	steps    map[string]struct{}
	taken    bool
}

// New returns a lease whose begin command was sent at sent, and the context
// under which the attempt works: it ends with the lease's error as its cause.
// The caller ends the lease with End.
func New(ctx context.Context, c Config, sent time.Time) (context.Context, *Lease) {
	ctx, cancel := context.WithCancelCause(ctx)
	l := &Lease{Config: c, cancel: cancel, ended: make(chan struct{}), progress: sent}
	l.deadline = sent.Add(c.TTL - c.Margin)
	l.mu.Lock() // the timer of a deadline in the past fires before it is assigned
	l.timer = time.AfterFunc(time.Until(l.deadline), l.expire)
	l.mu.Unlock()
	return context.WithValue(ctx, ctxKey{}, l), l
}

type ctxKey struct{}

// FromContext returns the lease of the attempt that ctx belongs to.
func FromContext(ctx context.Context) (*Lease, bool) {
	l, ok := ctx.Value(ctxKey{}).(*Lease)
	return l, ok
}

// Scope is the attempt's own scope, for calls under a context without another.
func (l *Lease) Scope() *scope.Scope { return &l.root }

// Err is nil while the lease is provably held; else it wraps ErrLost. Whoever
// writes for the attempt asks first, and lets Redis decide all the same.
func (l *Lease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil && !time.Now().Before(l.deadline) {
		l.loseLocked(errTooLong)
	}
	return l.err
}

var errTooLong = errors.New("not extended in time")

// Renewed records that Redis accepted an extension whose command was sent at
// sent: the clock starts when the command left, not when the reply came.
func (l *Lease) Renewed(sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := sent.Add(l.TTL - l.Margin)
	if l.err != nil || !d.After(l.deadline) {
		return
	}
	l.deadline = d
	l.timer.Reset(time.Until(d))
}

// Lose records that the lease is gone, and ends the attempt's context.
func (l *Lease) Lose(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loseLocked(why)
}

func (l *Lease) loseLocked(why error) {
	if l.err != nil {
		return
	}
	if errors.Is(why, ErrLost) {
		l.err = why
	} else {
		l.err = fmt.Errorf("%w: %w", ErrLost, why)
	}
	l.timer.Stop()
	l.cancel(l.err)
}

func (l *Lease) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if d := time.Until(l.deadline); d > 0 {
		l.timer.Reset(d) // renewed while the timer was already firing
		return
	}
	l.loseLocked(errTooLong)
}

// End says that the attempt is over: a goroutine it left behind can write
// nothing more. It reports whether the lease was still held.
func (l *Lease) End() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := l.err == nil
	l.loseLocked(errEnded)
	select {
	case <-l.ended:
	default:
		close(l.ended)
	}
	return held
}

// Ended is closed when the attempt is over.
func (l *Lease) Ended() <-chan struct{} { return l.ended }

// Remaining is how long the lease can still be proven; never negative.
func (l *Lease) Remaining() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return 0
	}
	return max(0, time.Until(l.deadline))
}

// Progressed records that the attempt got something done.
func (l *Lease) Progressed() {
	l.mu.Lock()
	l.progress = time.Now()
	l.mu.Unlock()
}

// LastProgress is when the attempt last got something done.
func (l *Lease) LastProgress() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.progress
}

// TakeSnapshot returns Snapshot the first time it is called. Later the attempt
// may have saved another one, and ok is false: ask Redis.
func (l *Lease) TakeSnapshot() (snapshot []byte, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.taken {
		return nil, false
	}
	snapshot, l.taken, l.Snapshot = l.Snapshot, true, nil // megabytes, which the attempt must not keep
	return snapshot, true
}

// HoldsSteps records a Redis key of memoised steps that finish must drop.
func (l *Lease) HoldsSteps(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.steps == nil {
		l.steps = map[string]struct{}{}
	}
	l.steps[key] = struct{}{}
}

// DropsSteps records that a key given to HoldsSteps is gone.
func (l *Lease) DropsSteps(key string) {
	l.mu.Lock()
	delete(l.steps, key)
	l.mu.Unlock()
}

// StepKeys lists the keys that are held.
func (l *Lease) StepKeys() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	keys := make([]string, 0, len(l.steps))
	for k := range l.steps {
		keys = append(keys, k)
	}
	return keys
}
