// Package canonical gives equal things equal bytes: JSON documents that mean
// the same, and lists of fields before they are hashed.
//
// Fingerprints and cache keys are made of what this package returns, so a
// changed result is a data migration: see the golden tests.
package canonical

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"
)

// MaxDepth bounds how deep arrays and objects may nest. It also bounds the work:
// putting members in order moves a byte at most once per level.
const MaxDepth = 256

// Error says why a document has no canonical form.
type Error struct {
	Offset int // of the byte in the document where it was noticed
	Reason string
}

func (e *Error) Error() string {
	return fmt.Sprintf("canonical: %s at byte %d", e.Reason, e.Offset)
}

// JSON appends to dst the canonical form of the one JSON value in src. Two
// documents have the same form if and only if they hold the same value:
//
//   - white space and the order of members do not matter;
//   - numbers are compared as exact decimals of any size, so 1, 1.0 and 10e-1
//     are one number, 9007199254740993 is not 9007199254740992, and -0 is 0;
//   - strings are compared after unescaping, so "é" and "\u00e9" are one string;
//     half a surrogate pair stays what it is and is no replacement character.
//
// A document that readers may understand differently is an *Error: a member
// twice in one object, invalid UTF-8, anything but white space after the value,
// nesting deeper than MaxDepth, an exponent of more than nine digits. Whoever
// must tell such documents apart hashes their bytes. dst is returned as it was
// then. The form is JSON itself, and its own canonical form.
func JSON(dst, src []byte) ([]byte, error) {
	if !utf8.Valid(src) {
		return dst, &Error{Offset: invalidAt(src), Reason: "invalid UTF-8"}
	}
	p := parser{src: src, out: slices.Grow(dst, len(src))}
	err := p.document()
	if err != nil {
		return dst, err
	}
	return p.out, nil
}

func invalidAt(b []byte) int {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(b)
}

type parser struct {
	src []byte
	pos int
	out []byte
	// members of the objects that are open, innermost last: offsets into out.
	members []member
	scratch []byte
}

type member struct{ key, keyEnd, end int }

func (p *parser) fail(reason string) error { return &Error{Offset: p.pos, Reason: reason} }

func (p *parser) document() error {
	if err := p.value(0); err != nil {
		return err
	}
	p.space()
	if p.pos < len(p.src) {
		return p.fail("something follows the value")
	}
	return nil
}

func (p *parser) space() {
	for p.pos < len(p.src) {
		switch p.src[p.pos] {
		case ' ', '\t', '\n', '\r':
			p.pos++
		default:
			return
		}
	}
}

// peek skips white space and returns the next byte, 0 at the end.
func (p *parser) peek() byte {
	p.space()
	if p.pos < len(p.src) {
		return p.src[p.pos]
	}
	return 0
}

func (p *parser) value(depth int) error {
	if depth > MaxDepth {
		return p.fail("nesting deeper than " + strconv.Itoa(MaxDepth))
	}
	switch c := p.peek(); {
	case c == '{':
		return p.object(depth)
	case c == '[':
		return p.array(depth)
	case c == '"':
		return p.str()
	case c == 't':
		return p.literal("true")
	case c == 'f':
		return p.literal("false")
	case c == 'n':
		return p.literal("null")
	case c == '-' || c >= '0' && c <= '9':
		return p.number()
	case p.pos >= len(p.src):
		return p.fail("the document ends where a value is due")
	}
	return p.fail("not a value")
}

func (p *parser) literal(s string) error {
	if !bytes.HasPrefix(p.src[p.pos:], []byte(s)) {
		return p.fail("not a value")
	}
	p.pos += len(s)
	p.out = append(p.out, s...)
	return nil
}

func (p *parser) array(depth int) error {
	p.pos++
	p.out = append(p.out, '[')
	if p.peek() == ']' {
		p.pos++
		p.out = append(p.out, ']')
		return nil
	}
	for {
		if err := p.value(depth + 1); err != nil {
			return err
		}
		switch p.peek() {
		case ',':
			p.pos++
			p.out = append(p.out, ',')
		case ']':
			p.pos++
			p.out = append(p.out, ']')
			return nil
		default:
			return p.fail("an array without ',' or ']'")
		}
	}
}

func (p *parser) object(depth int) error {
	p.pos++
	first, begin := len(p.members), len(p.out)
	p.out = append(p.out, '{')
	if p.peek() == '}' {
		p.pos++
		p.out = append(p.out, '}')
		return nil
	}
	for {
		m := member{key: len(p.out)}
		if p.peek() != '"' {
			return p.fail("an object without a member name")
		}
		if err := p.str(); err != nil {
			return err
		}
		m.keyEnd = len(p.out)
		if p.peek() != ':' {
			return p.fail("a member without ':'")
		}
		p.pos++
		p.out = append(p.out, ':')
		if err := p.value(depth + 1); err != nil {
			return err
		}
		m.end = len(p.out)
		p.members = append(p.members, m)
		switch p.peek() {
		case ',':
			p.pos++
			p.out = append(p.out, ',')
		case '}':
			p.pos++
			err := p.order(begin, p.members[first:])
			p.members = p.members[:first]
			return err
		default:
			return p.fail("an object without ',' or '}'")
		}
	}
}

// order puts the members that were appended to out from begin on in the order
// of their names, and closes the object.
func (p *parser) order(begin int, ms []member) error {
	cmp := func(a, b member) int {
		return bytes.Compare(p.out[a.key:a.keyEnd], p.out[b.key:b.keyEnd])
	}
	sorted := slices.IsSortedFunc(ms, cmp)
	if !sorted {
		slices.SortFunc(ms, cmp)
	}
	for i := 1; i < len(ms); i++ {
		if cmp(ms[i-1], ms[i]) == 0 {
			return p.fail("a member twice in one object")
		}
	}
	if !sorted {
		p.scratch = append(p.scratch[:0], p.out[begin:]...)
		p.out = p.out[:begin]
		for i, m := range ms {
			sep := byte(',')
			if i == 0 {
				sep = '{'
			}
			p.out = append(p.out, sep)
			p.out = append(p.out, p.scratch[m.key-begin:m.end-begin]...)
		}
	}
	p.out = append(p.out, '}')
	return nil
}
