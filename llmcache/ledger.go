package llmcache

import (
	"context"
	"fmt"

	"github.com/nexuscore/onceq/internal/lease"
	"github.com/nexuscore/onceq/internal/runkey"
	"github.com/nexuscore/onceq/internal/setting"
)

// Ledger reads what calls cost and what the cache saved. What a run's own answers
// cost is counted together with storing them; shared answers and the total trail
// by a fifth of a second, and by what a killed process had not yet written.
type Ledger struct{ cache *Cache }

// Ledger returns the cache's ledger. That of a nil Cache is empty.
func (c *Cache) Ledger() *Ledger { return &Ledger{c} }

// Of returns the account of the run with this key, empty for an unknown one. It
// may be asked while the run goes on. The error wraps ErrUnavailable when the
// store does not answer, ErrInvalid for a key that no run can have.
//
// The run is looked for under the cache's prefix, which must be that of the guard
// (WithPrefix): under another one there is no such run, and the account is empty. In
// a context that belongs to the run, the run's own prefix counts.
func (l *Ledger) Of(ctx context.Context, key string) (Account, error) {
	if err := runkey.Validate(key); err != nil {
		return Account{}, setting.Invalidf("Ledger.Of: %w", err)
	}
	if l.cache == nil {
		return Account{}, nil
	}
	base := runkey.Base(l.cache.prefix, key)
	if held, ok := lease.FromContext(ctx); ok && held.Key == key {
		base = held.Base
	}
	return l.cache.ledgerOf(ctx, bookKey(base))
}

// Total returns the account of the prefix, runs and calls outside runs together.
// It is forgotten after 90 days without a call, and lists no open calls.
func (l *Ledger) Total(ctx context.Context) (Account, error) {
	if l.cache == nil {
		return Account{}, nil
	}
	return l.cache.ledgerOf(ctx, totalKey(l.cache.prefix))
}

func (c *Cache) ledgerOf(ctx context.Context, book string) (a Account, err error) {
	if c.off {
		return Account{}, nil
	}
	if err := c.tally.flush(ctx, book); err != nil {
		return Account{}, fmt.Errorf("llmcache: write ledger: %w", cannotTell(err))
	}
	err = c.ask(ctx, book, func(ctx context.Context) (err error) {
		a, err = c.store.Sums(ctx, book)
		return err
	})
	if err != nil {
		return Account{}, fmt.Errorf("llmcache: ledger: %w", cannotTell(err))
	}
	return a, nil
}

// Flush writes what the ledger still holds in memory; call it when the process
// ends. The error wraps ErrUnavailable when the store does not answer.
func (c *Cache) Flush(ctx context.Context) error {
	if c == nil || c.off {
		return nil
	}
	if err := c.tally.flush(ctx, ""); err != nil {
		return fmt.Errorf("llmcache: write ledger: %w", cannotTell(err))
	}
	return nil
}
