package wire

import (
	"encoding/json"
	"io"
	"mime"
	"net/http"
)

// MaxEvent is how long one event of a stream, or an answer in one piece, may be
// unless the caller says otherwise.
const MaxEvent = 16 << 20

// Scanner watches the body of one answer while it passes. Write takes the body in
// pieces cut anywhere; the verdict depends on the bytes alone. It keeps at most
// one event, never changes what it is given, and is not safe for concurrent use.
//
// Outcome may be asked at any time: for most providers an answer is complete as
// soon as the terminal event was written, before the body ends, for some clients
// never read as far.
type Scanner struct {
	call    Call
	framing framing // nil when the answer cannot be judged
	judge   StreamJudge
	reason  string // why it cannot
	fault   string // what the framing found wrong
	over    bool   // the body is at its end
	ended   bool   // in order
}

// framing cuts a body into events.
type framing interface {
	write(p []byte)
	// end says that the body has ended in order.
	end()
	// closed reports that the body has come to its own end.
	closed() bool
	// pending reports that what was written last is not whole.
	pending() bool
}

// NewScanner returns a scanner for the answer to c with this status and header.
// limit bounds the memory one event may take; below 1 means MaxEvent. An answer
// with a longer one passes unharmed and is not complete.
func NewScanner(c Call, status int, h http.Header, limit int) *Scanner {
	s := &Scanner{call: c, reason: notSuccess(status, h)}
	if c.Judge == nil {
		s.reason = firstReason(s.reason, "no judge")
	}
	if s.reason != "" {
		return s
	}
	if limit < 1 {
		limit = MaxEvent
	}
	form := formOf(c, h)
	if form != formWhole {
		s.judge = c.Judge.Stream()
	}
	switch form {
	case formSSE:
		s.framing = &sseFraming{lines: lines{limit: limit}, sink: s}
	case formLines:
		s.framing = &lineFraming{lines: lines{limit: limit, onlyLF: true}, sink: s}
	case formArray:
		s.framing = &arrayFraming{limit: limit, sink: s}
	case formAWS:
		s.framing = &awsFraming{limit: limit, sink: s}
	default:
		s.framing = &wholeFraming{limit: limit, sink: s}
	}
	return s
}

// Streamed reports whether an answer with this header comes in events rather
// than in one piece, which may as well be read to its end before it is passed on.
func Streamed(c Call, h http.Header) bool { return formOf(c, h) != formWhole }

type form int

const (
	formWhole form = iota
	formSSE
	formLines
	formArray
	formAWS
)

// formOf believes the answer's Content-Type, and where it says nothing about
// pieces, what the provider does when it was asked for some.
func formOf(c Call, h http.Header) form {
	media, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		media = ""
	}
	switch media {
	case "text/event-stream":
		return formSSE
	case "application/vnd.amazon.eventstream":
		return formAWS
	case "application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines", "application/stream+json":
		return formLines
	}
	switch {
	case !c.Stream:
		return formWhole
	case c.API == OllamaChat:
		return formLines
	case c.API == GeminiGenerate && isJSON(media):
		return formArray
	case isJSON(media):
		return formWhole
	}
	return formSSE
}

// Write takes the next piece of the body. It never fails.
func (s *Scanner) Write(p []byte) (int, error) {
	if s.framing != nil && !s.over {
		s.framing.write(p)
	}
	return len(p), nil
}

// End says that the body has ended: nil or io.EOF when in order, any other error
// when it broke off.
func (s *Scanner) End(err error) {
	if s.over {
		return
	}
	s.over = true
	if s.ended = err == nil || err == io.EOF; !s.ended {
		return
	}
	if s.framing != nil {
		s.framing.end()
	}
}

// Outcome returns what is known of the answer so far.
func (s *Scanner) Outcome() Outcome {
	if s.framing == nil {
		return Outcome{Reason: s.reason}
	}
	o := s.judged()
	if s.fault != "" {
		return o.failed(s.fault)
	}
	return o
}

func (s *Scanner) judged() Outcome {
	switch f := s.framing.(type) {
	case *wholeFraming:
		return f.outcome(s.call.Judge, s.ended)
	case *sseFraming:
		// A client that reads line by line stops at the mark itself, before the
		// empty line that makes an event of it.
		if d, ok := s.judge.(interface{ doneOutcome() Outcome }); ok && !s.over && f.atDone() {
			return d.doneOutcome()
		}
	}
	return s.judge.Outcome(s.framing.closed() || s.ended && !s.framing.pending())
}

func (s *Scanner) event(name string, data []byte) { s.judge.Event(name, data) }

func (s *Scanner) broken(reason string) { s.fault = firstReason(s.fault, reason) }

// sink takes what a framing finds.
type sink interface {
	event(name string, data []byte)
	broken(reason string)
}

const faultTooLong = "an event is longer than the limit"

// wholeFraming keeps an answer that comes in one piece.
type wholeFraming struct {
	limit int
	sink  sink
	buf   []byte
	over  bool
}

func (f *wholeFraming) write(p []byte) {
	if f.over {
		return
	}
	if len(f.buf)+len(p) > f.limit {
		f.over, f.buf = true, nil
		f.sink.broken(faultTooLong)
		return
	}
	f.buf = append(f.buf, p...)
}

func (f *wholeFraming) end()          {}
func (f *wholeFraming) closed() bool  { return false }
func (f *wholeFraming) pending() bool { return false }

// outcome judges a whole document before its end has been read: clients that
// decode JSON from the body stop at its last bracket.
func (f *wholeFraming) outcome(j Judge, ended bool) Outcome {
	switch {
	case f.over:
		return Outcome{Reason: faultTooLong}
	case !ended && !(looksLikeObject(f.buf) && json.Valid(f.buf)):
		return Outcome{Reason: "the answer has not come to its end"}
	}
	return j.Whole(f.buf)
}
