package wire

import "bytes"

// lines cuts a body into lines that end in LF and, unless only LF counts, in CR
// LF or CR.
type lines struct {
	limit  int
	onlyLF bool
	line   []byte // of the unfinished line, what is kept
	begun  bool   // the unfinished line has at least one byte
	drop   bool   // its rest is not kept
	cr     bool   // it ends in a CR of which it is not known yet whether an LF follows
	crlf   bool   // an LF has followed a CR before
}

// next takes bytes from p up to the end of a line and returns the line once it
// is whole, the rest of p, and whether there was an end. The line is valid until
// the next call. keep looks at the bytes of an unfinished line so far and says
// whether more of it are of interest.
func (l *lines) next(p []byte, keep func(line []byte) bool) (line, rest []byte, ok bool) {
	if !l.cr {
		var ended bool
		if p, ended = l.fill(p, keep); ended {
			return l.take(), p, true
		}
	}
	if !l.cr || len(p) == 0 {
		return nil, nil, false
	}
	if p[0] == '\n' {
		l.crlf, p = true, p[1:]
	}
	return l.take(), p, true
}

// fill adds to the unfinished line and returns what follows its end: an LF, or a
// CR, which it notes and by which the end is not yet certain.
func (l *lines) fill(p []byte, keep func(line []byte) bool) (rest []byte, ended bool) {
	end := bytes.IndexByte(p, '\n')
	seg := p
	if ended = end >= 0; ended {
		seg = p[:end]
	}
	if i := bytes.IndexByte(seg, '\r'); i >= 0 && !l.onlyLF {
		l.cr, ended = true, false
		end, seg = i, p[:i]
	}
	l.begun = l.begun || len(seg) > 0
	if !l.drop {
		if len(l.line)+len(seg) > l.limit {
			seg = seg[:min(len(seg), max(0, l.limit+1-len(l.line)))] // one over says that it was longer
		}
		l.line = append(l.line, seg...)
		l.drop = !keep(l.line)
	}
	return p[end+1:], ended
}

// take returns the line and begins another.
func (l *lines) take() []byte {
	line := l.line
	l.line, l.begun, l.drop, l.cr = l.line[:0], false, false, false
	return line
}

// last returns the line that ends with the body: in a CR, and without the LF that
// this body has after each CR it has been cut off.
func (l *lines) last() ([]byte, bool) {
	if !l.cr || l.crlf {
		return nil, false
	}
	return l.take(), true
}

// unfinished reports whether the body ends within a line.
func (l *lines) unfinished() bool { return l.begun || l.cr }

// sseFraming cuts a body into server-sent events.
type sseFraming struct {
	lines
	sink  sink
	later bool // the first line, which may carry a byte order mark, is behind us
	name  string
	data  []byte
	some  bool // the pending event has a data line
	over  bool // it is longer than the limit
}

var (
	byteOrderMark = []byte("\xef\xbb\xbf")
	dataField     = []byte("data")
)

// maxName bounds lines that are no data: only event names are read from them.
const maxName = 1024

func (f *sseFraming) write(p []byte) {
	for len(p) > 0 {
		line, rest, ok := f.next(p, f.keep)
		if !ok {
			return
		}
		p = rest
		f.read(line)
	}
}

func (f *sseFraming) end() {
	if line, ok := f.last(); ok {
		f.read(line)
	}
}

// keep says whether an unfinished line may matter.
func (f *sseFraming) keep(line []byte) bool {
	if len(line) <= maxName {
		return true
	}
	if !f.later {
		line = bytes.TrimPrefix(line, byteOrderMark)
	}
	return bytes.HasPrefix(line, dataField)
}

func (f *sseFraming) read(line []byte) {
	if !f.later {
		f.later = true
		line = bytes.TrimPrefix(line, byteOrderMark)
	}
	if len(line) == 0 {
		f.dispatch()
		return
	}
	name, value, _ := bytes.Cut(line, []byte{':'})
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	switch string(name) {
	case "event":
		f.name = string(value[:min(len(value), maxName/2)]) // all of it is kept, wherever the body was cut
	case "data":
		if f.over = f.over || len(f.data)+len(line) > f.limit; f.over {
			f.data = f.data[:0]
		} else if f.some {
			f.data = append(f.data, '\n')
		}
		if f.some = true; !f.over {
			f.data = append(f.data, value...)
		}
	}
}

func (f *sseFraming) dispatch() {
	switch {
	case f.over:
		f.sink.broken(faultTooLong)
	case f.some:
		f.sink.event(f.name, f.data)
	}
	f.name, f.data, f.some, f.over = "", f.data[:0], false, false
}

// atDone reports whether the event being read is, so far, the mark by which
// OpenAI ends a stream.
func (f *sseFraming) atDone() bool { return f.some && !f.unfinished() && bytes.Equal(f.data, doneMark) }

func (f *sseFraming) closed() bool { return false }

// pending reports whether an event was begun: without its empty line it is none.
func (f *sseFraming) pending() bool { return f.unfinished() || f.some || f.name != "" }

// lineFraming cuts a body into lines of JSON, within which a CR is white space.
type lineFraming struct {
	lines
	sink sink
}

func (f *lineFraming) write(p []byte) {
	for len(p) > 0 {
		line, rest, ok := f.next(p, func([]byte) bool { return true })
		if !ok {
			return
		}
		p = rest
		if len(line) > f.limit {
			f.sink.broken(faultTooLong)
		} else if line = bytes.TrimSpace(line); len(line) > 0 {
			f.sink.event("", line)
		}
	}
}

func (f *lineFraming) end()          {}
func (f *lineFraming) closed() bool  { return false }
func (f *lineFraming) pending() bool { return f.unfinished() }
