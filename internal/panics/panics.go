// Package panics makes an error of a panic in code of the host's.
package panics

import "fmt"

// Error returns the error for a recovered value. A value that is an error stays
// visible to errors.Is and errors.As: it may say that the run is not to be retried.
func Error(v any) error {
	if err, ok := v.(error); ok {
		return fmt.Errorf("panic: %w", err)
	}
	return fmt.Errorf("panic: %v", v)
}

// Catch, deferred, puts a panic into err.
func Catch(err *error) {
	if v := recover(); v != nil {
		*err = Error(v)
	}
}
