package idempotent

import "context"

// Sever cuts the subscription of a running Recoverer and stops its looks, as when
// both hang: the process says no goodbye, and its guard goes on.
func (r *Recoverer) Sever() {
	r.cancel()
	r.work.Wait()
}

// StampOf is what the snapshots of the attempt in ctx carry.
func StampOf(ctx context.Context) string { return MustFromContext(ctx).lease.Stamp }
