package llmcache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

// record is an answer as it is stored.
type record struct {
	kind   byte
	model  string // as the provider named it
	usage  Usage
	status int           // of HTTP
	header []headerField // of HTTP
	cuts   []cut         // of a stream: where it was cut into pieces
	body   []byte
}

// Kinds of records. A Do never reads what a Transport stored.
const (
	kindBytes byte = 1 + iota // the body is what Do's caller gave
	kindJSON                  // the body is its JSON
	kindHTTP
)

type headerField struct{ name, value string }

// cut is one piece of a stream: its size, and how long after the one before it came.
type cut struct {
	size int
	gap  time.Duration
}

// Bounds of a record beside its body.
const (
	maxFields    = 64
	maxFieldSize = 16 << 10
	maxCuts      = 1 << 16
	maxGap       = 24 * time.Hour
	// recordOverhead is more than everything beside the body can take.
	recordOverhead = 1<<21 + 2*maxFields*maxFieldSize
)

// errRecord says that bytes are no record of ours. It never says more: they may
// be anyone's.
var errRecord = errors.New("llmcache: not a stored record")

// format is the version of the stored form that the record needs.
func (r *record) format() byte {
	if r.usage.CacheWriteTokens > 0 {
		return writesFormat
	}
	return plainFormat
}

// marshal returns the record's own bytes, before they are compressed or sealed.
func (r *record) marshal() []byte {
	b := make([]byte, 0, len(r.body)+len(r.cuts)*4+256)
	b = append(b, r.kind)
	b = appendString(b, r.model)
	numbers := []int64{r.usage.InputTokens, r.usage.OutputTokens, r.usage.CachedTokens}
	if r.format() == writesFormat {
		numbers = append(numbers, r.usage.CacheWriteTokens)
	}
	for _, n := range append(numbers, int64(r.status)) {
		b = binary.AppendUvarint(b, uint64(clamp(n)))
	}
	b = binary.AppendUvarint(b, uint64(len(r.header)))
	for _, f := range r.header {
		b = appendString(appendString(b, f.name), f.value)
	}
	b = binary.AppendUvarint(b, uint64(len(r.cuts)))
	for _, c := range r.cuts {
		b = binary.AppendUvarint(b, uint64(c.size))
		b = binary.AppendUvarint(b, uint64(min(max(c.gap, 0), maxGap).Microseconds()))
	}
	b = binary.AppendUvarint(b, uint64(len(r.body)))
	return append(b, r.body...)
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// unmarshalRecord reads what marshal wrote. Whatever b holds, it takes memory in
// proportion to b and does not panic. The body shares b's memory.
func unmarshalRecord(b []byte, format byte) (*record, error) {
	d := decoder{b: b}
	r := &record{kind: d.byte(), model: d.string(maxFieldSize)}
	for _, n := range []*int64{&r.usage.InputTokens, &r.usage.OutputTokens, &r.usage.CachedTokens} {
		*n = int64(d.uint(maxTokens))
	}
	if format == writesFormat {
		r.usage.CacheWriteTokens = int64(d.uint(maxTokens))
	}
	r.status = int(d.uint(999))
	for range d.uint(maxFields) {
		r.header = append(r.header, headerField{d.string(maxFieldSize), d.string(maxFieldSize)})
	}
	n := d.uint(maxCuts)
	sizes := 0
	for range n {
		c := cut{size: int(d.uint(math.MaxInt32))}
		c.gap = time.Duration(d.uint(uint64(maxGap.Microseconds()))) * time.Microsecond
		sizes += c.size
		if d.failed {
			break
		}
		r.cuts = append(r.cuts, c)
	}
	r.body = d.bytes(len(d.b))
	if d.failed || len(d.b) > 0 || r.kind < kindBytes || r.kind > kindHTTP || n > 0 && sizes != len(r.body) {
		return nil, errRecord
	}
	return r, nil
}

// decoder reads from b; after the first failure it reads zeros.
type decoder struct {
	b      []byte
	failed bool
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.failed = true
		return 0
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c
}

func (d *decoder) uint(most uint64) uint64 {
	n, size := binary.Uvarint(d.b)
	if size <= 0 || n > most {
		d.failed, d.b = true, nil
		return 0
	}
	d.b = d.b[size:]
	return n
}

func (d *decoder) bytes(most int) []byte {
	n := int(d.uint(uint64(most)))
	if n > len(d.b) {
		d.failed, d.b = true, nil
		return nil
	}
	b := d.b[:n:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) string(most int) string { return string(d.bytes(most)) }

// check reports why a record cannot be stored: its parts would not be read back.
func (r *record) check(maxValue int) error {
	if len(r.body) > maxValue {
		return fmt.Errorf("%d bytes, at most %d are stored", len(r.body), maxValue)
	}
	if len(r.header) > maxFields || len(r.model) > maxFieldSize {
		return errors.New("too many header fields, or too long a model name")
	}
	for _, f := range r.header {
		if len(f.name) > maxFieldSize || len(f.value) > maxFieldSize {
			return fmt.Errorf("header field %.40q is longer than %d bytes", f.name, maxFieldSize)
		}
	}
	return nil
}
