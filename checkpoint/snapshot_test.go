package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nexuscore/onceq/internal/lease"
	"github.com/nexuscore/onceq/internal/logtest"
)

const ckpt = "onceq:{r}:ckpt"

// stored runs phases 1 and 2, fails in 3, and returns the snapshot.
func stored(t *testing.T, opts ...Option) ([]byte, func(b []byte, more ...Option) (string, state, Stats)) {
	t.Helper()
	rdb, store := mini(t, opts...)
	var tr trail
	list := tr.phases("1", "2", "3")
	a := begin(t, rdb, "r")
	if _, err := Run(a.ctx, store, failing(list, "3"), state{}); !errors.Is(err, errBoom) {
		t.Fatal(err)
	}
	b, err := rdb.Get(t.Context(), ckpt).Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return b, func(b []byte, more ...Option) (string, state, Stats) {
		t.Helper()
		if err := rdb.Set(t.Context(), ckpt, b, 0).Err(); err != nil {
			t.Fatal(err)
		}
		store := newStore(t, rdb, opts...)
		tr.reset()
		c := begin(t, rdb, "r", again)
		got, err := Run(c.ctx, store, list, state{}, more...)
		if err != nil {
			t.Fatal(err)
		}
		c.End()
		return tr.String(), got, store.Stats()
	}
}

// C7
func TestOddSnapshotsAreDiscardedWhole(t *testing.T) {
	t.Parallel()
	good, resume := stored(t)
	if ran, _, s := resume(good); ran != "3" || s.Resumes != 1 {
		t.Fatalf("an untouched snapshot: ran %q, %+v; want 3", ran, s)
	}
	flip := func(bit int) []byte {
		b := bytes.Clone(good)
		b[bit/8] ^= 1 << (bit % 8)
		return b
	}
	odd := map[string][]byte{
		"empty": {}, "null": []byte("\x00null"), "{}": []byte("\x00{}"), "[]": []byte("\x00[]"), "bare null": []byte("null"),
		"trailing byte": append(bytes.Clone(good), ' '), "trailing object": append(bytes.Clone(good), "{}"...),
		"twice": append(bytes.Clone(good), good...), "header only": good[:1], "no header": good[1:],
		"random": []byte("\x02\x28\xb5\x2f\xfd\x00\x00\x00"),
	}
	// Every cut and every bit is refused; a few go through a whole run.
	cfg, r := defaults(), &run{ref: Ref{Base: "onceq:{r}"}}
	if _, _, err := cfg.decode(good, r.bound("snapshot")); err != nil {
		t.Fatal(err)
	}
	for n := range len(good) {
		if _, _, err := cfg.decode(good[:n], r.bound("snapshot")); err == nil {
			t.Errorf("cut to %d: accepted", n)
		}
		if n%41 == 0 {
			odd[fmt.Sprintf("cut to %d", n)] = good[:n]
		}
	}
	for bit := range 8 * len(good) {
		if _, _, err := cfg.decode(flip(bit), r.bound("snapshot")); err == nil {
			t.Errorf("bit %d flipped: accepted", bit)
		}
		if bit%97 == 0 {
			odd[fmt.Sprintf("bit %d flipped", bit)] = flip(bit)
		}
	}
	for what, b := range odd {
		ran, got, s := resume(b)
		if ran != "1 2 3" || strings.Join(got.Trail, " ") != "1 2 3" {
			t.Errorf("%s: ran %q on %v, want a full run on a new state", what, ran, got.Trail)
		}
		n := int64(0)
		for _, d := range s.Discards {
			n += d
		}
		if n != 1 {
			t.Errorf("%s: %d discards counted, want 1", what, n)
		}
	}
}

func TestADiscardIsLoggedAndTold(t *testing.T) {
	t.Parallel()
	var l logtest.Log
	var events []Event
	good, resume := stored(t, WithLogger(l.Logger()), WithObserver(func(e Event) { events = append(events, e) }))
	events = nil
	resume(good[:20])
	if out := l.String(); strings.Count(out, "snapshot discarded") != 1 || !strings.Contains(out, "reason=corrupt") || !strings.Contains(out, "run=r") {
		t.Errorf("log %s, want one line with the reason", out)
	}
	if e := events[0]; e.Kind != EventDiscarded || e.Reason != ReasonCorrupt || e.Run != "r" || e.Total != 3 || e.Err == nil {
		t.Errorf("first event %+v, want the discard", e)
	}
}

// C11
func TestAnotherPayload(t *testing.T) {
	t.Parallel()
	for what, mod := range map[string]func(*lease.Config){
		"stamp":       func(c *lease.Config) { c.Stamp = "from scratch" },
		"fingerprint": func(c *lease.Config) { c.Fingerprint = "another" },
	} {
		rdb, store := mini(t)
		var tr trail
		a := begin(t, rdb, "r")
		_, _ = Run(a.ctx, store, failing(tr.phases("1", "2"), "2"), state{})
		tr.reset()
		b := begin(t, rdb, "r", again, mod)
		if _, err := Run(b.ctx, store, tr.phases("1", "2"), state{}); err != nil || tr.String() != "1 2" || store.Stats().Discards[ReasonInput] != 1 {
			t.Errorf("another %s: ran %q, %v, %v; want a fresh run", what, &tr, err, store.Stats().Discards)
		}
	}
	// Without a lease the initial state is the payload.
	_, store := mini(t)
	ctx := ContextWithKey(t.Context(), "r")
	var tr trail
	run := func(want string, s state, opts ...Option) {
		t.Helper()
		tr.reset()
		_, _ = Run(ctx, store, failing(tr.phases("1", "2"), "2"), s, opts...)
		if tr.String() != want {
			t.Errorf("ran %q, want %q", &tr, want)
		}
	}
	run("1 2", state{Notes: map[string]int{"goal": 1}})
	run("2", state{Notes: map[string]int{"goal": 1}})
	run("1 2", state{Notes: map[string]int{"goal": 2}})
	run("1 2", state{Notes: map[string]int{"now": 1}}, WithFingerprint("same"))
	run("2", state{Notes: map[string]int{"now": 2}}, WithFingerprint("same"))
}

// C14
func TestASnapshotOfTomorrow(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"schema version", "format"} {
		rdb, store := mini(t)
		var tr trail
		list := tr.phases("1", "2", "3")
		a := begin(t, rdb, "r")
		_, _ = Run(a.ctx, store, failing(list, "3"), state{}, WithVersion(2))
		snapshot := rdb.Get(t.Context(), ckpt).Val()
		if what == "format" {
			snapshot = "\x20" + snapshot[1:]
			rdb.Set(t.Context(), ckpt, snapshot, 0)
		}
		tr.reset()
		b := begin(t, rdb, "r", again)
		old := failing(list, "1") // yesterday's worker fails before it saved anything
		if _, err := Run(b.ctx, store, old, state{}); !errors.Is(err, errBoom) || tr.String() != "1" {
			t.Fatalf("%s: yesterday's worker ran %q, %v; want a run from the start", what, &tr, err)
		}
		if store.Stats().Discards[ReasonVersion] != 1 || rdb.Get(t.Context(), ckpt).Val() != snapshot {
			t.Errorf("%s: %v; want it discarded as version and left in place", what, store.Stats().Discards)
		}
		if what == "format" {
			continue
		}
		tr.reset()
		c := begin(t, rdb, "r", again)
		if _, err := Run(c.ctx, store, list, state{}, WithVersion(2)); err != nil || tr.String() != "3" {
			t.Errorf("tomorrow's worker ran %q, %v; want 3", &tr, err)
		}
	}
}
