package llmcache

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nexuscore/onceq/internal/redistest"
	"github.com/nexuscore/onceq/internal/scope"
)

func TestSharedAnswerIsPaidOnce(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	var m model
	a, b := open(t, rdb), open(t, rdb)
	for _, c := range []*Cache{a, a, b} {
		if got := do(t, t.Context(), c, &m); got != "answer 1" {
			t.Errorf("got %q, want %q", got, "answer 1")
		}
	}
	if got, want := a.Stats(), (Stats{Hits: 1, Misses: 1, Stored: 1}); got != want {
		t.Errorf("Stats() = %+v, want %+v", got, want)
	}
}

func TestSharedAnswerExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, rdb := redistest.Bubble(t)
		c := open(t, rdb)
		var llm model
		do(t, t.Context(), c, &llm)
		for _, k := range m.Keys() {
			if m.TTL(k) <= 0 {
				t.Errorf("key %s has no TTL", k)
			}
		}
		time.Sleep(24*time.Hour - time.Minute)
		if got := do(t, t.Context(), c, &llm); got != "answer 1" {
			t.Errorf("after 23:59 h: %q, want the stored answer", got)
		}
		time.Sleep(time.Minute)
		if got := do(t, t.Context(), c, &llm); got != "answer 2" {
			t.Errorf("after 24 h: %q, want a new answer", got)
		}
	})
}

// M9: three samples stay three samples, and the resumed run gets the same three.
func TestRunReplaysItsSamplesInOrder(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	var m model
	for range 2 {
		ctx, _ := attempt(t, t.Context(), "run", "planning")
		c := open(t, rdb)
		for i := 1; i <= 3; i++ {
			if got, want := do(t, ctx, c, &m), fmt.Sprintf("answer %d", i); got != want {
				t.Errorf("sample %d: %q, want %q", i, got, want)
			}
		}
	}
	ctx, _ := attempt(t, t.Context(), "other run", "planning")
	if got := do(t, ctx, open(t, rdb), &m); got != "answer 4" {
		t.Errorf("another run got %q, want its own answer", got)
	}
}

// An attempt that resumes at phase 2 must not get phase 1's answer to an identical call.
func TestRunReplaysByPhaseStepGenerationAndLabel(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	c := open(t, rdb)
	var m model
	one, l := attempt(t, t.Context(), "run", "one")
	two := scope.New(one, "two", "")
	step := scope.New(two, "two", "risks")
	labelled := With(two, Label("a"))
	tenant := With(two, Tenant("acme"))
	contexts := []context.Context{one, two, step, labelled, tenant}
	for i, ctx := range contexts {
		if got, want := do(t, ctx, c, &m), fmt.Sprintf("answer %d", i+1); got != want {
			t.Errorf("call %d: %q, want %q", i, got, want)
		}
	}
	resumed, _ := attempt(t, t.Context(), "run", "two")
	if got := do(t, resumed, c, &m); got != "answer 2" {
		t.Errorf("resumed at phase two: %q, want phase two's answer", got)
	}
	if got := do(t, With(resumed, Label("a")), c, &m); got != "answer 4" {
		t.Errorf("label a: %q, want its answer", got)
	}
	l.Generation = 2
	next := scope.New(one, "one", "")
	if got := do(t, next, c, &m); got != "answer 6" {
		t.Errorf("generation 2: %q, want a new answer", got)
	}
}

// A client that retries a failed call makes the same call again.
func TestFailedCallGivesItsPlaceBack(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	c := open(t, rdb)
	ctx, _ := attempt(t, t.Context(), "run", "p")
	busy := errors.New("429")
	_, err := Do(ctx, c, prompt("x"), func(context.Context) (Answer[string], error) { return Answer[string]{}, busy })
	if err != busy {
		t.Fatalf("Do = %v, want the error unchanged", err)
	}
	var m model
	do(t, ctx, c, &m, "x")
	resumed, _ := attempt(t, t.Context(), "run", "p")
	if got := do(t, resumed, c, &m, "x"); got != "answer 1" {
		t.Errorf("resumed: %q, want the answer of the retry", got)
	}
	if got := c.Stats().Failed; got != 1 {
		t.Errorf("Failed = %d, want 1", got)
	}
}

func TestLabelsMakeFanOutCertain(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	c := open(t, rdb)
	var m model
	run := func(order []int) map[int]string {
		ctx, _ := attempt(t, t.Context(), "run", "p")
		got := map[int]string{}
		for _, i := range order {
			got[i] = do(t, With(ctx, Label(fmt.Sprint(i))), c, &m)
		}
		return got
	}
	first, second := run([]int{0, 1, 2}), run([]int{2, 0, 1})
	for i := range 3 {
		if first[i] != second[i] {
			t.Errorf("label %d: %q, then %q", i, first[i], second[i])
		}
	}
}

func TestOnlyWholeAnswersAreStored(t *testing.T) {
	t.Parallel()
	type value = map[string]any
	for _, tc := range []struct {
		name   string
		answer Answer[any]
		shared bool
		opts   []Option
		stored bool
	}{
		{"complete", Answer[any]{Value: value{"a": 1.0}}, true, nil, true},
		{"false is an answer", Answer[any]{Value: false}, true, nil, true},
		{"zero is an answer", Answer[any]{Value: 0.0}, true, nil, true},
		{"nil", Answer[any]{}, true, nil, false},
		{"empty string", Answer[any]{Value: ""}, true, nil, false},
		{"empty object", Answer[any]{Value: value{}}, true, nil, false},
		{"incomplete", Answer[any]{Value: "x", Finish: FinishIncomplete}, false, nil, false},
		{"length, shared", Answer[any]{Value: "x", Finish: FinishLength}, true, nil, false}, // M3
		{"length, run", Answer[any]{Value: "x", Finish: FinishLength}, false, nil, true},
		{"refused", Answer[any]{Value: "x", Finish: FinishRefused}, false, nil, false},
		{"refused, host keeps them", Answer[any]{Value: "x", Finish: FinishRefused}, true, []Option{WithRefusals()}, true},
		{"too large", Answer[any]{Value: strings.Repeat("x", 100)}, true, []Option{WithMaxValue(100)}, false},
		{"no JSON form", Answer[any]{Value: make(chan int)}, true, nil, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, rdb := redistest.Mini(t)
			c := open(t, rdb, tc.opts...)
			calls := 0
			for range 2 {
				ctx := t.Context()
				if !tc.shared {
					ctx, _ = attempt(t, ctx, "run", "p")
				}
				got, err := Do(ctx, c, prompt("x"), func(context.Context) (Answer[any], error) {
					calls++
					return tc.answer, nil
				})
				if err != nil || fmt.Sprint(got) != fmt.Sprint(tc.answer.Value) {
					t.Fatalf("Do = %v, %v; want %v", got, err, tc.answer.Value)
				}
			}
			want := 2
			if tc.stored {
				want = 1
			}
			if calls != want {
				t.Errorf("%d calls, want %d", calls, want)
			}
			if keys := rdb.Keys(t.Context(), "*lease*").Val(); len(keys) > 0 {
				t.Errorf("leases left: %v", keys)
			}
			if keys := rdb.Keys(t.Context(), "*flights*").Val(); len(keys) > 0 {
				t.Errorf("in-flight records left: %v", keys)
			}
		})
	}
}

func TestContextOptions(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	c := open(t, rdb)
	var m model
	ctx, _ := attempt(t, t.Context(), "run", "p")
	shared := With(ctx, Scope(SharedScope))
	for i, tc := range []struct {
		ctx  context.Context
		want string
	}{
		{shared, "answer 1"},
		{shared, "answer 1"},
		{t.Context(), "answer 1"}, // outside the run
		{With(shared, Tenant("acme")), "answer 2"},
		{With(shared, Tenant("acme")), "answer 2"},
		{With(shared, Bypass()), "answer 3"},
		{shared, "answer 1"},
		{With(shared, Refresh()), "answer 4"},
		{shared, "answer 4"},
		{With(t.Context(), Scope(RunScope)), "answer 5"}, // no run: no caching
		{With(t.Context(), Scope(RunScope)), "answer 6"},
	} {
		if got := do(t, tc.ctx, c, &m); got != tc.want {
			t.Errorf("call %d: %q, want %q", i, got, tc.want)
		}
	}
}

func TestTypesAndTheirChange(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	c := open(t, rdb)
	type plan struct{ Steps []string }
	calls := 0
	for range 2 {
		got, err := Do(t.Context(), c, prompt("x"), func(context.Context) (Answer[plan], error) {
			calls++
			return Answer[plan]{Value: plan{[]string{"a", "b"}}}, nil
		})
		if err != nil || fmt.Sprint(got) != "{[a b]}" {
			t.Fatalf("Do = %v, %v", got, err)
		}
	}
	if calls != 1 {
		t.Errorf("%d calls, want 1", calls)
	}
	// The type changed between deploys: the stored answer is of no use.
	got, err := Do(t.Context(), c, prompt("x"), func(context.Context) (Answer[int], error) { return Answer[int]{Value: 7}, nil })
	if err != nil || got != 7 {
		t.Errorf("Do[int] = %v, %v; want 7", got, err)
	}
	b, err := Do(t.Context(), c, prompt("x"), func(context.Context) (Answer[[]byte], error) { return Answer[[]byte]{Value: []byte("raw")}, nil })
	if err != nil || string(b) != "raw" {
		t.Errorf("Do[[]byte] = %q, %v", b, err)
	}
	b[0] = 'X' // the caller owns its copy
	b, err = Do(t.Context(), c, prompt("x"), func(context.Context) (Answer[[]byte], error) { return Answer[[]byte]{}, errors.New("called") })
	if err != nil || string(b) != "raw" {
		t.Errorf("replay = %q, %v", b, err)
	}
	if got := c.Stats().Discarded; got != 2 {
		t.Errorf("Discarded = %d, want 2", got)
	}
}

func TestMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Bubble(t)
		c := open(t, rdb, WithMemory(1<<20), WithTTL(time.Hour))
		var m model
		do(t, t.Context(), c, &m)
		var n redistest.Counter
		rdb.AddHook(&n)
		if got := do(t, t.Context(), c, &m); got != "answer 1" || n.Commands() != 0 {
			t.Errorf("%q with %d commands, want the answer without Redis", got, n.Commands())
		}
		time.Sleep(time.Hour)
		if got := do(t, t.Context(), c, &m); got != "answer 2" {
			t.Errorf("after the TTL: %q, want a new answer", got)
		}
		small := open(t, rdb, WithMemory(1500))
		for _, p := range []string{"a", "b", "c", "d"} {
			do(t, t.Context(), small, &m, p)
		}
		if small.memory.size > 1500 || small.memory.used.Len() == 0 {
			t.Errorf("memory holds %d bytes in %d entries, want at most 1500", small.memory.size, small.memory.used.Len())
		}
	})
}

// A command that is retried after its reply was lost changes nothing more.
func TestRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Bubble(t)
		c := open(t, rdb)
		var m model
		var n redistest.Counter
		ctx, _ := attempt(t, t.Context(), "run", "p")
		do(t, ctx, c, &m, "load the scripts")
		time.Sleep(time.Second)
		rdb.AddHook(&n)
		trips := func() int64 { defer n.Reset(); return n.RoundTrips() }
		do(t, ctx, c, &m)
		if got := trips(); got != 2 {
			t.Errorf("a miss costs %d round trips, want 2", got)
		}
		time.Sleep(time.Second)
		if got := trips(); got != 1 {
			t.Errorf("the total costs %d round trips, want 1 a second at most", got)
		}
		ctx, _ = attempt(t, t.Context(), "run", "p")
		do(t, ctx, c, &m)
		if got := trips(); got != 1 {
			t.Errorf("a hit costs %d round trips, want 1", got)
		}
	})
}

func TestPanicComesOutOfDo(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	c := open(t, rdb)
	boom := errors.New("boom")
	func() {
		defer func() {
			err, _ := recover().(error)
			if !errors.Is(err, boom) || !strings.Contains(err.Error(), "TestPanicComesOutOfDo") {
				t.Errorf("recovered %v, want boom and where it was", err)
			}
		}()
		_, _ = Do(t.Context(), c, prompt("x"), func(context.Context) (Answer[string], error) { panic(boom) })
	}()
	var m model
	if got := do(t, t.Context(), c, &m, "x"); got != "answer 1" {
		t.Errorf("after the panic: %q", got)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := Do(t.Context(), c, prompt("y"), func(context.Context) (Answer[string], error) { runtimeGoexit(); return Answer[string]{}, nil })
		if !errors.Is(err, errExited) {
			t.Errorf("Goexit: %v, want errExited", err)
		}
	})
	wg.Wait()
}
