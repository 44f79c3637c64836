// Package llmcachetest checks implementations of llmcache.Store.
package llmcachetest

import (
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nexuscore/onceq/llmcache"
)

// short is a TTL whose end the suite waits for, long one whose end it does not see.
const (
	short = 300 * time.Millisecond
	long  = time.Hour
)

// TestStore checks that a store keeps the contract of llmcache.Store. open
// returns an empty store each time. The suite sleeps until TTLs of 0.3 s end; see
// TestStoreInBubble.
func TestStore(t *testing.T, open func(t *testing.T) llmcache.Store) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.run(t, &suite{T: t, store: open(t)}) })
	}
}

// TestStoreInBubble is TestStore in virtual time: each part, open included, runs
// in a bubble of testing/synctest.
func TestStoreInBubble(t *testing.T, open func(t *testing.T) llmcache.Store) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { c.run(t, &suite{T: t, store: open(t)}) })
		})
	}
}

var cases = []struct {
	name string
	run  func(*testing.T, *suite)
}{
	{"an answer is found until it expires", answerLives},
	{"a hit can lengthen a life", touch},
	{"one of many gets the lease", oneGetsTheLease},
	{"an expired lease is free", expiredLease},
	{"a call of an overtaken attempt is taken over", overtaken},
	{"repetitions change nothing", repetitions},
	{"the late do not overwrite", late},
	{"an expired lease is taken back when nobody came", takeBack},
	{"abandoned", abandoned},
	{"an interrupted call is known", interrupted},
	{"budget", budget},
	{"count once", countOnce},
	{"without a book nothing is counted", noBook},
	{"open calls", openCalls},
}

type suite struct {
	*testing.T
	store llmcache.Store
}

// slot is a place in the run "r", or one outside runs.
func slot(id string) llmcache.Slot {
	return llmcache.Slot{Key: "s:{r}:llm:" + id, ID: id, Book: "s:{r}:llm"}
}

func outside(id string) llmcache.Slot { return llmcache.Slot{Key: "s:llm:{" + id + "}:t:", ID: id} }

func claim(owner string) llmcache.Claim {
	return llmcache.Claim{Owner: owner, Lease: long, Keep: long, Note: `{"model":"m","label":"l","since":1700000000000}`}
}

func answer(data string) llmcache.Stored {
	return llmcache.Stored{Data: []byte(data), TTL: long, Keep: long, Cost: cost(1)}
}

// cost is that of n calls, each field another number.
func cost(n int64) llmcache.Sum {
	return llmcache.Sum{
		Calls: n, InputTokens: 20 * n, OutputTokens: 3 * n, CachedTokens: 4 * n, CacheWriteTokens: 7 * n,
		CostMicros: 50 * n, Unpriced: 6 * n,
	}
}

func (s *suite) begin(sl llmcache.Slot, c llmcache.Claim, want llmcache.State) llmcache.Begun {
	s.Helper()
	b, err := s.store.Begin(s.Context(), sl, c)
	if err != nil || b.State != want {
		s.Fatalf("Begin by %s = %+v, %v; want state %d", c.Owner, b, err, want)
	}
	return b
}

func (s *suite) finish(sl llmcache.Slot, owner string, a llmcache.Stored, want bool) {
	s.Helper()
	if ok, err := s.store.Finish(s.Context(), sl, owner, a); err != nil || ok != want {
		s.Fatalf("Finish by %s = %v, %v; want %v", owner, ok, err, want)
	}
}

func (s *suite) extend(sl llmcache.Slot, owner string, d time.Duration, want bool) {
	s.Helper()
	if ok, err := s.store.Extend(s.Context(), sl, owner, d); err != nil || ok != want {
		s.Fatalf("Extend by %s = %v, %v; want %v", owner, ok, err, want)
	}
}

func (s *suite) abandon(sl llmcache.Slot, owner string, a llmcache.Account) {
	s.Helper()
	if err := s.store.Abandon(s.Context(), sl, owner, a, long); err != nil {
		s.Fatalf("Abandon by %s: %v", owner, err)
	}
}

func (s *suite) sums(key string, paid, saved, wasted llmcache.Sum) llmcache.Account {
	s.Helper()
	a, err := s.store.Sums(s.Context(), key)
	if err != nil || a.Paid != paid || a.Saved != saved || a.Wasted != wasted {
		s.Fatalf("Sums(%s) = %+v, %v; want paid %+v, saved %+v, wasted %+v", key, a, err, paid, saved, wasted)
	}
	return a
}

func answerLives(t *testing.T, s *suite) {
	for _, sl := range []llmcache.Slot{slot("a"), outside("a")} {
		s.begin(sl, claim("one"), llmcache.StateMine)
		a := answer("data")
		a.TTL = short
		s.finish(sl, "one", a, true)
		b := s.begin(sl, claim("two"), llmcache.StateFound)
		if string(b.Data) != "data" || b.TTL <= 0 || b.TTL > short {
			t.Errorf("found %q for %v, want data for up to %v", b.Data, b.TTL, short)
		}
		renew := claim("three")
		renew.Renew = true
		s.begin(sl, renew, llmcache.StateMine)
		s.begin(sl, claim("two"), llmcache.StateFound) // the old answer serves until the new one is there
		a.Data = []byte("new")
		s.finish(sl, "three", a, true)
		if b := s.begin(sl, claim("four"), llmcache.StateFound); string(b.Data) != "new" {
			t.Errorf("found %q, want new", b.Data)
		}
		time.Sleep(short + 5*time.Millisecond)
		s.begin(sl, claim("five"), llmcache.StateMine)
	}
}

func touch(t *testing.T, s *suite) {
	sl := slot("a")
	s.begin(sl, claim("one"), llmcache.StateMine)
	a := answer("data")
	a.TTL = short
	s.finish(sl, "one", a, true)
	c := claim("two")
	c.Touch = long
	if b := s.begin(sl, c, llmcache.StateFound); b.TTL <= short {
		t.Errorf("TTL %v after a touch, want about %v", b.TTL, long)
	}
	time.Sleep(short + 5*time.Millisecond)
	c.Touch = time.Millisecond // a touch never shortens
	if b := s.begin(sl, c, llmcache.StateFound); b.TTL <= short {
		t.Errorf("TTL %v, want about %v", b.TTL, long)
	}
}

func oneGetsTheLease(t *testing.T, s *suite) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	states := map[llmcache.State]int{}
	for i := range 20 {
		wg.Go(func() {
			b, err := s.store.Begin(t.Context(), slot("a"), claim("owner-"+strconv.Itoa(i)))
			if err != nil {
				t.Error(err)
			}
			if b.State == llmcache.StateHeld && (b.TTL <= 0 || b.TTL > long) {
				t.Errorf("held for %v, want up to %v", b.TTL, long)
			}
			mu.Lock()
			states[b.State]++
			mu.Unlock()
		})
	}
	wg.Wait()
	if states[llmcache.StateMine] != 1 || states[llmcache.StateHeld] != 19 {
		t.Errorf("states %v, want 1 Mine and 19 Held", states)
	}
}

func expiredLease(t *testing.T, s *suite) {
	c := claim("dead")
	c.Lease = short
	s.begin(slot("a"), c, llmcache.StateMine)
	s.begin(slot("a"), claim("two"), llmcache.StateHeld)
	time.Sleep(short / 2)
	s.extend(slot("a"), "dead", short, true)
	time.Sleep(short/2 + 5*time.Millisecond)
	s.begin(slot("a"), claim("two"), llmcache.StateHeld)
	time.Sleep(short)
	s.begin(slot("a"), claim("two"), llmcache.StateMine)
	s.extend(slot("a"), "dead", short, false)
}

func overtaken(t *testing.T, s *suite) {
	fenced := func(owner string, fence int64) llmcache.Claim {
		c := claim(owner)
		c.Fence, c.Note = fence, "note of "+owner
		return c
	}
	s.begin(slot("a"), fenced("two", 1796049463675657), llmcache.StateMine)
	s.begin(slot("a"), fenced("same", 1796049463675657), llmcache.StateHeld)
	s.begin(slot("a"), fenced("one", 5), llmcache.StateHeld)
	s.begin(slot("a"), fenced("none", 0), llmcache.StateHeld)
	if b := s.begin(slot("a"), fenced("three", 1796049463675658), llmcache.StateMine); b.Note != "note of two" {
		t.Errorf("note %q, want that of the interrupted call", b.Note)
	}
	s.extend(slot("a"), "two", long, false)
	s.finish(slot("a"), "two", answer("late"), false)
	s.finish(slot("a"), "three", answer("data"), true)
	s.begin(slot("b"), fenced("outside", 0), llmcache.StateMine)
	s.begin(slot("b"), fenced("inside", 7), llmcache.StateHeld)
}

func repetitions(_ *testing.T, s *suite) {
	sl := slot("a")
	s.begin(sl, claim("one"), llmcache.StateMine)
	s.begin(sl, claim("one"), llmcache.StateMine)
	s.finish(sl, "one", answer("data"), true)
	s.finish(sl, "one", answer("data"), true)
	s.begin(sl, claim("two"), llmcache.StateFound)
	s.begin(sl, claim("two"), llmcache.StateFound)
	s.sums(sl.Book, cost(1), cost(1), llmcache.Sum{})
	lost := slot("b")
	s.begin(lost, claim("three"), llmcache.StateMine)
	waste := llmcache.Account{Wasted: cost(2)}
	s.abandon(lost, "three", waste)
	s.abandon(lost, "three", waste)
	s.sums(sl.Book, cost(1), cost(1), cost(2))
}

func late(t *testing.T, s *suite) {
	for _, sl := range []llmcache.Slot{slot("a"), outside("a")} {
		c := claim("late")
		c.Lease = short
		s.begin(sl, c, llmcache.StateMine)
		time.Sleep(short + 5*time.Millisecond)
		s.begin(sl, claim("next"), llmcache.StateMine)
		s.finish(sl, "late", answer("late"), false)
		s.abandon(sl, "late", llmcache.Account{Wasted: cost(9)})
		s.begin(sl, claim("other"), llmcache.StateHeld)
		s.finish(sl, "next", answer("next"), true)
		s.finish(sl, "late", answer("late"), false)
		if b := s.begin(sl, claim("other"), llmcache.StateFound); string(b.Data) != "next" {
			t.Errorf("found %q, want next", b.Data)
		}
	}
}

func takeBack(_ *testing.T, s *suite) {
	sl := slot("a")
	c := claim("one")
	c.Lease = short
	s.begin(sl, c, llmcache.StateMine)
	time.Sleep(short + 5*time.Millisecond)
	s.extend(sl, "one", long, true)
	s.begin(sl, claim("two"), llmcache.StateHeld)
	s.extend(sl, "two", long, false)

	sl = slot("b")
	s.begin(sl, c, llmcache.StateMine)
	time.Sleep(short + 5*time.Millisecond)
	s.finish(sl, "one", answer("data"), true)
	s.begin(sl, claim("two"), llmcache.StateFound)
	s.extend(slot("never"), "one", long, false)
}

func abandoned(_ *testing.T, s *suite) {
	s.begin(slot("a"), claim("one"), llmcache.StateMine)
	s.abandon(slot("a"), "two", llmcache.Account{Wasted: cost(1)})
	s.begin(slot("a"), claim("two"), llmcache.StateHeld)
	s.abandon(slot("a"), "one", llmcache.Account{})
	s.begin(slot("a"), claim("two"), llmcache.StateMine)
	s.sums(slot("a").Book, llmcache.Sum{}, llmcache.Sum{}, llmcache.Sum{})
}

func interrupted(t *testing.T, s *suite) {
	for _, sl := range []llmcache.Slot{slot("a"), outside("a")} {
		dead := claim("dead")
		dead.Lease = short
		if b := s.begin(sl, dead, llmcache.StateMine); b.Note != "" {
			t.Errorf("note %q of a call before the first", b.Note)
		}
		time.Sleep(short + 5*time.Millisecond)
		refuse := claim("two")
		refuse.Refuse = true
		if b := s.begin(sl, refuse, llmcache.StateAmbiguous); b.Note != dead.Note {
			t.Errorf("note %q, want %q", b.Note, dead.Note)
		}
		if b := s.begin(sl, claim("two"), llmcache.StateMine); b.Note != dead.Note {
			t.Errorf("note %q, want %q", b.Note, dead.Note)
		}
		if b := s.begin(sl, claim("two"), llmcache.StateMine); b.Note != "" {
			t.Errorf("note %q the second time, want none", b.Note)
		}
	}
	s.sums(slot("a").Book, llmcache.Sum{}, llmcache.Sum{}, llmcache.Sum{Calls: 1})
}

func budget(t *testing.T, s *suite) {
	limited := func(owner string, b llmcache.Budget) llmcache.Claim {
		c := claim(owner)
		c.Limit = b
		return c
	}
	for i := range 2 { // 2 calls, 46 tokens, 100 micro-units
		sl := slot("paid" + strconv.Itoa(i))
		s.begin(sl, limited("one", llmcache.Budget{Calls: 2, Tokens: 46, CostMicros: 100}), llmcache.StateMine)
		s.finish(sl, "one", answer("x"), true)
	}
	for i, c := range []struct {
		b    llmcache.Budget
		want llmcache.State
	}{
		{llmcache.Budget{Calls: 2}, llmcache.StateSpent},
		{llmcache.Budget{Tokens: 46}, llmcache.StateSpent},
		{llmcache.Budget{Tokens: 68}, llmcache.StateSpent}, // the next one would be the 69th
		{llmcache.Budget{CostMicros: 100}, llmcache.StateSpent},
		{llmcache.Budget{CostMicros: 149}, llmcache.StateSpent},
		{llmcache.Budget{Calls: 3, Tokens: 69, CostMicros: 150}, llmcache.StateMine},
		{llmcache.Budget{Calls: 3}, llmcache.StateSpent}, // one is under way
		{llmcache.Budget{CostMicros: 199}, llmcache.StateSpent},
		{llmcache.Budget{CostMicros: 200}, llmcache.StateMine},
		{llmcache.Budget{}, llmcache.StateMine},
	} {
		b := s.begin(slot("next"+strconv.Itoa(i)), limited("two", c.b), c.want)
		if b.State == llmcache.StateSpent && b.Totals.Paid != cost(2) {
			t.Errorf("totals %+v, want %+v paid", b.Totals, cost(2))
		}
	}
	s.begin(slot("paid0"), limited("three", llmcache.Budget{Calls: 1}), llmcache.StateFound) // what is there costs nothing
}

func countOnce(_ *testing.T, s *suite) {
	a := llmcache.Account{Paid: cost(1), Saved: cost(2), Wasted: cost(3)}
	for _, id := range []string{"x", "x", "y", "x"} {
		if err := s.store.Count(s.Context(), "s:llm:{total}", id, a, long); err != nil {
			s.Fatal(err)
		}
	}
	s.sums("s:llm:{total}", cost(2), cost(4), cost(6))
	if err := s.store.Count(s.Context(), "s:llm:{brief}", "x", a, short); err != nil {
		s.Fatal(err)
	}
	time.Sleep(short + 5*time.Millisecond)
	s.sums("s:llm:{brief}", llmcache.Sum{}, llmcache.Sum{}, llmcache.Sum{})
	s.sums("s:llm:{unknown}", llmcache.Sum{}, llmcache.Sum{}, llmcache.Sum{})
}

func noBook(_ *testing.T, s *suite) {
	s.begin(outside("a"), claim("one"), llmcache.StateMine)
	s.finish(outside("a"), "one", answer("x"), true)
	s.begin(outside("a"), claim("two"), llmcache.StateFound)
	s.begin(outside("b"), claim("one"), llmcache.StateMine)
	s.abandon(outside("b"), "one", llmcache.Account{Wasted: cost(1)})
	s.begin(outside("b"), claim("two"), llmcache.StateMine)
	s.sums("", llmcache.Sum{}, llmcache.Sum{}, llmcache.Sum{})
}

func openCalls(t *testing.T, s *suite) {
	dead := claim("dead")
	dead.Lease, dead.Note = short, `{"model":"first","since":1600000000000}`
	s.begin(slot("b"), dead, llmcache.StateMine)
	s.begin(slot("a"), claim("alive"), llmcache.StateMine)
	time.Sleep(short + 5*time.Millisecond)
	a := s.sums(slot("a").Book, llmcache.Sum{}, llmcache.Sum{}, llmcache.Sum{})
	want := []llmcache.OpenCall{
		{ID: "b", Model: "first", Since: time.UnixMilli(1600000000000)},
		{ID: "a", Model: "m", Label: "l", Since: time.UnixMilli(1700000000000), Held: true},
	}
	if len(a.Open) != 2 || a.Open[0] != want[0] || a.Open[1] != want[1] || a.MaybePaid() != 1 {
		t.Errorf("open %+v, maybe paid %d; want %+v, 1", a.Open, a.MaybePaid(), want)
	}
}
