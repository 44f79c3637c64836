package wire

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
)

// awsFraming cuts a body into the frames of application/vnd.amazon.eventstream:
//
//	total length (4) | header length (4) | CRC of these 8 (4) |
//	headers | payload | CRC of all before it (4)
//
// all big-endian, both CRCs CRC-32 (IEEE).
type awsFraming struct {
	limit int
	sink  sink
	buf   []byte
	dead  bool // the frames cannot be found any more
}

const (
	awsPrelude  = 12
	awsOverhead = awsPrelude + 4
)

func (f *awsFraming) write(p []byte) {
	for len(p) > 0 && !f.dead {
		need := awsPrelude
		if len(f.buf) >= awsPrelude {
			need = int(binary.BigEndian.Uint32(f.buf))
		}
		n := min(need-len(f.buf), len(p))
		f.buf = append(f.buf, p[:n]...)
		p = p[n:]
		switch {
		case len(f.buf) < need:
		case need == awsPrelude: // a frame is never as short as its prelude
			f.prelude()
		default:
			f.frame()
			f.buf = f.buf[:0]
		}
	}
}

func (f *awsFraming) fail(reason string) {
	f.dead, f.buf = true, nil
	f.sink.broken(reason)
}

// prelude checks the lengths before memory is spent on them.
func (f *awsFraming) prelude() {
	total := int64(binary.BigEndian.Uint32(f.buf))
	headers := int64(binary.BigEndian.Uint32(f.buf[4:]))
	switch {
	case crc32.ChecksumIEEE(f.buf[:8]) != binary.BigEndian.Uint32(f.buf[8:]):
		f.fail("a frame's prelude is damaged")
	case total > int64(f.limit):
		f.fail(faultTooLong)
	case total < awsOverhead || headers > total-awsOverhead:
		f.fail("a frame's lengths do not fit")
	}
}

func (f *awsFraming) frame() {
	end := len(f.buf) - 4
	if crc32.ChecksumIEEE(f.buf[:end]) != binary.BigEndian.Uint32(f.buf[end:]) {
		f.fail("a frame is damaged")
		return
	}
	headers := binary.BigEndian.Uint32(f.buf[4:])
	split := awsPrelude + int(headers)
	h, ok := readAWSHeaders(f.buf[awsPrelude:split])
	if !ok {
		f.fail("a frame's headers are damaged")
		return
	}
	if h.message != "event" {
		f.sink.broken(reasonError) // an exception or an error
		return
	}
	payload := f.buf[split:end]
	var chunk struct {
		Bytes *string `json:"bytes"`
	}
	if !decode(payload, &chunk) {
		f.sink.broken("a frame's payload is not JSON")
		return
	}
	if chunk.Bytes == nil {
		f.sink.event(h.event, payload)
		return
	}
	inner, err := base64.StdEncoding.DecodeString(*chunk.Bytes)
	if err != nil {
		f.sink.broken("a frame's chunk is not base64")
		return
	}
	f.sink.event("", inner)
}

func (f *awsFraming) end() {}

func (f *awsFraming) closed() bool { return false }

func (f *awsFraming) pending() bool { return len(f.buf) > 0 || f.dead }

type awsHeaders struct{ message, event string }

// awsSizes are the sizes of header values by their type; -1 has its length
// before it.
var awsSizes = [...]int{0, 0, 1, 2, 4, 8, -1, -1, 8, 16}

const awsString = 7

func readAWSHeaders(b []byte) (h awsHeaders, ok bool) {
	for len(b) > 0 {
		n := int(b[0])
		if len(b) < 1+n+1 {
			return h, false
		}
		name, kind := string(b[1:1+n]), int(b[1+n])
		b = b[2+n:]
		if kind >= len(awsSizes) {
			return h, false
		}
		size := awsSizes[kind]
		if size < 0 {
			if len(b) < 2 {
				return h, false
			}
			size = int(binary.BigEndian.Uint16(b))
			b = b[2:]
		}
		if len(b) < size {
			return h, false
		}
		if kind == awsString {
			switch name {
			case ":message-type":
				h.message = string(b[:size])
			case ":event-type":
				h.event = string(b[:size])
			}
		}
		b = b[size:]
	}
	return h, true
}
