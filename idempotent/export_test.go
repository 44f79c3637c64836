package idempotent

// Sever cuts the subscription of a running Recoverer and stops its looks, as when
// both hang: the process says no goodbye, and its guard goes on.
func (r *Recoverer) Sever() {
	r.cancel()
	r.work.Wait()
}
