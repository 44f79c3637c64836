// Package seal encrypts what is stored, bound to where it is stored.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"fmt"
)

// AESGCM seals with its first key and opens with any. It is safe for concurrent
// use.
type AESGCM []cipher.AEAD

// New returns a sealer with AES-GCM and a random nonce for each value. A key has
// 16, 24 or 32 bytes.
func New(key []byte, previous ...[]byte) (AESGCM, error) {
	var s AESGCM
	for _, k := range append([][]byte{key}, previous...) {
		block, err := aes.NewCipher(k)
		if err != nil {
			return nil, fmt.Errorf("key has %d bytes, 16, 24 or 32 are allowed", len(k))
		}
		gcm, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return nil, err
		}
		s = append(s, gcm)
	}
	return s, nil
}

// Seal encrypts plain and binds it to bound, which is not part of the result.
func (s AESGCM) Seal(plain, bound []byte) ([]byte, error) {
	return s[0].Seal(nil, nil, plain, bound), nil
}

// Open returns what Seal was given, if sealed is whole and was bound to bound.
func (s AESGCM) Open(sealed, bound []byte) ([]byte, error) {
	for _, gcm := range s {
		if plain, err := gcm.Open(nil, nil, sealed, bound); err == nil {
			return plain, nil
		}
	}
	return nil, errors.New("does not open: another key, another place, or changed")
}
