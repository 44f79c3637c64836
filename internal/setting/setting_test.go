package setting_test

import (
	"errors"
	"io"
	"testing"

	"github.com/nexuscore/onceq/internal/setting"
)

func TestInvalidfKeepsWhatItWraps(t *testing.T) {
	err := setting.Invalidf("WithTTL: %v: %w", -1, io.EOF)
	if !errors.Is(err, setting.ErrInvalid) || !errors.Is(err, io.EOF) || err.Error() != "onceq: invalid: WithTTL: -1: EOF" {
		t.Errorf("%v, want ErrInvalid and EOF", err)
	}
}

func TestIsNil(t *testing.T) {
	var p *int
	var f func()
	var m map[string]int
	var e error
	for _, v := range []any{nil, p, f, m, e, []byte(nil)} {
		if !setting.IsNil(v) {
			t.Errorf("IsNil(%T) = false", v)
		}
	}
	for _, v := range []any{0, "", struct{}{}, new(int), io.EOF, map[string]int{}, func() {}} {
		if setting.IsNil(v) {
			t.Errorf("IsNil(%T) = true", v)
		}
	}
}

type option func(*[]int)

func TestApply(t *testing.T) {
	add := func(n int) option { return func(l *[]int) { *l = append(*l, n) } }
	var l []int
	if err := setting.Apply(&l, []option{add(1), add(2)}); err != nil || len(l) != 2 || l[1] != 2 {
		t.Errorf("%v, %v; want both in order", l, err)
	}
	if err := setting.Apply(&l, []option{add(1), nil}); !errors.Is(err, setting.ErrInvalid) || err.Error() != "onceq: invalid: option 1 is nil" {
		t.Errorf("nil option: %v", err)
	}
}

func TestSwitchedOff(t *testing.T) {
	for value, want := range map[string]struct {
		off     bool
		unknown string
	}{
		"": {}, "1": {}, "true": {}, "on": {}, "0": {off: true}, "false": {off: true}, "off": {off: true}, "OFF": {unknown: "OFF"}, "no": {unknown: "no"},
	} {
		t.Setenv("ONCEQ_TEST_SWITCH", value)
		off, unknown := setting.SwitchedOff("ONCEQ_TEST_SWITCH")
		if off != want.off || unknown != want.unknown {
			t.Errorf("%q: off %v, unknown %q; want %+v", value, off, unknown, want)
		}
	}
}
