package canonical

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// str copies the string at pos: quotes, backslashes, control characters and
// half surrogate pairs escaped in one way, all else as it is.
func (p *parser) str() error {
	p.pos++
	p.out = append(p.out, '"')
	for start := p.pos; ; {
		for p.pos < len(p.src) && p.src[p.pos] >= ' ' && p.src[p.pos] != '"' && p.src[p.pos] != '\\' {
			p.pos++
		}
		p.out = append(p.out, p.src[start:p.pos]...)
		switch {
		case p.pos >= len(p.src):
			return p.fail("the document ends inside a string")
		case p.src[p.pos] == '"':
			p.pos++
			p.out = append(p.out, '"')
			return nil
		case p.src[p.pos] < ' ':
			return p.fail("a control character inside a string")
		}
		if err := p.escape(); err != nil {
			return err
		}
		start = p.pos
	}
}

func (p *parser) escape() error {
	if p.pos+1 >= len(p.src) {
		return p.fail("the document ends inside a string")
	}
	c := p.src[p.pos+1]
	if c == 'u' {
		return p.unicode()
	}
	i := bytes.IndexByte([]byte(`"\/bfnrt`), c)
	if i < 0 {
		return p.fail("an unknown escape")
	}
	p.pos += 2
	p.rune(rune("\"\\/\b\f\n\r\t"[i]))
	return nil
}

func (p *parser) unicode() error {
	r, ok := p.hex4(p.pos)
	if !ok {
		return p.fail("a bad \\u escape")
	}
	p.pos += 6
	if utf16.IsSurrogate(r) {
		if low, ok := p.hex4(p.pos); ok {
			if full := utf16.DecodeRune(r, low); full != utf8.RuneError {
				p.pos += 6
				r = full
			}
		}
	}
	p.rune(r)
	return nil
}

// hex4 reads the \uXXXX at i.
func (p *parser) hex4(i int) (rune, bool) {
	if i+6 > len(p.src) || p.src[i] != '\\' || p.src[i+1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range p.src[i+2 : i+6] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

func (p *parser) rune(r rune) {
	switch {
	case r == '"' || r == '\\':
		p.out = append(p.out, '\\', byte(r))
	case r < ' ' || utf16.IsSurrogate(r):
		p.out = append(p.out, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
	default:
		p.out = utf8.AppendRune(p.out, r)
	}
}

// plainZeros is up to which exponent a whole number is written with zeros.
const plainZeros = 20

// number writes the number at pos as digits without zeros at either end and a
// power of ten. float64 would make equal what is not.
func (p *parser) number() error {
	neg := p.src[p.pos] == '-'
	if neg {
		p.pos++
	}
	whole := p.digits()
	if len(whole) == 0 || len(whole) > 1 && whole[0] == '0' {
		return p.fail("not a number")
	}
	var frac []byte
	if p.pos < len(p.src) && p.src[p.pos] == '.' {
		p.pos++
		if frac = p.digits(); len(frac) == 0 {
			return p.fail("not a number")
		}
	}
	exp, err := p.exponent()
	if err != nil {
		return err
	}
	exp -= len(frac)
	begin := len(p.out)
	if neg {
		p.out = append(p.out, '-')
	}
	digits := len(p.out)
	p.out = append(append(p.out, whole...), frac...)
	all := bytes.TrimLeft(p.out[digits:], "0")
	trimmed := bytes.TrimRight(all, "0")
	exp += len(all) - len(trimmed)
	if len(trimmed) == 0 {
		p.out = append(p.out[:begin], '0')
		return nil
	}
	p.out = append(p.out[:digits], trimmed...)
	switch {
	case exp > 0 && exp <= plainZeros:
		p.out = append(p.out, "00000000000000000000"[:exp]...)
	case exp != 0:
		p.out = strconv.AppendInt(append(p.out, 'e'), int64(exp), 10)
	}
	return nil
}

func (p *parser) digits() []byte {
	start := p.pos
	for p.pos < len(p.src) && p.src[p.pos] >= '0' && p.src[p.pos] <= '9' {
		p.pos++
	}
	return p.src[start:p.pos]
}

func (p *parser) exponent() (int, error) {
	if p.pos >= len(p.src) || p.src[p.pos]|0x20 != 'e' {
		return 0, nil
	}
	p.pos++
	neg := false
	if p.pos < len(p.src) && (p.src[p.pos] == '+' || p.src[p.pos] == '-') {
		neg = p.src[p.pos] == '-'
		p.pos++
	}
	d := p.digits()
	if len(d) == 0 {
		return 0, p.fail("not a number")
	}
	d = bytes.TrimLeft(d, "0")
	if len(d) > 9 {
		return 0, p.fail("an exponent of more than nine digits")
	}
	exp := 0
	for _, c := range d {
		exp = exp*10 + int(c-'0')
	}
	if neg {
		exp = -exp
	}
	return exp, nil
}
