package idempotent

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"

	"github.com/nexuscore/onceq/internal/canonical"
)

// Fingerprint identifies a task's type and payload. A payload that is a JSON
// document counts by its content: the order of members and white space do not
// matter, numbers are exact at any size. Any other payload counts byte by byte.
func Fingerprint(taskType string, payload []byte) string {
	kind := byte('j')
	body, err := canonical.JSON(nil, payload)
	if err != nil {
		kind, body = 'b', payload
	}
	h := sha256.New()
	var n [9]byte
	binary.BigEndian.PutUint64(n[:8], uint64(len(taskType)))
	n[8] = kind
	h.Write(n[:])
	h.Write([]byte(taskType))
	h.Write(body)
	return hex.EncodeToString(h.Sum(nil)[:16])
}
