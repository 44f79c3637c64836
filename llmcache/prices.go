package llmcache

import (
	"math/bits"
	"strings"

	"github.com/nexuscore/onceq/internal/setting"
)

// Price of a model's tokens, in micro-units of any currency per million tokens:
// $2.50 per million is 2_500_000.
type Price struct {
	Input  int64
	Output int64
	Cached int64 // of input tokens from the provider's own cache; they are not charged as Input too
	// CacheWrite is the price of input tokens that are written to the provider's own
	// cache, in place of Input. 0 means that they cost what Input does. Where a provider
	// has several, by how long it keeps them, give that of the kind you use: it reports
	// their sum.
	CacheWrite int64
}

// Prices by model name. A name that ends in "*" stands for all models that begin
// so, "*" alone for all; the longest match counts. A name that is empty or has a "*"
// elsewhere is refused. The library brings none: prices change.
type Prices map[string]Price

func (p Prices) validate() error {
	for model, price := range p {
		if star := strings.IndexByte(model, '*'); model == "" || star >= 0 && star < len(model)-1 {
			return setting.Invalidf("WithPrices: no model can be called %q; a \"*\" stands at the end, for all names that begin so", model)
		}
		for _, v := range []int64{price.Input, price.Output, price.Cached, price.CacheWrite} {
			if v < 0 || v > maxPrice {
				return setting.Invalidf("WithPrices: %q costs %d, from 0 to %d micro-units per million tokens are allowed", model, v, int64(maxPrice))
			}
		}
	}
	return nil
}

const (
	maxPrice  = 1_000_000_000_000 // a unit for each token
	maxTokens = 1 << 40
)

func (p Prices) of(models ...string) (Price, bool) {
	for _, m := range models {
		if m == "" {
			continue
		}
		if price, ok := p[m]; ok {
			return price, true
		}
		best := ""
		for name := range p {
			if stem, ok := strings.CutSuffix(name, "*"); ok && strings.HasPrefix(m, stem) && len(name) > len(best) {
				best = name
			}
		}
		if best != "" {
			return p[best], true
		}
	}
	return Price{}, false
}

// cost of one call, rounded to the nearest micro-unit. The sum before division
// can be larger than 64 bits.
func (p Price) cost(u Usage) int64 {
	cached := min(u.CachedTokens, u.InputTokens)
	written, write := min(u.CacheWriteTokens, u.InputTokens-cached), p.CacheWrite
	if write == 0 {
		write = p.Input
	}
	hi, lo := uint64(0), uint64(500_000)
	for _, part := range [...][2]int64{
		{u.InputTokens - cached - written, p.Input}, {cached, p.Cached}, {written, write}, {u.OutputTokens, p.Output},
	} {
		h, l := bits.Mul64(uint64(part[0]), uint64(part[1]))
		var carry uint64
		lo, carry = bits.Add64(lo, l, 0)
		hi += h + carry
	}
	q, _ := bits.Div64(hi, lo, 1_000_000) // hi is small enough: see maxPrice and maxTokens
	return int64(q)
}

// sum is the ledger's line for one call.
func (p Prices) sum(u Usage, models ...string) Sum {
	u = Usage{clamp(u.InputTokens), clamp(u.OutputTokens), clamp(u.CachedTokens), clamp(u.CacheWriteTokens)}
	s := Sum{
		Calls: 1, InputTokens: u.InputTokens, OutputTokens: u.OutputTokens,
		CachedTokens: u.CachedTokens, CacheWriteTokens: u.CacheWriteTokens,
	}
	if price, ok := p.of(models...); ok {
		s.CostMicros = price.cost(u)
	} else if len(p) > 0 {
		s.Unpriced = 1
	}
	return s
}

// clamp keeps what a provider claims within what sums can hold.
func clamp(n int64) int64 { return min(max(n, 0), maxTokens) }
