package llmcachetest_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nexuscore/onceq/llmcache"
	"github.com/nexuscore/onceq/llmcache/llmcachetest"
)

// A store of your own is checked in a test of its package.
func ExampleTestStore() {
	_ = func(t *testing.T) { // TestMyStore
		llmcachetest.TestStore(t, func(*testing.T) llmcache.Store {
			return llmcache.NewMemoryStore() // yours, empty
		})
	}
	// Output:
}

func TestGoodStore(t *testing.T) {
	good := func(*testing.T) llmcache.Store { return llmcache.NewMemoryStore() }
	t.Run("in time", func(t *testing.T) { llmcachetest.TestStore(t, good) })
	t.Run("in a bubble", func(t *testing.T) { llmcachetest.TestStoreInBubble(t, good) })
}

const brokenEnv = "ONCEQ_LLMCACHETEST_BROKEN"

// Each breaks one promise of the contract, and the suite must say which.
var broken = map[string]struct {
	store func(llmcache.Store) llmcache.Store
	fails string // a part of the suite
}{
	"everybody gets the lease":          {func(s llmcache.Store) llmcache.Store { return generous{s} }, "one of many gets the lease"},
	"a repetition is refused":           {func(s llmcache.Store) llmcache.Store { return forgetful{s} }, "repetitions change nothing"},
	"a lease lives for ever":            {func(s llmcache.Store) llmcache.Store { return eternal{s} }, "an expired lease is free"},
	"a late answer counts as stored":    {func(s llmcache.Store) llmcache.Store { return credulous{s} }, "the late do not overwrite"},
	"abandoning frees nothing":          {func(s llmcache.Store) llmcache.Store { return clinging{s} }, "abandoned"},
	"a repeated addition counts again":  {func(s llmcache.Store) llmcache.Store { return &twice{Store: s} }, "count once"},
	"there is no limit":                 {func(s llmcache.Store) llmcache.Store { return rich{s} }, "budget"},
	"open calls are not told":           {func(s llmcache.Store) llmcache.Store { return mute{s} }, "open calls"},
	"an interrupted call is not known":  {func(s llmcache.Store) llmcache.Store { return blank{s} }, "an interrupted call is known"},
	"an overtaken attempt's call holds": {func(s llmcache.Store) llmcache.Store { return unfenced{s} }, "a call of an overtaken attempt is taken over"},
}

func TestBrokenStores(t *testing.T) {
	if name := os.Getenv(brokenEnv); name != "" {
		llmcachetest.TestStoreInBubble(t, func(*testing.T) llmcache.Store { return broken[name].store(llmcache.NewMemoryStore()) })
		return
	}
	for name, b := range broken {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestBrokenStores$")
			cmd.Env = append(os.Environ(), brokenEnv+"="+name)
			out, err := cmd.CombinedOutput()
			part := "--- FAIL: TestBrokenStores/" + strings.ReplaceAll(b.fails, " ", "_")
			if err == nil || !strings.Contains(string(out), part) {
				t.Errorf("%v, want %q in\n%s", err, part, out)
			}
		})
	}
}

type generous struct{ llmcache.Store }

func (s generous) Begin(ctx context.Context, slot llmcache.Slot, c llmcache.Claim) (llmcache.Begun, error) {
	b, err := s.Store.Begin(ctx, slot, c)
	if b.State == llmcache.StateHeld {
		b = llmcache.Begun{State: llmcache.StateMine}
	}
	return b, err
}

type forgetful struct{ llmcache.Store }

func (s forgetful) Finish(ctx context.Context, slot llmcache.Slot, owner string, a llmcache.Stored) (bool, error) {
	if b, err := s.Store.Begin(ctx, slot, llmcache.Claim{Owner: owner, Lease: time.Minute, Keep: time.Hour}); err != nil || b.State == llmcache.StateFound {
		return false, err
	}
	return s.Store.Finish(ctx, slot, owner, a)
}

type eternal struct{ llmcache.Store }

func (s eternal) Begin(ctx context.Context, slot llmcache.Slot, c llmcache.Claim) (llmcache.Begun, error) {
	c.Lease = 1000 * time.Hour
	return s.Store.Begin(ctx, slot, c)
}

func (s eternal) Extend(ctx context.Context, slot llmcache.Slot, owner string, _ time.Duration) (bool, error) {
	return s.Store.Extend(ctx, slot, owner, 1000*time.Hour)
}

type credulous struct{ llmcache.Store }

func (s credulous) Finish(ctx context.Context, slot llmcache.Slot, owner string, a llmcache.Stored) (bool, error) {
	_, err := s.Store.Finish(ctx, slot, owner, a)
	return true, err
}

type clinging struct{ llmcache.Store }

func (s clinging) Abandon(context.Context, llmcache.Slot, string, llmcache.Account, time.Duration) error {
	return nil
}

type twice struct {
	llmcache.Store
	n int
}

func (s *twice) Count(ctx context.Context, key, id string, add llmcache.Account, ttl time.Duration) error {
	s.n++
	return s.Store.Count(ctx, key, id+strings.Repeat("x", s.n), add, ttl)
}

type rich struct{ llmcache.Store }

func (s rich) Begin(ctx context.Context, slot llmcache.Slot, c llmcache.Claim) (llmcache.Begun, error) {
	c.Limit = llmcache.Budget{}
	return s.Store.Begin(ctx, slot, c)
}

type mute struct{ llmcache.Store }

func (s mute) Sums(ctx context.Context, key string) (llmcache.Account, error) {
	a, err := s.Store.Sums(ctx, key)
	a.Open = nil
	return a, err
}

type blank struct{ llmcache.Store }

func (s blank) Begin(ctx context.Context, slot llmcache.Slot, c llmcache.Claim) (llmcache.Begun, error) {
	b, err := s.Store.Begin(ctx, slot, c)
	b.Note = ""
	return b, err
}

type unfenced struct{ llmcache.Store }

func (s unfenced) Begin(ctx context.Context, slot llmcache.Slot, c llmcache.Claim) (llmcache.Begun, error) {
	c.Fence = 0
	return s.Store.Begin(ctx, slot, c)
}
