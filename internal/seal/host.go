package seal

import "github.com/nexuscore/onceq/internal/panics"

// Sealer is what a host may bring of its own.
type Sealer interface {
	Seal(plain, bound []byte) ([]byte, error)
	Open(sealed, bound []byte) ([]byte, error)
}

// Seal is s.Seal, whose panic is an error: it must not end a run.
func Seal(s Sealer, plain, bound []byte) (sealed []byte, err error) {
	defer panics.Catch(&err)
	return s.Seal(plain, bound)
}

// Open is s.Open, whose panic is an error: what is stored may be anything.
func Open(s Sealer, sealed, bound []byte) (plain []byte, err error) {
	defer panics.Catch(&err)
	return s.Open(sealed, bound)
}
