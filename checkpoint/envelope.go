package checkpoint

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"reflect"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/nexuscore/onceq/internal/seal"
)

// What is stored is one header byte, then a JSON object, compressed when it is
// large, sealed when there is a sealer. The object ends with a checksum of all
// before it: a flipped bit inside a string would else be a valid, other state.
const (
	formRaw  = 0x00
	formZlib = 0x01 // read only: what this grew out of wrote it
	formZstd = 0x02
	formMask = 0x0f
	sealed   = 0x10 // the bits above are 0; a later format sets one

	compressAbove = 512 << 10
	sumLen        = len(`,"sum":"00000000"}`)
)

// envelope is a snapshot; a step's result uses the first fields and State.
type envelope struct {
	Version     int      `json:"schema_version"`
	Codec       string   `json:"codec"`
	Shape       string   `json:"shape,omitempty"`
	Done        []string `json:"done,omitempty"`
	LastDone    string   `json:"last_done,omitempty"`
	Token       int64    `json:"token,omitempty"`
	SavedAt     int64    `json:"saved_at,omitempty"` // Unix milliseconds, for people
	Stamp       string   `json:"stamp,omitempty"`
	Fingerprint string   `json:"fingerprint,omitempty"`
	// State is the codec's own JSON, or else a string with its bytes in base64.
	State json.RawMessage `json:"state,omitempty"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// plain returns the JSON object of e with state in it and its checksum, behind one byte
// for its form; and its identity.
func (e *envelope) plain(state []byte) (b []byte, id string, err error) {
	head, err := json.Marshal(e)
	if err != nil {
		return nil, "", err
	}
	size := len(state)
	if e.Codec != JSON.Name() {
		size = base64.StdEncoding.EncodedLen(size) + len(`""`)
	}
	b = make([]byte, 1, 1+len(head)+len(`,"state":`)+size+sumLen)
	b[0] = formRaw
	b = append(b, head[:len(head)-1]...)
	b = append(b, `,"state":`...)
	if e.Codec == JSON.Name() {
		b = append(b, state...)
	} else {
		b = append(b, '"')
		b = base64.StdEncoding.AppendEncode(b, state)
		b = append(b, '"')
	}
	sum := crc32.Checksum(b[1:], castagnoli)
	tail := sumTail(sum)
	return append(b, tail[:]...), identity(sum, tail, len(b)-1), nil
}

// sumTail is what an object with the checksum ends with.
func sumTail(sum uint32) (tail [sumLen]byte) {
	copy(tail[:], `,"sum":"00000000"}`)
	var raw [4]byte
	binary.BigEndian.PutUint32(raw[:], sum)
	hex.Encode(tail[len(`,"sum":"`):], raw[:])
	return tail
}

// identity tells one plain object from another of the same run: by the checksum of
// all of it, which is that of its body and then of its tail, and by its length.
func identity(sum uint32, tail [sumLen]byte, body int) string {
	b := binary.BigEndian.AppendUint32(nil, crc32.Update(sum, castagnoli, tail[:]))
	return hex.EncodeToString(binary.AppendUvarint(b, uint64(body+sumLen)))
}

// parse reverses plain; b is without the form.
func parse(b []byte) (e *envelope, id string, err error) {
	if len(b) < sumLen {
		return nil, "", errors.New("too short")
	}
	body := b[:len(b)-sumLen]
	sum := crc32.Checksum(body, castagnoli)
	tail := sumTail(sum)
	if string(b[len(body):]) != string(tail[:]) {
		return nil, "", errors.New("checksum does not match")
	}
	e = new(envelope)
	if err := json.Unmarshal(b, e); err != nil {
		return nil, "", err
	}
	return e, identity(sum, tail, len(body)), nil
}

// state returns the codec's bytes.
func (e *envelope) state() ([]byte, error) {
	if e.Codec == JSON.Name() {
		return e.State, nil
	}
	var b []byte
	err := json.Unmarshal(e.State, &b)
	return b, err
}

// pack turns the plain object behind its form into what is stored.
func (c *config) pack(b, bound []byte) ([]byte, error) {
	if plain := b[1:]; len(plain) >= compressAbove {
		b = encoder().EncodeAll(plain, append(make([]byte, 0, len(plain)/4), formZstd))
	}
	if c.sealer == nil {
		return b, nil
	}
	form := b[0] | sealed
	body, err := seal.Seal(c.sealer, b[1:], append(bound, form))
	if err != nil {
		return nil, &sealerError{err}
	}
	return append([]byte{form}, body...), nil
}

// unpack reverses pack; nothing larger than the size limit comes out of it.
func (c *config) unpack(b, bound []byte) ([]byte, error) {
	if len(b) == 0 {
		return nil, discard(ReasonCorrupt, "empty")
	}
	form, body := b[0], b[1:]
	switch {
	case form&^(formMask|sealed) != 0:
		return nil, discard(ReasonVersion, "header byte %#02x is of another format", form)
	case form&sealed == 0 && c.sealer != nil && !c.migration:
		return nil, discard(ReasonSealed, "plain text is refused, see WithMigration")
	case form&sealed != 0 && c.sealer == nil:
		return nil, discard(ReasonSealed, "there is no sealer to open it")
	case form&sealed != 0:
		var err error
		body, err = seal.Open(c.sealer, body, append(bound, form))
		switch {
		case errors.Is(err, ErrUnavailable):
			return nil, &sealerError{err}
		case err != nil:
			return nil, discard(ReasonSealed, "%v", err)
		}
	}
	return c.inflate(form&formMask, body)
}

func (c *config) inflate(form byte, body []byte) ([]byte, error) {
	switch form {
	case formRaw:
		if len(body) > c.maxSize {
			return nil, discard(ReasonOversize, "%d bytes, at most %d are allowed", len(body), c.maxSize)
		}
		return body, nil
	case formZlib:
		return unzlib(body, c.maxSize)
	case formZstd:
		return unzstd(body, c.maxSize)
	}
	return nil, discard(ReasonVersion, "compression %#02x is not known", form)
}

func unzlib(body []byte, limit int) ([]byte, error) {
	src := bytes.NewReader(body)
	r, err := zlib.NewReader(src)
	if err != nil {
		return nil, discard(ReasonCorrupt, "zlib: %v", err)
	}
	out, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	switch {
	case err != nil:
		return nil, discard(ReasonCorrupt, "zlib: %v", err)
	case len(out) > limit:
		return nil, discard(ReasonOversize, "more than %d bytes when decompressed", limit)
	case src.Len() > 0:
		return nil, discard(ReasonCorrupt, "zlib: %d bytes after the end", src.Len())
	}
	return out, nil
}

func unzstd(body []byte, limit int) ([]byte, error) {
	// Large states are rare: a decoder for each keeps no memory between them.
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(uint64(limit)))
	if err != nil {
		return nil, discard(ReasonCorrupt, "zstd: %v", err)
	}
	defer d.Close()
	out, err := d.DecodeAll(body, nil)
	switch {
	case errors.Is(err, zstd.ErrDecoderSizeExceeded), errors.Is(err, zstd.ErrWindowSizeExceeded), len(out) > limit:
		return nil, discard(ReasonOversize, "more than %d bytes when decompressed", limit)
	case err != nil:
		return nil, discard(ReasonCorrupt, "zstd: %v", err)
	}
	return out, nil
}

var encoder = sync.OnceValue(func() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2))
	if err != nil {
		panic(err) // constant options
	}
	return e
})

// encode turns value, a pointer, into what is stored and its identity.
func (c *config) encode(e envelope, value any, bound []byte) (stored []byte, id string, err error) {
	state, err := c.marshal(value)
	if err != nil {
		return nil, "", &StateError{Err: err}
	}
	shape := c.shape(value)
	if shape == nil || shape.fragile {
		if err := c.unmarshal(state, reflect.New(reflect.TypeOf(value).Elem()).Interface()); err != nil {
			return nil, "", &StateError{Err: fmt.Errorf("encoded, but cannot be decoded: %w", err)}
		}
	}
	e.Version, e.Codec = c.version, c.codec.Name()
	if shape != nil {
		e.Shape = shape.encoded
	}
	plain, id, err := e.plain(state)
	if err != nil {
		return nil, "", &StateError{Err: err}
	}
	if size := len(plain) - 1; size > c.maxSize {
		return nil, "", &SizeError{Size: size, Limit: c.maxSize}
	}
	if stored, err = c.pack(plain, bound); err != nil {
		return nil, "", err
	}
	return stored, id, nil
}

// decode opens what is stored; the state itself waits for decodeState.
func (c *config) decode(stored, bound []byte) (e *envelope, id string, err error) {
	plain, err := c.unpack(stored, bound)
	if err != nil {
		return nil, "", err
	}
	if e, id, err = parse(plain); err != nil {
		return nil, "", discard(ReasonCorrupt, "%v", err)
	}
	if e.Version != c.version {
		return nil, "", discard(ReasonVersion, "schema_version %d, this program has %d", e.Version, c.version)
	}
	if e.Codec != c.codec.Name() {
		return nil, "", discard(ReasonVersion, "codec %q, this program has %q", e.Codec, c.codec.Name())
	}
	return e, id, nil
}

// decodeState decodes into value, a pointer to a zero value.
func (c *config) decodeState(e *envelope, value any) error {
	if s := c.shape(value); s != nil && !s.holds(e.Shape) {
		return discard(ReasonUndecodable, "a field of %T was removed, renamed or given another type", value)
	}
	state, err := e.state()
	if err != nil {
		return discard(ReasonCorrupt, "%v", err)
	}
	if err := c.unmarshal(state, value); err != nil {
		return discard(ReasonUndecodable, "%v", err)
	}
	return nil
}

// shape is nil for a codec whose view of a type is not known.
func (c *config) shape(value any) *shape {
	if c.codec != JSON {
		return nil
	}
	return shapeOf(reflect.TypeOf(value).Elem())
}
