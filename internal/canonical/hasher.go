package canonical

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"io"
)

// Hasher hashes a list of fields. Each is preceded by its length, so no two
// lists run together: "a|b"+"c" is not "a"+"b|c". A field that may be absent is
// written with its name before it. A Hasher is not safe for concurrent use.
type Hasher struct {
	h   hash.Hash
	len [8]byte
}

// NewHasher returns a hasher whose first field is domain: what is hashed, and
// the version of how.
func NewHasher(domain string) *Hasher {
	h := &Hasher{h: sha256.New()}
	h.WriteString(domain)
	return h
}

// Write adds one field.
func (h *Hasher) Write(field []byte) {
	h.size(len(field))
	h.h.Write(field)
}

// WriteString adds one field.
func (h *Hasher) WriteString(field string) {
	h.size(len(field))
	_, _ = io.WriteString(h.h, field) // a hash does not fail
}

func (h *Hasher) size(n int) {
	binary.BigEndian.PutUint64(h.len[:], uint64(n))
	h.h.Write(h.len[:])
}

// Sum returns the SHA-256 of the fields so far; more may follow.
func (h *Hasher) Sum() (sum [32]byte) {
	h.h.Sum(sum[:0])
	return sum
}
