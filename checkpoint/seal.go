package checkpoint

import (
	"github.com/nexuscore/onceq/internal/seal"
	"github.com/nexuscore/onceq/internal/setting"
)

// Sealer encrypts and authenticates what is stored. It is used by many
// goroutines at once. One that asks another system, such as a key service, bounds
// the time of that itself.
type Sealer interface {
	// Seal encrypts plain and binds it to bound, which names the run and what the
	// bytes are for; bound is not part of the result. After an error nothing is stored
	// and the run goes on, also with [WithStrict]: the next phase is sealed anew.
	Seal(plain, bound []byte) ([]byte, error)
	// Open returns what Seal was given. It fails unless sealed is whole and was
	// sealed with the same bound; what it does not open is discarded, and the work
	// behind it done again. An error that wraps [ErrUnavailable] says that this cannot
	// be told for now: nothing is discarded, [Run] and [Step] return the error, and
	// another attempt goes on where this one would have.
	Open(sealed, bound []byte) ([]byte, error)
}

// NewAESGCM returns a sealer with AES-GCM and a random nonce for each value. The
// key has 16, 24 or 32 bytes. Previous keys still open what they sealed, so that
// a key can be changed while runs are under way; after 2^32 values a key must be.
//
// What is sealed for one run, phase or step does not open for another. An older
// snapshot of the same run does: who can write to Redis can set a run back.
func NewAESGCM(key []byte, previous ...[]byte) (Sealer, error) {
	s, err := seal.New(key, previous...)
	if err != nil {
		return nil, setting.Invalidf("NewAESGCM: %s", err)
	}
	return s, nil
}
