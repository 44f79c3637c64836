package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/nexuscore/onceq/internal/redistest"
)

// 60 MB of results come in pieces that each take less than a call may, and no step of
// them runs again. What fits in one piece is one round trip.
func TestStepsOfManyMegabytes(t *testing.T) {
	rdb := redistest.Real(t).Client()
	n := new(redistest.Counter)
	rdb.AddHook(n)
	for _, c := range []struct{ steps, size, trips int }{{1, 4, 0}, {40, 50 << 10, 1}, {1500, 40 << 10, 15}} {
		store, err := NewRedisStore(rdb)
		if err != nil {
			t.Fatal(err)
		}
		ctx := ContextWithKey(t.Context(), fmt.Sprint("run", c.steps))
		ran, fail := 0, true
		work := func(ctx context.Context, s *state) error {
			for i := range c.steps {
				got, err := Step(ctx, fmt.Sprint("step", i), func(context.Context) ([]byte, error) {
					ran++
					return bytes.Repeat([]byte{byte(i)}, c.size*3/4), nil // as base64
				})
				if err != nil {
					return err
				}
				if len(got) != c.size*3/4 || got[0] != byte(i) {
					t.Errorf("step %d is %d bytes of %d", i, len(got), got[0])
				}
			}
			if fail {
				return errors.New("once more")
			}
			return nil
		}
		phases := []Phase[state]{{Name: "large", Run: work}}
		if _, err := Run(ctx, store, phases, state{}); err == nil {
			t.Fatal("the first attempt did not fail")
		}
		first := ran
		fail = false
		n.Reset()
		if _, err := Run(ctx, store, phases, state{}); err != nil {
			t.Fatal(err)
		}
		if first != c.steps || ran != c.steps {
			t.Errorf("%d steps ran %d times, then %d more; want each once", c.steps, first, ran-first)
		}
		// load, steps, save, clear
		if got := int(n.RoundTrips()) - 3; c.trips > 0 && got != c.trips { // 0: Redis does not know the scripts yet
			t.Errorf("%d steps of %d bytes came in %d round trips, want %d", c.steps, c.size, got, c.trips)
		}
	}
}
