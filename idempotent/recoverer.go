package idempotent

import (
	"context"
	"sync"
	"time"

	"github.com/nexuscore/onceq/internal/setting"
	"github.com/redis/go-redis/v9"
)

// Recoverer gives runs whose worker died a new delivery, in seconds instead of the
// one to two minutes that asynq takes. Run one in every worker process, started
// with the server and shut down after it.
//
// It looks at three kinds of runs:
//
//   - Those whose lease has expired without an outcome, by Redis' clock alone. They
//     begin their next attempt on a living worker within the lease's TTL and about
//     two seconds.
//   - Those of a process that is gone. Each Recoverer holds one subscription; a
//     process whose subscription is missing in two looks, two seconds apart, is taken
//     for dead and its leases are broken. At default settings a killed worker's run
//     begins its next attempt within 5 s. A lost machine, a cut network and a frozen
//     process do not close their connections: they wait for the TTL.
//   - Those that wait for a retry, but whose task asynq has archived or lost.
//
// A run is found by an index, so a look costs one script call, however many runs are
// live. The new delivery carries the type, payload, queue, timeout and deadline of
// the last one and what is left of its retries, which a crash does not use up; other
// headers of the task survive while asynq still has it. A run that cannot be helped
// (its deadline is over, its retries are spent, asynq gave up eight new deliveries, its
// payload is over 64 KiB and its task gone) is failed with the reason, and WithOnFailed's function
// is called with an error that matches ErrOrphaned. Crashes are counted by the
// attempts themselves, see WithMaxCrashes.
//
// What is promised: no run that has begun in a queue rests for ever while a Recoverer
// runs and Redis keeps its data; of many Recoverers one delivers; dying at any point
// loses nothing. A wrong guess costs a repeated phase and counts as a crash: a second
// delivery finds the run held, and an attempt whose lease was broken is refused at its
// next write. What is not: a run that was enqueued and never begun is asynq's own
// affair (see ServerConfig for the one whose deadline passes), or that of a table of
// runs; and on Redis Cluster and Ring, where the index is written beside the lease and
// not with it, a process that dies in the millisecond between the two leaves its run
// to asynq's recovery.
//
// Presence needs SUBSCRIBE, and PUBSUB NUMSUB from scripts. A Redis or an ACL that
// refuses them turns it off, said once, and the TTL decides alone.
//
// A Recoverer is safe for concurrent use.
type Recoverer struct {
	g        *Guard
	id       string // names its claims
	interval time.Duration
	batch    int
	presence *presence

	mu     sync.Mutex // guards the two below
	cancel context.CancelFunc
	closed bool

	work sync.WaitGroup // the goroutines that Start owns
	down bool           // the last look failed; only the loop uses it
}

// RecovererOption sets up a Recoverer.
type RecovererOption func(*Recoverer)

// WithInterval sets how often a Recoverer looks; it also looks when it knows that
// something falls due. 10 ms to 1 min. Defaults to 1 s, which the bounds above are for.
func WithInterval(d time.Duration) RecovererOption { return func(r *Recoverer) { r.interval = d } }

// WithBatch sets how many runs are looked at in one go; when there are more, the
// next look follows at once. 1 to 1000. Defaults to 100.
func WithBatch(n int) RecovererOption { return func(r *Recoverer) { r.batch = n } }

// WithoutPresence keeps no subscription and judges nobody by theirs: only the TTL
// decides. It saves one connection per process.
func WithoutPresence() RecovererOption { return func(r *Recoverer) { r.presence = nil } }

// NewRecoverer returns a Recoverer for the runs that g's prefix has. It does nothing
// before Start or Run. The error wraps ErrInvalid.
func NewRecoverer(g *Guard, opts ...RecovererOption) (*Recoverer, error) {
	if g == nil {
		return nil, setting.Invalidf("NewRecoverer: the guard is nil")
	}
	r := &Recoverer{g: g, id: g.process + "-" + randomID(4), interval: time.Second, batch: 100, presence: newPresence(g)}
	if err := setting.Apply(r, opts); err != nil {
		return nil, err
	}
	switch {
	case r.interval < 10*time.Millisecond || r.interval > time.Minute:
		return nil, setting.Invalidf("WithInterval: %v is not between 10ms and 1m", r.interval)
	case r.batch < 1 || r.batch > 1000:
		return nil, setting.Invalidf("WithBatch: %d is not between 1 and 1000", r.batch)
	}
	return r, nil
}

// Start begins to look, in the background, until Shutdown. It asks nothing of Redis
// first: one that is down now is waited for. A Recoverer starts once; the error
// wraps ErrInvalid.
func (r *Recoverer) Start() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cancel != nil || r.closed {
		return setting.Invalidf("Recoverer.Start: it was started or shut down before")
	}
	ctx, cancel := context.WithCancel(context.Background()) // ends with Shutdown
	r.cancel = cancel
	var back <-chan struct{}
	if r.presence != nil {
		back = r.presence.back
		r.work.Go(func() { r.presence.hold(ctx) })
	}
	r.work.Go(func() { r.loop(ctx, back) })
	return nil
}

// Run is Start, then Shutdown when ctx ends. It returns nil, or the error of Start.
func (r *Recoverer) Run(ctx context.Context) error {
	if err := r.Start(); err != nil {
		return err
	}
	<-ctx.Done()
	r.Shutdown()
	return nil
}

// Shutdown stops looking and waits for what is under way, WithOnFailed's function
// included. Call it after the server's Shutdown: from here on attempts that work are
// judged by the TTL of their leases, and those of handlers that ignored the server's
// shutdown give theirs up, so that their runs go on at once and count no crash. It may
// be called twice and without Start.
func (r *Recoverer) Shutdown() {
	r.mu.Lock()
	started, first := r.cancel != nil, !r.closed
	r.closed = true
	if started {
		r.cancel()
	}
	r.mu.Unlock()
	r.work.Wait()
	r.g.heart.leave()
	// A process that says goodbye must not be taken for dead.
	if started && first && r.presence != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second) // Shutdown has no context and must end
		defer cancel()
		if err := r.g.rdb.ZRem(ctx, presentKey(r.g.prefix), r.g.process).Err(); err != nil && err != redis.Nil {
			r.g.logger.Warn("onceq: recoverer could not sign off; attempts that still run may lose their lease", "err", err)
		}
	}
}

// soonest bounds how fast one look follows another.
const soonest = 10 * time.Millisecond

func (r *Recoverer) loop(ctx context.Context, back <-chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-back: // subscribed, for the first time or again: be seen
		case <-timer.C:
		}
		timer.Reset(max(soonest, min(r.interval, r.look(ctx))))
	}
}

// look is one look with all that follows from it. It returns how long to rest.
func (r *Recoverer) look(ctx context.Context) time.Duration {
	seen, err := r.scan(ctx)
	if ctx.Err() != nil {
		return r.interval
	}
	if err != nil {
		if !r.down {
			r.g.logger.Warn("onceq: recoverer cannot look for orphaned runs", "err", err)
		}
		r.down = true
		return r.interval
	}
	if r.down {
		r.g.logger.Info("onceq: recoverer looks for orphaned runs again")
	}
	r.down = false
	if r.presence != nil {
		r.presence.saw(seen.presence)
	}
	r.tend(ctx, seen.entries)
	if seen.due < 0 {
		return r.interval
	}
	return seen.due
}
