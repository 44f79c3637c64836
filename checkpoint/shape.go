package checkpoint

import (
	"encoding/base64"
	"encoding/binary"
	"hash/fnv"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nexuscore/onceq/checkpoint/internal/jsonrules"
)

// shape is what a JSON value of a Go type can look like: a set with one hash
// for each path in it and the kind of value found there. JSON alone decodes a
// string into a []byte, a removed field into nothing and a renamed one into a
// zero; a shape that is not contained in today's tells.
type shape struct {
	encoded string // base64 of the sorted hashes
	set     map[uint32]struct{}
	// fragile types may be written and not read back, or not as they were
	// written: each value is decoded once before it is stored.
	fragile bool
}

// maxShape bounds what a shape adds to each snapshot; a type with more paths has
// none and relies on the decoder alone.
const maxShape = 256

var shapes sync.Map // reflect.Type → *shape; as many as the program has state types

func shapeOf(t reflect.Type) *shape {
	if s, ok := shapes.Load(t); ok {
		return s.(*shape)
	}
	b := shapeBuilder{set: map[uint32]struct{}{}}
	b.add("", t, nil)
	s := &shape{fragile: b.fragile}
	if len(b.set) <= maxShape {
		s.set = b.set
		s.encoded = encodeShape(b.set)
	}
	got, _ := shapes.LoadOrStore(t, s)
	return got.(*shape)
}

func encodeShape(set map[uint32]struct{}) string {
	hashes := make([]uint32, 0, len(set))
	for h := range set {
		hashes = append(hashes, h)
	}
	slices.Sort(hashes)
	raw := make([]byte, 0, 4*len(hashes))
	for _, h := range hashes {
		raw = binary.BigEndian.AppendUint32(raw, h)
	}
	return base64.RawStdEncoding.EncodeToString(raw)
}

// holds reports whether a value written under the encoded shape can be taken
// over whole.
func (s *shape) holds(encoded string) bool {
	if encoded == s.encoded || s.set == nil {
		return true
	}
	raw, err := base64.RawStdEncoding.DecodeString(encoded)
	if err != nil || len(raw)%4 != 0 || len(raw) > 4*maxShape {
		return false
	}
	for ; len(raw) > 0; raw = raw[4:] {
		if _, ok := s.set[binary.BigEndian.Uint32(raw)]; !ok {
			return false
		}
	}
	return true
}

type shapeBuilder struct {
	set     map[uint32]struct{}
	fragile bool
}

func (b *shapeBuilder) put(path, kind string) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(path + " " + kind))
	b.set[h.Sum32()] = struct{}{}
}

// add adds t at path; outer are the named types around it.
func (b *shapeBuilder) add(path string, t reflect.Type, outer []reflect.Type) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if len(b.set) > maxShape {
		b.fragile = true // unknown, and no end in sight for some types
		return
	}
	if jsonrules.MarshalsItself(t) {
		b.put(path, "own "+t.String())
		b.fragile = b.fragile || !slices.Contains(sound, t.PkgPath())
		return
	}
	if t.Name() != "" {
		if slices.Contains(outer, t) {
			b.put(path, "again "+t.String())
			b.fragile = true // may be nested deeper than a decoder follows
			return
		}
		outer = append(outer[:len(outer):len(outer)], t)
	}
	switch t.Kind() {
	case reflect.Struct:
		b.put(path, "object")
		b.addFields(path, t, outer)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 && !jsonrules.MarshalsItself(t.Elem()) {
			b.put(path, "bytes")
			return
		}
		b.put(path, "list")
		b.add(path+"[]", t.Elem(), outer)
	case reflect.Array:
		b.put(path, "list of "+strconv.Itoa(t.Len())) // JSON cuts and pads silently
		b.add(path+"[]", t.Elem(), outer)
	case reflect.Map:
		b.put(path, "map of "+kindName(t.Key()))
		b.add(path+"{}", t.Elem(), outer)
	case reflect.Interface:
		b.put(path, "any")
		b.fragile = b.fragile || t.NumMethod() > 0
	default:
		b.put(path, kindName(t))
	}
}

// sound are the packages whose types read back what they write.
var sound = []string{"time", "encoding/json", "math/big", "net/netip"}

func (b *shapeBuilder) addFields(path string, t reflect.Type, outer []reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		if jsonrules.Skipped(f) {
			continue
		}
		name := jsonrules.FieldName(f)
		if name == "" {
			b.add(path, f.Type, outer)
			continue
		}
		if _, opts, _ := strings.Cut(f.Tag.Get("json"), ","); slices.Contains(strings.Split(opts, ","), "string") {
			name += " quoted"
		}
		b.add(path+"."+name, f.Type, outer)
	}
}

func kindName(t reflect.Type) string {
	switch k := t.Kind(); k {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return "integer" // one that does not fit is refused by the decoder
	case reflect.Float32, reflect.Float64:
		return "float"
	default:
		return k.String()
	}
}
