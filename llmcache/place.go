package llmcache

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/nexuscore/onceq/internal/lease"
	"github.com/nexuscore/onceq/internal/scope"
)

// place is where one call stands: whose it is, where its answer lives and how
// long, and how it is to be made.
type place struct {
	settings
	slot  Slot
	lease *lease.Lease // nil outside runs
	run   string       // key of the run, "" outside
	book  string       // ledger of the run, "" outside
	ttl   time.Duration
	touch time.Duration
	limit Budget
	// giveBack lets a repetition of the call have its place.
	giveBack func()
}

// shared reports whether other runs will see the answer.
func (p *place) shared() bool { return p.sharing == SharedScope }

// locate finds the place of the call with this hash. tenant is the one to use
// when the context names none, in the shared scope.
func (c *Cache) locate(ctx context.Context, call [32]byte, tenant string) (*place, error) {
	p := &place{settings: settingsOf(ctx), limit: c.budget, giveBack: func() {}}
	if p.err != nil {
		return nil, p.err
	}
	if l, ok := lease.FromContext(ctx); ok {
		p.lease, p.run, p.book = l, l.Key, bookKey(l.Base)
	}
	if p.settings.limit != nil {
		p.limit = *p.settings.limit
	}
	if p.sharing == 0 {
		p.sharing = SharedScope
		if p.lease != nil {
			p.sharing = RunScope
		}
	}
	switch {
	case p.sharing == SharedScope:
		if p.tenant == "" {
			p.tenant = tenant
		}
		p.slot, p.ttl = sharedSlot(c.prefix, p.tenant, call), c.config.ttl
	case p.lease == nil:
		p.bypass = true // no run, so nobody to replay it for
	case !p.bypass:
		c.locateInRun(ctx, p, call)
	}
	if p.settings.ttl != 0 {
		p.ttl = p.settings.ttl
	}
	return p, nil
}

func (c *Cache) locateInRun(ctx context.Context, p *place, call [32]byte) {
	at, ok := scope.FromContext(ctx)
	if !ok {
		at = p.lease.Scope()
	}
	h := ordinalHash(p.tenant, p.label, call)
	n := at.Ordinal(h)
	p.giveBack = sync.OnceFunc(func() { at.GiveBack(h, n) })
	p.slot = runSlot(p.lease, at, p.tenant, p.label, call, n)
	p.ttl, p.touch = c.runTTL, c.runTTL
	if p.settings.ttl != 0 {
		p.touch = 0 // the caller said how long
	}
}

func (p *place) claim(c *Cache, owner, model string) Claim {
	keep := c.runTTL
	if p.shared() {
		keep = max(p.ttl, c.leaseTTL)
	}
	text, _ := json.Marshal(note{Model: trim(model), Label: p.label, Since: time.Now().UnixMilli()}) // strings and a number
	var fence int64
	if p.lease != nil && !p.shared() {
		fence = p.lease.Token
	}
	return Claim{
		Owner: owner, Fence: fence, Lease: c.leaseTTL, Note: string(text), Keep: keep, Touch: p.touch,
		Renew: p.refresh, Refuse: c.refuse, Limit: p.limit,
	}
}

// trim bounds what a request can write into in-flight records.
func trim(s string) string {
	if len(s) > 256 {
		return s[:256]
	}
	return s
}
