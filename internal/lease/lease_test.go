package lease_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/nexuscore/onceq/internal/lease"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T) (context.Context, *lease.Lease) {
	return lease.New(t.Context(), lease.Config{TTL: 30 * time.Second, Margin: 3 * time.Second}, time.Now())
}

func TestExpiresAtItsMonotonicDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, l := start(t)
		time.Sleep(27*time.Second - time.Nanosecond)
		if err := l.Err(); err != nil {
			t.Fatalf("just before the deadline: %v, want held", err)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if !errors.Is(l.Err(), lease.ErrLost) || !errors.Is(context.Cause(ctx), lease.ErrLost) {
			t.Fatalf("at the deadline: err %v, cause %v; want ErrLost for both", l.Err(), context.Cause(ctx))
		}
	})
}

func TestRenewedCountsFromWhenTheCommandLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, l := start(t)
		time.Sleep(10 * time.Second)
		sent := time.Now()
		time.Sleep(5 * time.Second) // a slow reply
		l.Renewed(sent)
		l.Renewed(sent.Add(-time.Second)) // an older reply that arrives late changes nothing
		if got, want := l.Remaining(), 22*time.Second; got != want {
			t.Fatalf("Remaining() = %v, want %v", got, want)
		}
		time.Sleep(22 * time.Second)
		synctest.Wait()
		if !errors.Is(context.Cause(ctx), lease.ErrLost) {
			t.Fatalf("cause = %v, want ErrLost", context.Cause(ctx))
		}
		l.Renewed(time.Now())
		if l.Err() == nil {
			t.Fatal("a lost lease came back to life")
		}
	})
}

func TestErrDoesNotWaitForTheTimer(t *testing.T) {
	// A process that was frozen wakes past the deadline, before any timer ran.
	ctx, l := lease.New(t.Context(), lease.Config{TTL: time.Second, Margin: time.Millisecond}, time.Now().Add(-2*time.Second))
	if !errors.Is(l.Err(), lease.ErrLost) {
		t.Fatalf("Err() = %v, want ErrLost", l.Err())
	}
	<-ctx.Done()
}

func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, l := start(t)
		if !l.End() {
			t.Error("End() = false for a held lease")
		}
		if l.End() {
			t.Error("End() = true the second time")
		}
		<-l.Ended()
		if !errors.Is(l.Err(), lease.ErrLost) || ctx.Err() == nil {
			t.Errorf("after End: err %v, ctx %v; want refused and cancelled", l.Err(), ctx.Err())
		}
	})
}

func TestLoseKeepsItsFirstReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, l := start(t)
		evicted := errors.New("evicted")
		l.Lose(evicted)
		l.Lose(errors.New("later"))
		if !errors.Is(l.Err(), evicted) || !errors.Is(l.Err(), lease.ErrLost) {
			t.Errorf("Err() = %v, want ErrLost for %v", l.Err(), evicted)
		}
		if context.Cause(ctx) != l.Err() {
			t.Errorf("cause = %v, want %v", context.Cause(ctx), l.Err())
		}
		if l.End() {
			t.Error("End() = true for a lost lease")
		}
	})
}

func TestSnapshotIsTakenOnce(t *testing.T) {
	_, l := lease.New(t.Context(), lease.Config{TTL: time.Minute, Snapshot: []byte("s")}, time.Now())
	defer l.End()
	if got, ok := l.TakeSnapshot(); !ok || string(got) != "s" {
		t.Errorf("first: %q, %v; want s, true", got, ok)
	}
	if got, ok := l.TakeSnapshot(); ok || got != nil {
		t.Errorf("second: %q, %v; want nothing: it may be old", got, ok)
	}
	if l.Snapshot != nil {
		t.Error("the lease keeps what may be megabytes")
	}
}
