package llmcache

import (
	"slices"
	"strings"
	"time"
)

// Usage is what a provider says about one call.
type Usage struct {
	InputTokens  int64 // all of them, cached ones included
	OutputTokens int64 // all of them, reasoning included
	CachedTokens int64 // of the input tokens, those the provider read from its own cache
	// CacheWriteTokens are, of the input tokens, those the provider wrote to its own
	// cache: Anthropic's cache_creation_input_tokens. Others do not say.
	CacheWriteTokens int64
}

// Sum adds up calls. Money is in micro-units of the currency of the prices.
type Sum struct {
	Calls            int64
	InputTokens      int64 // as in Usage: all, those read from and written to the provider's cache included
	OutputTokens     int64
	CachedTokens     int64
	CacheWriteTokens int64
	CostMicros       int64
	Unpriced         int64 // calls whose model has no price: they are not in CostMicros
}

// Tokens is the number of tokens, input and output.
func (s Sum) Tokens() int64 { return s.InputTokens + s.OutputTokens }

func (s Sum) plus(t Sum) Sum {
	for _, c := range columns {
		*s.column(c) += *t.column(c)
	}
	return s
}

// Account is a ledger's content.
type Account struct {
	Paid   Sum // calls that reached the provider and answered
	Saved  Sum // calls answered by the cache, at what they had cost
	Wasted Sum // calls that may have been paid for nothing: aborted, cut, or interrupted by a crash
	// Open are the calls that began and have not ended, oldest first: they are
	// under way, or their process died. Then they may have been paid, and count as
	// wasted once another attempt repeats them.
	Open []OpenCall
}

// MaybePaid counts the open calls that nobody works on any longer: what the
// provider did for them is unknown.
func (a Account) MaybePaid() int {
	n := 0
	for _, o := range a.Open {
		if !o.Held {
			n++
		}
	}
	return n
}

// OpenCall is an in-flight record.
type OpenCall struct {
	ID    string    // of the call within the run
	Model string    // as the request names it
	Label string    // as the caller gave it
	Since time.Time // when it began, by the clock of the worker that made it
	Held  bool      // its process was alive when the account was read
}

func (a Account) plus(b Account) Account {
	return Account{Paid: a.Paid.plus(b.Paid), Saved: a.Saved.plus(b.Saved), Wasted: a.Wasted.plus(b.Wasted)}
}

func (a Account) zero() bool {
	return a.Paid == Sum{} && a.Saved == Sum{} && a.Wasted == Sum{}
}

// kinds and columns name the ledger's fields: "paid_calls", "saved_in" and so on.
var (
	kinds   = []string{"paid", "saved", "wasted"}
	columns = []string{"calls", "in", "out", "cached", "write", "cost", "unpriced"}
)

func (a *Account) sum(kind string) *Sum {
	switch kind {
	case "paid":
		return &a.Paid
	case "saved":
		return &a.Saved
	case "wasted":
		return &a.Wasted
	}
	return nil
}

func (s *Sum) column(name string) *int64 {
	switch name {
	case "calls":
		return &s.Calls
	case "in":
		return &s.InputTokens
	case "out":
		return &s.OutputTokens
	case "cached":
		return &s.CachedTokens
	case "write":
		return &s.CacheWriteTokens
	case "cost":
		return &s.CostMicros
	case "unpriced":
		return &s.Unpriced
	}
	return nil
}

// fields calls yield for each field of the account that is not zero.
func (a Account) fields(yield func(name string, n int64)) {
	for _, k := range kinds {
		a.sum(k).fields(func(name string, n int64) { yield(k+"_"+name, n) })
	}
}

func (s *Sum) fields(yield func(name string, n int64)) {
	for _, c := range columns {
		if n := *s.column(c); n != 0 {
			yield(c, n)
		}
	}
}

// field returns the place of a field, nil for an unknown name.
func (a *Account) field(name string) *int64 {
	kind, column, _ := strings.Cut(name, "_")
	s := a.sum(kind)
	if s == nil {
		return nil
	}
	return s.column(column)
}

func sortOpen(open []OpenCall) {
	slices.SortFunc(open, func(a, b OpenCall) int {
		if c := a.Since.Compare(b.Since); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
}

// Budget limits what a run may spend. A zero field is no limit.
type Budget struct {
	Calls      int64
	Tokens     int64 // input and output
	CostMicros int64
}

// negative returns a field below 0, if there is one.
func (b Budget) negative() (name string, n int64) {
	switch {
	case b.Calls < 0:
		return "Calls", b.Calls
	case b.Tokens < 0:
		return "Tokens", b.Tokens
	}
	return "CostMicros", min(b.CostMicros, 0)
}

// over names the first limit that one more call would exceed, "" when none. The
// size of a call is not known before it is made: it is taken to be the mean of
// the run's paid calls, and so are those that are under way.
func (b Budget) over(a Account, open int64) string {
	spent := a.Paid.plus(a.Wasted)
	ahead := func(sum int64) int64 {
		if a.Paid.Calls == 0 {
			return 1
		}
		return max(1, (sum+a.Paid.Calls-1)/a.Paid.Calls*(open+1))
	}
	switch {
	case b.Calls > 0 && spent.Calls+open+1 > b.Calls:
		return "calls"
	case b.Tokens > 0 && spent.Tokens()+ahead(a.Paid.Tokens()) > b.Tokens:
		return "tokens"
	case b.CostMicros > 0 && spent.CostMicros+ahead(a.Paid.CostMicros) > b.CostMicros:
		return "cost"
	}
	return ""
}
