package notify

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nexuscore/onceq/internal/database"
)

// ErrRunning is returned by [Outbox.Run] when this outbox is running already.
var ErrRunning = errors.New("notify: the outbox is running already")

// settleTime bounds how long the result of an attempt is written after the
// dispatcher was told to stop, while the database does not answer.
const settleTime = 10 * time.Second

// session is one time of running: its goroutines, and how to end them.
type session struct {
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// Run sends what is due until ctx ends. Then it begins nothing more, lets
// the attempts under way finish, writes their results, and returns nil: within
// the send timeout plus 10 s. A destination that ignores its context is
// abandoned after that, with an error that names it; its row becomes uncertain.
//
// Before it begins, Run makes sure that the table has its unique index: an
// error means that it does not, and that nothing was sent. Database trouble is
// no reason to return; it is logged, and tried again.
func (o *Outbox) Run(ctx context.Context) error {
	if err := o.ready(ctx); err != nil {
		return err
	}
	s := o.start(ctx)
	if s == nil {
		return ErrRunning
	}
	<-ctx.Done()
	return o.end(s)
}

// Kick makes a running outbox read the table now, for example after the host's
// commit. It never blocks, and does nothing while the outbox is not running.
func (o *Outbox) Kick() {
	for _, l := range o.lanes {
		l.wake()
	}
}

// Drain sends until no row of the outbox's destinations is pending, sending or
// uncertain, for programs that end and for tests; rows that wait for a later
// time are waited for. It works beside Run as well as instead of it. When ctx
// ends first, the error wraps its cause and says how many rows are left; what was
// under way ends as with Run.
func (o *Outbox) Drain(ctx context.Context) (err error) {
	if err := o.ready(ctx); err != nil {
		return err
	}
	o.Kick()
	left := "an unknown number of"
	for {
		if s := o.start(ctx); s != nil { // again if a Run beside it ended
			defer func() { err = errors.Join(err, o.end(s)) }()
		}
		n, err := o.store.open(ctx, o.destinations())
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("notify: Drain: %s notifications are left: %w", left, context.Cause(ctx))
		case err != nil:
			o.logger.WarnContext(ctx, "notify: cannot read the outbox", "err", err)
		case n == 0:
			return nil
		default:
			left = strconv.FormatInt(n, 10)
		}
		database.Pause(ctx, min(o.poll, 50*time.Millisecond))
	}
}

// start starts the goroutines, unless they run already.
func (o *Outbox) start(ctx context.Context) *session {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.running != nil {
		return nil
	}
	ctx, stop := context.WithCancel(ctx)
	s := &session{stop: stop}
	o.running = s
	for _, l := range o.lanes {
		s.wg.Go(func() { l.run(ctx, &s.wg) })
	}
	s.wg.Go(func() { o.sweep(ctx) })
	return s
}

// end stops the goroutines and waits for them, as long as is reasonable.
func (o *Outbox) end(s *session) error {
	s.stop()
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	t := time.NewTimer(o.sendTimeout + settleTime + time.Second)
	defer t.Stop()
	var err error
	select {
	case <-done:
	case <-t.C:
		err = o.hung()
	}
	o.mu.Lock()
	o.running = nil
	o.mu.Unlock()
	return err
}

func (o *Outbox) hung() error {
	var errs []error
	for _, l := range o.lanes {
		if n := len(l.slots); n > 0 {
			errs = append(errs, fmt.Errorf("notify: destination %q ignores its context: %d calls abandoned", l.name, n))
		}
	}
	return errors.Join(errs...)
}

// sweep finds rows whose worker died: their lease is over and nobody said what
// became of them. It is apart from the lanes, which a destination may block.
func (o *Outbox) sweep(ctx context.Context) {
	compared := time.Now()
	for ctx.Err() == nil {
		if time.Since(compared) > time.Minute {
			o.store.compare(ctx)
			compared = time.Now()
		}
		rows, err := o.store.expired(ctx, o.destinations(), sweepBatch)
		if err != nil && ctx.Err() == nil {
			o.logger.WarnContext(ctx, "notify: cannot read the outbox", "err", err)
		}
		for i := range rows {
			r := &rows[i]
			if _, known := o.settling.Load(r.ID); !known { // else we are about to write it
				o.lane(r.Destination).doubt(ctx, r, errLeaseOver)
			}
		}
		if len(rows) < sweepBatch {
			database.Pause(ctx, o.poll)
		}
	}
}

const sweepBatch = 100

var errLeaseOver = errors.New("the worker that was sending it did not come back")

func (o *Outbox) destinations() []string {
	names := make([]string, len(o.lanes))
	for i, l := range o.lanes {
		names[i] = l.name
	}
	return names
}
