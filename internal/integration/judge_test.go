package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/modelserver"
	"github.com/nexuscore/onceq/notify/notifytest"
	"github.com/nexuscore/onceq/orchestrator"
)

// want is what a run is to have done, beyond once.
type want struct {
	again    []string // points that were reached twice
	thrice   []string
	never    []string // points that no attempt reached
	attempts int      // of the row
	crashes  int      // of the record
	// paidAgain are LLM calls that had been answered before.
	paidAgain int
	// cut are LLM calls that were under way when their caller died.
	cut int
	// any: Redis forgot, so calls and phases are not counted.
	any bool
}

// judge looks at a run that has succeeded, from outside.
func (w *world) judge(runID string, want want) {
	w.t.Helper()
	row := w.row(runID)
	if row.Status != orchestrator.StatusSuccess {
		w.t.Fatalf("row: %+v, want SUCCESS", row)
	}
	if all, _ := json.Marshal(phases); string(row.Result) != string(all) {
		w.t.Errorf("result %s, want each phase once and in order", row.Result)
	}
	if n := len(w.messages(runID)); n != 1 {
		w.t.Errorf("%d messages in the channel, want 1", n)
	}
	if n := count(w.kinds(runID), "succeeded"); n != 1 {
		w.t.Errorf("history %q: succeeded %d times", w.kinds(runID), n)
	}
	if r := w.record(runID); r.State != idempotent.StateSucceeded || r.LeaseLeft != 0 {
		w.t.Errorf("record: %+v, want succeeded and no lease", r)
	}
	w.checkKeys()
	if want.any {
		return
	}
	w.judgeEffects(runID, want)
	if row.Attempts != want.attempts {
		w.t.Errorf("%d attempts, want %d; history %q", row.Attempts, want.attempts, w.kinds(runID))
	}
	if r := w.record(runID); r.Crashes != want.crashes {
		w.t.Errorf("%d crashes, want %d", r.Crashes, want.crashes)
	}
}

// judgeEffects counts phases, steps and LLM calls.
func (w *world) judgeEffects(runID string, want want) {
	w.t.Helper()
	var points []string
	for _, p := range phases {
		points = append(points, "phase "+p)
	}
	for i := range stepCount {
		points = append(points, fmt.Sprint("step s", i+1))
	}
	for _, p := range points {
		n := 1
		switch {
		case slices.Contains(want.again, p):
			n = 2
		case slices.Contains(want.thrice, p):
			n = 3
		case slices.Contains(want.never, p):
			n = 0
		}
		if got := w.of(runID, p); got != n {
			w.t.Errorf("%s: %d times, want %d", p, got, n)
		}
	}
	paidAgain, cut, distinct := 0, 0, map[string]bool{}
	for _, c := range w.model.Calls() {
		switch {
		case c.Repeat:
			paidAgain++
		case c.Outcome != modelserver.Completed:
			cut++
		}
		distinct[c.Hash] = true
	}
	if paidAgain != want.paidAgain || cut != want.cut {
		w.t.Errorf("%d LLM calls were paid again although answered, %d were cut; want %d and %d", paidAgain, cut, want.paidAgain, want.cut)
	}
	if n := len(phases) + stepCount; len(distinct) < n {
		w.t.Errorf("%d different LLM calls, want at least %d", len(distinct), n)
	}
}

// messages are what people see of a run, which its requirement names.
func (w *world) messages(runID string) (list []notifytest.Message) {
	for _, m := range w.slack.Seen(notifytest.Channel) {
		if strings.Contains(m.Text, requirement(runID)) {
			list = append(list, m)
		}
	}
	return list
}

func requirement(runID string) string { return "the thing called " + runID + "." }

// checkKeys: nothing of ours lives for ever.
func (w *world) checkKeys() {
	w.t.Helper()
	for _, k := range w.keys("onceq:*") {
		if ttl := w.rdb.PTTL(w.t.Context(), k).Val(); ttl == -1 {
			w.t.Errorf("key %s has no TTL", k)
		}
	}
}

func (w *world) keys(pattern string) (keys []string) {
	var mu sync.Mutex
	scan := func(ctx context.Context, c *redis.Client) error {
		list, err := c.Keys(ctx, pattern).Result()
		mu.Lock()
		defer mu.Unlock()
		keys = append(keys, list...)
		return err
	}
	switch c := w.rdb.(type) {
	case *redis.ClusterClient:
		_ = c.ForEachMaster(w.t.Context(), scan)
	case *redis.Client:
		_ = scan(w.t.Context(), c)
	}
	return keys
}

func count(list []string, s string) (n int) {
	for _, x := range list {
		if x == s {
			n++
		}
	}
	return n
}
