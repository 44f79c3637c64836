package panics_test

import (
	"errors"
	"io"
	"testing"

	"github.com/nexuscore/onceq/internal/panics"
)

func TestCatch(t *testing.T) {
	t.Parallel()
	call := func(f func() error) (err error) {
		defer panics.Catch(&err)
		return f()
	}
	for _, c := range []struct {
		f    func() error
		want string
		is   error
	}{
		{func() error { return nil }, "<nil>", nil},
		{func() error { return io.EOF }, "EOF", io.EOF},
		{func() error { panic("no") }, "panic: no", nil},
		{func() error { panic(7) }, "panic: 7", nil},
		{func() error { panic(io.EOF) }, "panic: EOF", io.EOF},
	} {
		err := call(c.f)
		got := "<nil>"
		if err != nil {
			got = err.Error()
		}
		if got != c.want || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%q, want %q that is %v", got, c.want, c.is)
		}
	}
}
