// Package setting is what constructors and options of all packages check in the same
// way, and the one error they answer with.
package setting

import (
	"errors"
	"fmt"
	"os"
	"reflect"
)

// ErrInvalid is what every package exports as its ErrInvalid.
var ErrInvalid = errors.New("onceq: invalid")

// Invalidf says which argument or option is not allowed, its value and what is. It
// matches ErrInvalid and whatever %w stands for.
func Invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

// IsNil also sees a nil pointer, map, slice, function or channel in an interface: what
// a constructor returned beside an error that nobody looked at.
func IsNil(v any) bool {
	if v == nil {
		return true
	}
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Func, reflect.Chan, reflect.Interface:
		return r.IsNil()
	}
	return false
}

// Apply applies options in order. One that is nil is a mistake of its caller.
func Apply[C any, O ~func(*C)](c *C, opts []O) error {
	for i, o := range opts {
		if o == nil {
			return Invalidf("option %d is nil", i)
		}
		o(c)
	}
	return nil
}

// SwitchedOff reads a kill-switch from the environment: "0", "false" and "off" turn
// off what it is for. Unknown is a value that it does not know and that turns off
// nothing: whoever set it in an emergency wants to hear of that.
func SwitchedOff(variable string) (off bool, unknown string) {
	switch v := os.Getenv(variable); v {
	case "0", "false", "off":
		return true, ""
	case "", "1", "true", "on":
		return false, ""
	default:
		return false, v
	}
}
