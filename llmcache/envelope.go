package llmcache

import (
	"errors"
	"fmt"

	"github.com/klauspost/compress/zstd"

	"github.com/nexuscore/onceq/internal/seal"
	"github.com/nexuscore/onceq/internal/setting"
)

// Sealer encrypts and authenticates what is stored. It is used by many
// goroutines at once. It is the same as package checkpoint's. One that asks another
// system, such as a key service, bounds the time of that itself.
type Sealer interface {
	// Seal encrypts plain and binds it to bound, which names where it is stored;
	// bound is not part of the result. After an error nothing is stored.
	Seal(plain, bound []byte) ([]byte, error)
	// Open returns what Seal was given. It fails unless sealed is whole and was
	// sealed with the same bound; what it does not open is discarded, and the next
	// answer takes its place. An error that wraps [ErrUnavailable] says that this
	// cannot be told for now: the call is made, as when Redis is in trouble, and what
	// is stored stays.
	Open(sealed, bound []byte) ([]byte, error)
}

// sealerError says that the sealer could not do its work for now.
type sealerError struct{ err error }

func (e *sealerError) Error() string { return "sealer: " + e.err.Error() }
func (e *sealerError) Unwrap() error { return e.err }

// NewAESGCM returns a sealer with AES-GCM and a random nonce for each value. The
// key has 16, 24 or 32 bytes; previous keys still open what they sealed. What is
// sealed for one call of one run or tenant does not open as another's. The error wraps
// [ErrInvalid].
func NewAESGCM(key []byte, previous ...[]byte) (Sealer, error) {
	s, err := seal.New(key, previous...)
	if err != nil {
		return nil, setting.Invalidf("NewAESGCM: %w", err)
	}
	return s, nil
}

// The stored form of a record: a byte with the version, a byte of flags, the
// record, compressed and then sealed as the flags say.
const (
	// plainFormat is all that older workers read; writesFormat has the tokens written
	// to the provider's cache too, and is used only where there are any.
	plainFormat  = 1
	writesFormat = 2

	flagCompressed = 1 << 0
	flagSealed     = 1 << 1
)

type envelope struct {
	sealer   Sealer
	above    int // compress from this size; negative: never
	maxValue int
	zip      *zstd.Encoder
	unzip    *zstd.Decoder
}

func newEnvelope(c config) (*envelope, error) {
	zip, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return nil, err
	}
	unzip, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(uint64(c.maxValue+recordOverhead)))
	if err != nil {
		return nil, err
	}
	return &envelope{sealer: c.sealer, above: c.compress, maxValue: c.maxValue, zip: zip, unzip: unzip}, nil
}

// wrap returns the bytes to store for r at key.
func (e *envelope) wrap(r *record, key string) ([]byte, error) {
	if err := r.check(e.maxValue); err != nil {
		return nil, err
	}
	plain := r.marshal()
	head := []byte{r.format(), 0}
	if e.above >= 0 && len(plain) >= e.above {
		if small := e.zip.EncodeAll(plain, nil); len(small) < len(plain) {
			plain = small
			head[1] |= flagCompressed
		}
	}
	if e.sealer == nil {
		return append(head, plain...), nil
	}
	head[1] |= flagSealed
	sealed, err := seal.Seal(e.sealer, plain, bound(head, key))
	if err != nil {
		return nil, &sealerError{err}
	}
	return append(head, sealed...), nil
}

// bound is what a sealed record is bound to: what it is, and where.
func bound(head []byte, key string) []byte {
	return append(append([]byte("onceq llm record"), head...), key...)
}

// open reads the record stored at key.
func (e *envelope) open(data []byte, key string) (*record, error) {
	if len(data) < 2 || data[0] < plainFormat || data[0] > writesFormat || data[1]&^(flagCompressed|flagSealed) != 0 {
		return nil, errRecord
	}
	head, rest := data[:2:2], data[2:]
	if len(rest) > e.maxValue+recordOverhead {
		return nil, fmt.Errorf("%w: too large", errRecord)
	}
	sealed := head[1]&flagSealed != 0
	switch {
	case sealed && e.sealer == nil:
		return nil, errors.New("llmcache: the record is sealed and there is no sealer")
	case !sealed && e.sealer != nil:
		return nil, errors.New("llmcache: the record is not sealed")
	case sealed:
		var err error
		rest, err = seal.Open(e.sealer, rest, bound(head, key))
		switch {
		case errors.Is(err, ErrUnavailable):
			return nil, &sealerError{err}
		case err != nil:
			return nil, fmt.Errorf("llmcache: open record: %w", err)
		}
	}
	if head[1]&flagCompressed != 0 {
		var err error
		if rest, err = e.unzip.DecodeAll(rest, nil); err != nil {
			return nil, fmt.Errorf("%w: %w", errRecord, err)
		}
	}
	r, err := unmarshalRecord(rest, head[0])
	if err == nil && len(r.body) > e.maxValue {
		return nil, fmt.Errorf("%w: too large", errRecord)
	}
	return r, err
}
