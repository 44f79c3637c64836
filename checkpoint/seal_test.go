package checkpoint

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nexuscore/onceq/internal/logtest"
)

func sealer(t *testing.T, keys ...string) Sealer {
	t.Helper()
	var old [][]byte
	for _, k := range keys[1:] {
		old = append(old, []byte(strings.Repeat(k, 32)))
	}
	s, err := NewAESGCM([]byte(strings.Repeat(keys[0], 32)), old...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSealing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what        string
		write, read []Option
		want        string
		discards    Reason
	}{
		{"same key", []Option{WithSealer(sealer(t, "a"))}, []Option{WithSealer(sealer(t, "a"))}, "s1", ""},
		{"key changed", []Option{WithSealer(sealer(t, "a"))}, []Option{WithSealer(sealer(t, "b", "a"))}, "s1", ""},
		{"another key", []Option{WithSealer(sealer(t, "a"))}, []Option{WithSealer(sealer(t, "b"))}, "secret-phase s0 s1", ReasonSealed},
		{"no sealer any more", []Option{WithSealer(sealer(t, "a"))}, nil, "secret-phase s0 s1", ReasonSealed},
		{"plain text once sealing is on", nil, []Option{WithSealer(sealer(t, "a"))}, "secret-phase s0 s1", ReasonSealed},
		{"plain text while migrating", nil, []Option{WithSealer(sealer(t, "a")), WithMigration()}, "s1", ""},
	} {
		rdb, store := mini(t)
		var tr trail
		first := tr.phases("secret-phase")
		a := begin(t, rdb, "r")
		_, err := Run(a.ctx, store, append(first, Phase[state]{Name: "p", Run: tr.steps(2, 1)}), state{}, c.write...)
		if !errors.Is(err, errBoom) {
			t.Fatal(err)
		}
		raw := rdb.Get(t.Context(), ckpt).Val() + strings.Join(rdb.HVals(t.Context(), "onceq:{r}:steps:p").Val(), "")
		if plain := strings.Contains(raw, "secret-phase") && strings.Contains(raw, "result of s0"); plain != (c.write == nil) {
			t.Errorf("%s: stored in plain text: %v", c.what, plain)
		}
		tr.reset()
		b := begin(t, rdb, "r", again)
		_, err = Run(b.ctx, store, append(first, Phase[state]{Name: "p", Run: tr.steps(2, -1)}), state{}, c.read...)
		if err != nil || tr.String() != c.want {
			t.Errorf("%s: ran %q, %v; want %q", c.what, &tr, err, c.want)
		}
		if d := store.Stats().Discards; c.discards != "" && d[c.discards] != 1 || c.discards == "" && len(d) != 0 {
			t.Errorf("%s: discards %v, want %q", c.what, d, c.discards)
		}
	}
}

func TestSealedBytesAreBoundToTheirPlace(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t, WithSealer(sealer(t, "a")))
	var tr trail
	phases := func(fail int) []Phase[state] {
		return append(tr.phases("1"), Phase[state]{Name: "p", Run: tr.steps(3, fail)})
	}
	a := begin(t, rdb, "r")
	_, _ = Run(a.ctx, store, phases(2), state{})
	// The snapshot of one run put in another's place.
	if err := rdb.Copy(t.Context(), ckpt, "onceq:{other}:ckpt", 0, true).Err(); err != nil {
		t.Fatal(err)
	}
	tr.reset()
	b := begin(t, rdb, "other", again)
	if _, err := Run(b.ctx, store, phases(-1), state{}); err != nil || !strings.HasPrefix(tr.String(), "1 ") || store.Stats().Discards[ReasonSealed] != 1 {
		t.Errorf("another run's snapshot: ran %q, %v, %v", &tr, err, store.Stats().Discards)
	}
	// One step's result in another's place.
	steps := "onceq:{r}:steps:p"
	rdb.HSet(t.Context(), steps, "s1", rdb.HGet(t.Context(), steps, "s0").Val())
	tr.reset()
	c := begin(t, rdb, "r", again)
	if _, err := Run(c.ctx, store, phases(-1), state{}); err != nil || tr.String() != "s1 s2" || store.Stats().Discards[ReasonSealed] != 2 {
		t.Errorf("another step's result: ran %q, %v, %v", &tr, err, store.Stats().Discards)
	}
}

type failingSealer struct{}

func (failingSealer) Seal(_, _ []byte) ([]byte, error) { return nil, errors.New("no key today") }
func (failingSealer) Open(_, _ []byte) ([]byte, error) { return nil, errors.New("no key today") }

func TestASealerThatFailsStoresNoPlainText(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t, WithSealer(failingSealer{}))
	var tr trail
	a := begin(t, rdb, "r")
	if _, err := Run(a.ctx, store, tr.phases("1"), state{}); err != nil || keys(t, rdb) != "onceq:{r}:lock" {
		t.Errorf("%v, keys %q; want the run to go on and nothing stored", err, keys(t, rdb))
	}
}

// panickingSealer seals, and panics at what is not whole.
type panickingSealer struct{ seal bool }

func (p panickingSealer) Seal(plain, _ []byte) ([]byte, error) {
	if p.seal {
		panic("no key")
	}
	return append([]byte("0123456789"), plain...), nil
}
func (panickingSealer) Open(sealed, _ []byte) ([]byte, error) { return sealed[10:], nil }

func TestASealerThatPanicsEndsNoRun(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t, WithSealer(panickingSealer{seal: true}))
	var tr trail
	a := begin(t, rdb, "r")
	if _, err := Run(a.ctx, store, tr.phases("1"), state{}); err != nil || keys(t, rdb) != "onceq:{r}:lock" {
		t.Errorf("Seal: %v, keys %q; want the run to go on and nothing stored", err, keys(t, rdb))
	}
	rdb, store = mini(t, WithSealer(panickingSealer{}))
	rdb.Set(t.Context(), "onceq:{r}:ckpt", "\x10cut", time.Hour)
	tr.reset()
	a = begin(t, rdb, "r")
	if _, err := Run(a.ctx, store, tr.phases("1"), state{}); err != nil || tr.String() != "1" || store.Stats().Discards[ReasonSealed] != 1 {
		t.Errorf("Open: ran %q, %v, %v; want a full run and the snapshot discarded", &tr, err, store.Stats().Discards)
	}
}

// gobCodec is a codec as a host might bring it.
type gobCodec struct{ panics bool }

func (gobCodec) Name() string { return "gob" }

func (c gobCodec) Marshal(v any) ([]byte, error) {
	if c.panics {
		panic("codec")
	}
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(v)
	return b.Bytes(), err
}

func (gobCodec) Unmarshal(data []byte, v any) error {
	return gob.NewDecoder(bytes.NewReader(data)).Decode(v)
}

func TestAnotherCodec(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t)
	var tr trail
	run := func(codec Codec, want string, fail string) {
		t.Helper()
		tr.reset()
		a := begin(t, rdb, "r", again)
		got, _ := Run(a.ctx, store, failing(tr.phases("1", "2", "3"), fail), state{}, WithCodec(codec))
		if tr.String() != want || !strings.HasSuffix(strings.Join(got.Trail, " "), want) {
			t.Errorf("%T: ran %q on %v, want %q", codec, &tr, got.Trail, want)
		}
	}
	run(gobCodec{}, "1 2", "2")
	run(gobCodec{}, "2", "2")
	run(JSON, "1 2", "2") // a snapshot of another codec
	run(gobCodec{}, "1 2", "2")
	if n := store.Stats().Discards[ReasonVersion]; n != 2 {
		t.Errorf("%d discards, want 2", n)
	}
	run(gobCodec{panics: true}, "2 3", "")
	if n := store.Stats().Unserialisable; n != 2 {
		t.Errorf("%d states of a panicking codec counted, want 2", n)
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	rdb, store := mini(t)
	var tr trail
	var got []string
	observe := WithObserver(func(e Event) {
		if (e.Duration > 0) != (e.Kind == EventFinished || e.Kind == EventFailed) || e.Run != "r" || e.Attempt == 0 || e.Token == 0 || e.Total != 3 {
			t.Errorf("event %+v is incomplete", e)
		}
		got = append(got, string(e.Kind)+":"+e.Phase)
	})
	a := begin(t, rdb, "r")
	_, _ = Run(a.ctx, store, failing(tr.phases("1", "2", "3"), "2"), state{}, observe)
	b := begin(t, rdb, "r", again)
	_, _ = Run(b.ctx, store, tr.phases("1", "2", "3"), state{}, observe)
	c := begin(t, rdb, "r", again)
	_, _ = Run(c.ctx, store, tr.phases("1", "2", "3"), state{}, observe)
	want := "started:1 finished:1 started:2 failed:2 resumed:2 started:2 finished:2 started:3 finished:3 resumed:"
	if s := strings.Join(got, " "); s != want {
		t.Errorf("events\n%s\nwant\n%s", s, want)
	}
}

func TestALineForEachPhase(t *testing.T) {
	t.Parallel()
	var l logtest.Log
	rdb, store := mini(t, WithLogger(l.Logger()))
	a := begin(t, rdb, "r")
	_, _ = Run(a.ctx, store, []Phase[state]{{Name: "1", Run: func(context.Context, *state) error { return nil }}}, state{})
	out := l.String()
	for _, want := range []string{`msg="onceq: phase started" phase=1 index=0 total=1 run=r attempt=1 token=`, `msg="onceq: phase finished" phase=1 index=0 total=1 duration=`} {
		if !strings.Contains(out, want) {
			t.Errorf("log\n%s\nwant %s", out, want)
		}
	}
	if n := strings.Count(out, "\n"); n != 2 {
		t.Errorf("%d lines, want 2", n)
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	run := Ref{Base: "onceq:{a%3Ab}"}
	for got, want := range map[string]string{
		lockKey(run):           "onceq:{a%3Ab}:lock",
		snapshotKey(run):       "onceq:{a%3Ab}:ckpt",
		stepsKey(run, "p:{1}"): "onceq:{a%3Ab}:steps:p%3A%7B1%7D",
	} {
		if got != want {
			t.Errorf("key %q, want %q: a changed key is a data migration", got, want)
		}
	}
}
