package wire

import "bytes"

// arrayFraming cuts one JSON array into its elements, each an event: how Gemini
// streams unless asked for server-sent events. A lone object is an event too.
type arrayFraming struct {
	limit  int
	sink   sink
	array  bool // the array is open
	over   bool // it is closed, or the lone object is
	depth  int  // of the element being read
	quoted bool
	escape bool
	drop   bool // the element is longer than the limit
	buf    []byte
}

func (f *arrayFraming) write(p []byte) {
	for len(p) > 0 {
		if f.depth > 0 {
			p = p[f.element(p):]
		} else {
			f.between(p[0])
			if f.depth > 0 {
				continue // the bracket belongs to the element
			}
			p = p[1:]
		}
	}
}

// between reads a byte outside the elements.
func (f *arrayFraming) between(c byte) {
	switch {
	case c == ' ' || c == '\t' || c == '\r' || c == '\n':
	case f.over:
		f.sink.broken("something follows the end of the array")
	case c == '[' && !f.array:
		f.array = true
	case c == ']' && f.array:
		f.over = true
	case c == ',' && f.array:
	case c == '{':
		f.depth, f.buf = 1, f.buf[:0]
	default:
		f.sink.broken("not an array of objects")
	}
}

// element reads p up to the end of the element and returns how much it took. The
// element's first bracket is read with depth 1 and does not count again.
func (f *arrayFraming) element(p []byte) int {
	i := 0
	if len(f.buf) == 0 && !f.drop {
		i = 1
	}
	for ; i < len(p); i++ {
		switch c := p[i]; {
		case f.escape:
			f.escape = false
		case f.quoted:
			j := bytes.IndexAny(p[i:], `"\`)
			if j < 0 {
				i = len(p) - 1
				continue
			}
			i += j
			f.escape, f.quoted = p[i] == '\\', p[i] == '\\'
		case c == '"':
			f.quoted = true
		case c == '{' || c == '[':
			f.depth++
		case c == '}' || c == ']':
			if f.depth--; f.depth == 0 {
				f.keep(p[:i+1])
				f.dispatch()
				return i + 1
			}
		}
	}
	f.keep(p)
	return len(p)
}

func (f *arrayFraming) keep(p []byte) {
	if f.drop = f.drop || len(f.buf)+len(p) > f.limit; f.drop {
		f.buf = f.buf[:0]
		return
	}
	f.buf = append(f.buf, p...)
}

func (f *arrayFraming) dispatch() {
	if f.drop {
		f.sink.broken(faultTooLong)
	} else {
		f.sink.event("", f.buf)
	}
	f.drop, f.over = false, f.over || !f.array
}

func (f *arrayFraming) end() {}

func (f *arrayFraming) closed() bool { return f.over && f.depth == 0 }

func (f *arrayFraming) pending() bool { return !f.over }
