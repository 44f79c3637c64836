package redistest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// Main runs a package's tests and fails when they leave a goroutine behind, as
// goleak.VerifyTestMain does, but waits longer for one kind: go-redis dials a server
// that is down once a second, and sees that its client was closed before the next try
// only. One that does not end then is a leak like any other.
func Main(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := leaks(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines are left:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// leaks waits about a second in each look.
func leaks() (err error) {
	for range 10 {
		if err = goleak.Find(); err == nil || !strings.Contains(err.Error(), "(*ConnPool).tryDial") {
			return err
		}
	}
	return err
}
