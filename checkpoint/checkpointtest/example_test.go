package checkpointtest_test

import (
	"fmt"
	"testing"

	"github.com/nexuscore/onceq/checkpoint"
	"github.com/nexuscore/onceq/checkpoint/checkpointtest"
)

type Plan struct {
	Goal  string
	Risks []string
	draft string // written in one phase, read in the next: lost when the run resumes there
}

// In a test of your own t is the *testing.T.
func ExampleRoundTrip() {
	t := printer{}
	checkpointtest.RoundTrip(t, Plan{Goal: "a pen", Risks: []string{"ink"}, draft: "..."})
	// Output:
	// checkpointtest_test.Plan.draft is unexported and is lost
}

// A store of your own is checked like those of this library.
func ExampleTestStore() {
	_ = func(t *testing.T) { // func TestMyStore
		checkpointtest.TestStore(t, func(t *testing.T) checkpointtest.Fixture {
			return checkpointtest.Fixture{Store: checkpoint.NewMemoryStore()}
		})
	}
}

// printer is a testing.TB that prints its failures.
type printer struct{ testing.TB }

func (printer) Helper() {}

func (printer) Errorf(format string, args ...any) { fmt.Printf(format+"\n", args...) }
