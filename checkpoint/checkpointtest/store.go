package checkpointtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nexuscore/onceq/checkpoint"
)

// Fixture is a store under test.
type Fixture struct {
	Store checkpoint.Store
	// Acquire makes the Ref's owner the holder of the run's lease, whoever held it
	// before. Leave it nil for a store that tells holders by their tokens alone.
	Acquire func(t *testing.T, run checkpoint.Ref)
	// Wait lets time pass for the store, for the checks of expiry; they are left
	// out when it is nil.
	Wait func(d time.Duration)
}

// TestStore runs the checks of the contract of [checkpoint.Store] as subtests,
// each on a store of its own from open.
func TestStore(t *testing.T, open func(t *testing.T) Fixture) {
	t.Helper()
	for _, c := range []struct {
		name  string
		check func(*suite)
	}{
		{"a run without snapshot", (*suite).empty},
		{"the last snapshot counts", (*suite).lastSnapshot},
		{"any bytes", (*suite).anyBytes},
		{"slices are not shared", (*suite).copies},
		{"runs are apart", (*suite).runsApart},
		{"steps", (*suite).steps},
		{"steps of another basis", (*suite).otherBasis},
		{"a save drops the steps of its phase alone", (*suite).saveDropsSteps},
		{"clear", (*suite).clear},
		{"everything twice", (*suite).twice},
		{"an overtaken owner changes nothing", (*suite).overtaken},
		{"the owner counts, not the value", (*suite).sameBytes},
		{"a run without a lease", (*suite).unfenced},
		{"expiry", (*suite).expiry},
		{"many goroutines", (*suite).goroutines},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.check(&suite{T: t, Fixture: open(t), ctx: t.Context()})
		})
	}
}

type suite struct {
	*testing.T
	Fixture
	ctx   context.Context
	token int64
}

// holder is a new attempt at the run, and its holder.
func (s *suite) holder(base string) checkpoint.Ref {
	s.Helper()
	s.token++
	run := checkpoint.Ref{
		Base: base, Owner: fmt.Sprintf("owner-%d", s.token), Token: s.token,
		TTL: time.Hour, LeaseTTL: time.Minute,
	}
	if s.Acquire != nil {
		s.Acquire(s.T, run)
	}
	if _, _, err := s.Store.Load(s.ctx, run); err != nil { // as every attempt begins
		s.Fatalf("Load by the holder: %v", err)
	}
	return run
}

const base = "test:{run}"

func (s *suite) save(run checkpoint.Ref, phase, snapshot string) {
	s.Helper()
	if err := s.Store.Save(s.ctx, run, phase, []byte(snapshot)); err != nil {
		s.Fatalf("Save(%s, %q): %v", phase, snapshot, err)
	}
}

func (s *suite) step(run checkpoint.Ref, phase, basis, step, result string) {
	s.Helper()
	if err := s.Store.SaveStep(s.ctx, run, phase, basis, step, []byte(result)); err != nil {
		s.Fatalf("SaveStep(%s, %s): %v", phase, step, err)
	}
}

func (s *suite) wantSnapshot(run checkpoint.Ref, want string) {
	s.Helper()
	got, found, err := s.Store.Load(s.ctx, run)
	if err != nil || !found || string(got) != want {
		s.Errorf("Load = %q, %v, %v; want %q", got, found, err, want)
	}
}

func (s *suite) wantNone(run checkpoint.Ref) {
	s.Helper()
	if got, found, err := s.Store.Load(s.ctx, run); err != nil || found {
		s.Errorf("Load = %q, %v, %v; want none", got, found, err)
	}
}

// wantSteps compares with "name=result ..." in the order of the names.
func (s *suite) wantSteps(run checkpoint.Ref, phase, basis, want string) {
	s.Helper()
	got, err := s.Store.LoadSteps(s.ctx, run, phase, basis)
	if err != nil {
		s.Errorf("LoadSteps(%s): %v", phase, err)
	}
	var list []string
	for _, name := range slices.Sorted(maps.Keys(got)) {
		list = append(list, name+"="+string(got[name]))
	}
	if have := strings.Join(list, " "); have != want {
		s.Errorf("steps of %s under %q: %q, want %q", phase, basis, have, want)
	}
}

func (s *suite) empty() {
	run := s.holder(base)
	s.wantNone(run)
	s.wantSteps(run, "p", "b", "")
}

func (s *suite) lastSnapshot() {
	run := s.holder(base)
	s.save(run, "1", "one")
	s.save(run, "2", "two")
	s.wantSnapshot(run, "two")
	s.wantSnapshot(s.holder(base), "two")
}

func (s *suite) anyBytes() {
	run := s.holder(base)
	for _, v := range []string{"", "\x00", "\xff\xfe", "a\r\nb", strings.Repeat("\x00x", 1<<19)} {
		s.save(run, "1", v)
		s.wantSnapshot(run, v)
	}
	name := "{a}:b \x01%ü"
	s.step(run, name, name, name, "\x00\xff")
	s.wantSteps(run, name, name, name+"=\x00\xff")
}

func (s *suite) copies() {
	run := s.holder(base)
	b := []byte("good")
	if err := s.Store.Save(s.ctx, run, "1", b); err != nil {
		s.Fatal(err)
	}
	if err := s.Store.SaveStep(s.ctx, run, "2", "b", "s", b); err != nil {
		s.Fatal(err)
	}
	copy(b, "evil")
	for range 2 {
		got, _, err := s.Store.Load(s.ctx, run)
		if err != nil || !bytes.Equal(got, []byte("good")) {
			s.Fatalf("Load = %q, %v; want good", got, err)
		}
		copy(got, "evil")
		steps, err := s.Store.LoadSteps(s.ctx, run, "2", "b")
		if err != nil || string(steps["s"]) != "good" {
			s.Fatalf("LoadSteps = %q, %v; want good", steps, err)
		}
		copy(steps["s"], "evil")
	}
}

func (s *suite) runsApart() {
	a, b := s.holder("test:{a}"), s.holder("test:{b}")
	s.save(a, "1", "a")
	s.step(a, "2", "x", "s", "a")
	s.wantNone(b)
	s.wantSteps(b, "2", "x", "")
	if err := s.Store.Clear(s.ctx, b, []string{"1", "2"}); err != nil {
		s.Error(err)
	}
	s.wantSnapshot(a, "a")
	s.wantSteps(a, "2", "x", "s=a")
}

func (s *suite) steps() {
	run := s.holder(base)
	s.step(run, "p", "b", "one", "1")
	s.step(run, "p", "b", "two", "")
	s.step(run, "q", "b", "one", "q")
	s.wantSteps(run, "p", "b", "one=1 two=")
	s.wantSteps(run, "q", "b", "one=q")
	s.wantSteps(s.holder(base), "p", "b", "one=1 two=") // the next attempt sees them
}

func (s *suite) otherBasis() {
	run := s.holder(base)
	s.step(run, "p", "old", "one", "1")
	s.wantSteps(run, "p", "new", "")
	s.step(run, "p", "new", "two", "2")
	s.wantSteps(run, "p", "new", "two=2")
	s.wantSteps(run, "p", "old", "")
}

func (s *suite) saveDropsSteps() {
	run := s.holder(base)
	s.step(run, "p", "b", "one", "1")
	s.step(run, "q", "b", "one", "1")
	s.save(run, "p", "x")
	s.wantSteps(run, "p", "b", "")
	s.wantSteps(run, "q", "b", "one=1")
}

func (s *suite) clear() {
	run := s.holder(base)
	s.save(run, "1", "x")
	s.step(run, "2", "b", "s", "1")
	for range 2 {
		if err := s.Store.Clear(s.ctx, run, []string{"1", "2"}); err != nil {
			s.Errorf("Clear: %v", err)
		}
	}
	s.wantNone(run)
	s.wantSteps(run, "2", "b", "")
}

// twice is what a client does whose first reply was lost.
func (s *suite) twice() {
	run := s.holder(base)
	for range 2 {
		s.step(run, "1", "b", "s", "r")
		s.wantSteps(run, "1", "b", "s=r")
	}
	for range 2 {
		s.save(run, "1", "x")
		s.wantSnapshot(run, "x")
	}
}

func (s *suite) overtaken() {
	a := s.holder(base)
	s.save(a, "1", "of a")
	s.step(a, "2", "b", "s", "of a")
	b := s.holder(base)
	s.wantRefused(a)
	s.wantSnapshot(b, "of a")
	s.wantSteps(b, "2", "b", "s=of a")
	s.save(b, "2", "of b")
	s.step(b, "3", "b", "s", "of b")
	s.wantRefused(a)
	s.wantSnapshot(b, "of b")
	s.wantSteps(b, "3", "b", "s=of b")
	if err := s.Store.Clear(s.ctx, b, []string{"1", "2", "3"}); err != nil {
		s.Error(err)
	}
	s.wantRefused(a) // a run that is over is not brought back
	s.wantNone(b)
}

func (s *suite) wantRefused(run checkpoint.Ref) {
	s.Helper()
	for what, err := range map[string]error{
		"Save":     s.Store.Save(s.ctx, run, "3", []byte("stale")),
		"SaveStep": s.Store.SaveStep(s.ctx, run, "3", "b", "s", []byte("stale")),
		"Clear":    s.Store.Clear(s.ctx, run, []string{"1", "2", "3"}),
	} {
		if !errors.Is(err, checkpoint.ErrLeaseLost) {
			s.Errorf("%s by an overtaken owner: %v, want ErrLeaseLost", what, err)
		}
	}
}

func (s *suite) sameBytes() {
	a := s.holder(base)
	b := s.holder(base)
	s.save(b, "1", "same")
	if err := s.Store.Save(s.ctx, a, "1", []byte("same")); !errors.Is(err, checkpoint.ErrLeaseLost) {
		s.Errorf("Save of the same bytes by an overtaken owner: %v, want ErrLeaseLost", err)
	}
	s.save(b, "1", "same")
}

func (s *suite) unfenced() {
	run := checkpoint.Ref{Base: base, TTL: time.Hour}
	s.wantNone(run)
	s.save(run, "1", "x")
	s.step(run, "2", "b", "s", "1")
	s.wantSnapshot(run, "x")
	s.wantSteps(run, "2", "b", "s=1")
	if err := s.Store.Clear(s.ctx, run, []string{"1", "2"}); err != nil {
		s.Errorf("Clear: %v", err)
	}
	s.wantNone(run)
}

func (s *suite) expiry() {
	if s.Wait == nil {
		s.Skip("the fixture cannot let time pass")
	}
	run := checkpoint.Ref{Base: base, TTL: 10 * time.Second}
	s.save(run, "1", "x")
	s.Wait(6 * time.Second)
	s.step(run, "2", "b", "s", "1")
	s.Wait(6 * time.Second)
	s.wantSnapshot(run, "x") // the step renewed it
	s.wantSteps(run, "2", "b", "s=1")
	s.Wait(5 * time.Second)
	s.wantNone(run)
	s.wantSteps(run, "2", "b", "")
}

func (s *suite) goroutines() {
	run := s.holder(base)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			if err := s.Store.SaveStep(s.ctx, run, "p", "b", fmt.Sprint(i), []byte("r")); err != nil {
				s.Errorf("SaveStep: %v", err)
			}
		})
	}
	wg.Wait()
	got, err := s.Store.LoadSteps(s.ctx, run, "p", "b")
	if err != nil || len(got) != 50 {
		s.Errorf("%d steps, %v; want 50", len(got), err)
	}
}
