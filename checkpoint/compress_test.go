package checkpoint

import (
	"bytes"
	"compress/zlib"
	"context"
	"errors"
	"strings"
	"testing"
)

func TestLargeStatesAreCompressed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		n    int
		form byte
	}{{1 << 10, formRaw}, {511 << 10, formRaw}, {512 << 10, formZstd}} {
		rdb, store := mini(t)
		list := []Phase[[]string]{
			{Name: "1", Run: func(_ context.Context, s *[]string) error { *s = []string{strings.Repeat("x", c.n)}; return nil }},
			{Name: "2", Run: func(context.Context, *[]string) error { return errBoom }},
		}
		a := begin(t, rdb, "r")
		if _, err := Run(a.ctx, store, list, nil); !errors.Is(err, errBoom) {
			t.Fatal(err)
		}
		b, _ := rdb.Get(t.Context(), ckpt).Bytes()
		if len(b) == 0 || b[0] != c.form {
			t.Fatalf("%d bytes: %d stored, header %#x; want %#x", c.n, len(b), b[0], c.form)
		}
		list[1].Run = func(_ context.Context, s *[]string) error {
			if len(*s) != 1 || len((*s)[0]) != c.n {
				t.Errorf("%d bytes: not restored", c.n)
			}
			return nil
		}
		b2 := begin(t, rdb, "r", again)
		if _, err := Run(b2.ctx, store, list, nil); err != nil || store.Stats().Resumes != 1 {
			t.Errorf("%d bytes: %v, %+v", c.n, err, store.Stats())
		}
	}
}

func TestZlibIsRead(t *testing.T) {
	t.Parallel()
	good, resume := stored(t)
	pack := func(plain []byte) []byte {
		var b bytes.Buffer
		b.WriteByte(formZlib)
		w := zlib.NewWriter(&b)
		_, _ = w.Write(plain)
		_ = w.Close()
		return b.Bytes()
	}
	if ran, _, _ := resume(pack(good[1:])); ran != "3" {
		t.Errorf("zlib: ran %q, want 3", ran)
	}
	if ran, _, s := resume(append(pack(good[1:]), 0)); ran != "1 2 3" || s.Discards[ReasonCorrupt] != 1 {
		t.Errorf("zlib with a trailing byte: ran %q, %+v; want a discard", ran, s)
	}
}

func TestDecompressionIsBounded(t *testing.T) {
	t.Parallel()
	bomb := bytes.Repeat([]byte(" "), 300<<10)
	var z bytes.Buffer
	z.WriteByte(formZlib)
	w := zlib.NewWriter(&z)
	_, _ = w.Write(bomb)
	_ = w.Close()
	_, resume := stored(t, WithMaxSize(100<<10))
	for what, b := range map[string][]byte{
		"zlib": z.Bytes(), "zstd": append([]byte{formZstd}, encoder().EncodeAll(bomb, nil)...), "raw": append([]byte{formRaw}, bomb[:100<<10+1]...),
	} {
		if ran, _, s := resume(b); ran != "1 2 3" || s.Discards[ReasonOversize] != 1 {
			t.Errorf("%s bomb: ran %q, discards %v; want oversize", what, ran, s.Discards)
		}
	}
}
