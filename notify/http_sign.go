package notify

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/nexuscore/onceq/internal/setting"
)

const (
	headerTimestamp = "Onceq-Timestamp"
	headerSignature = "Onceq-Signature"
	// signatureVersion leaves room for another algorithm beside this one.
	signatureVersion = "v1="
)

// ErrBadSignature is returned by [VerifySignature].
var ErrBadSignature = errors.New("notify: bad signature")

// sign returns the signature over time and body. The time is under the
// signature, too, so that an old request cannot be passed off as a new one.
func sign(secret []byte, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(timestamp))
	mac.Write([]byte{'.'})
	mac.Write(body)
	return signatureVersion + hex.EncodeToString(mac.Sum(nil))
}

// VerifySignature is for receivers of what an [HTTP] destination [WithSecret]
// sends: it says whether body, as it was read from the request, was signed with
// the secret no longer than maxAge ago. Onceq-Timestamp is the time in Unix
// seconds, Onceq-Signature is "v1=" and the hexadecimal HMAC-SHA256 of
// the timestamp, a full stop and the body. The error wraps [ErrBadSignature].
//
// Within maxAge a request can be replayed by whoever saw it: keep its
// Idempotency-Key for longer than that. Five minutes are usual.
func VerifySignature(secret []byte, header http.Header, body []byte, maxAge time.Duration) error {
	at := header.Get(headerTimestamp)
	seconds, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return fmt.Errorf("%w: no %s", ErrBadSignature, headerTimestamp)
	}
	got := header.Get(headerSignature)
	if !strings.HasPrefix(got, signatureVersion) || !hmac.Equal([]byte(got), []byte(sign(secret, at, body))) {
		return fmt.Errorf("%w: %s does not match", ErrBadSignature, headerSignature)
	}
	if age := time.Since(time.Unix(seconds, 0)).Abs(); age > maxAge {
		return fmt.Errorf("%w: signed %s ago, allowed are %s", ErrBadSignature, age.Round(time.Second), maxAge)
	}
	return nil
}

// checkSecret refuses a secret that could be guessed.
func checkSecret(c *destinationConfig) error {
	if c.secret == nil {
		return nil
	}
	if n := len(c.secret()); n < 16 {
		return setting.Invalidf("WithSecret: %d bytes, at least 16 are needed", n)
	}
	return nil
}
