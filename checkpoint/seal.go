package checkpoint

import (
	"crypto/aes"
	"crypto/cipher"
	"errors"
)

// Sealer encrypts and authenticates what is stored. It is used by many
// goroutines at once.
type Sealer interface {
	// Seal encrypts plain and binds it to bound, which names the run and what the
	// bytes are for; bound is not part of the result.
	Seal(plain, bound []byte) ([]byte, error)
	// Open returns what Seal was given. It fails unless sealed is whole and was
	// sealed with the same bound.
	Open(sealed, bound []byte) ([]byte, error)
}

type aesGCM []cipher.AEAD

// NewAESGCM returns a sealer with AES-GCM and a random nonce for each value. The
// key has 16, 24 or 32 bytes. Previous keys still open what they sealed, so that
// a key can be changed while runs are under way; after 2^32 values a key must be.
//
// What is sealed for one run, phase or step does not open for another. An older
// snapshot of the same run does: who can write to Redis can set a run back.
func NewAESGCM(key []byte, previous ...[]byte) (Sealer, error) {
	var s aesGCM
	for _, k := range append([][]byte{key}, previous...) {
		block, err := aes.NewCipher(k)
		if err != nil {
			return nil, invalidf("NewAESGCM: key has %d bytes, 16, 24 or 32 are allowed", len(k))
		}
		gcm, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return nil, err
		}
		s = append(s, gcm)
	}
	return s, nil
}

func (s aesGCM) Seal(plain, bound []byte) ([]byte, error) {
	return s[0].Seal(nil, nil, plain, bound), nil
}

func (s aesGCM) Open(sealed, bound []byte) ([]byte, error) {
	for _, gcm := range s {
		if plain, err := gcm.Open(nil, nil, sealed, bound); err == nil {
			return plain, nil
		}
	}
	return nil, errors.New("does not open: another key, another run, or changed")
}
