package notify

import (
	"math/rand/v2"
	"time"
)

// backoff is the pause after the nth failure: a random part of base × 2^(n-1),
// at most limit ("full jitter", so that many rows that failed together do not
// come back together), but never so little that it is none.
func backoff(n int, base, limit time.Duration) time.Duration {
	d := limit
	if shift := max(n, 1) - 1; shift < 40 && base<<shift>>shift == base && base<<shift < limit {
		d = base << shift
	}
	return d/10 + rand.N(d-d/10)
}
