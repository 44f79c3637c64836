package notifytest

import (
	"fmt"
	"net/http"
	"slices"
	"time"
)

// Fault is how one call goes wrong. The zero value is [None]: nothing does.
type Fault struct {
	// Apply lets the call take effect before the fault shows: the message is in
	// the channel although the caller learns nothing of it.
	Apply bool
	// Delay is waited for before anything else happens.
	Delay time.Duration
	// Drop closes the connection without a reply.
	Drop bool
	// Hang keeps the connection open and never replies, until the caller gives
	// up or the server is closed: what a half-open connection looks like.
	Hang bool
	// Status is the HTTP status of the reply; 0 means 200.
	Status int
	// Header is added to the reply.
	Header http.Header
	// Body is sent in place of Slack's answer, when it, Status or Header is set.
	Body string
	// Cut, when above 0, announces the whole reply and closes the connection
	// after that many bytes of it.
	Cut int
}

// Faults for the usual troubles. Those named Accept… put the message into the
// channel first.
var (
	// None lets the call through: a place holder in a script.
	None = Fault{}
	// Drop reads the request and closes the connection; nothing is posted.
	Drop = Fault{Drop: true}
	// AcceptThenDrop posts the message and closes the connection.
	AcceptThenDrop = Fault{Apply: true, Drop: true}
	// Hang never replies; nothing is posted.
	Hang = Fault{Hang: true}
	// AcceptThenHang posts the message and never replies.
	AcceptThenHang = Fault{Apply: true, Hang: true}
	// Malformed replies with something that is no JSON; nothing is posted.
	Malformed = Fault{Body: "<html>upstream connect error</html>"}
	// AcceptThenMalformed is Malformed after the message was posted.
	AcceptThenMalformed = Fault{Apply: true, Body: "<html>upstream connect error</html>"}
	// AcceptThenCut posts the message and cuts the reply after five bytes.
	AcceptThenCut = Fault{Apply: true, Cut: 5}
)

// RateLimited answers 429. retryAfter is the Retry-After header as it is: "2",
// "1.5", a date, or "" for none.
func RateLimited(retryAfter string) Fault {
	f := Fault{Status: http.StatusTooManyRequests, Body: `{"ok":false,"error":"ratelimited"}`}
	if retryAfter != "" {
		f.Header = http.Header{"Retry-After": {retryAfter}}
	}
	return f
}

// Status answers with an HTTP status and an HTML page, as a proxy does.
func Status(code int) Fault {
	return Fault{Status: code, Body: fmt.Sprintf("<html><h1>%d %s</h1></html>", code, http.StatusText(code))}
}

// AcceptThenStatus is [Status] after the message was posted.
func AcceptThenStatus(code int) Fault {
	f := Status(code)
	f.Apply = true
	return f
}

// Refuse answers 200 with {"ok":false,"error":code}, as Slack says no.
func Refuse(code string) Fault {
	return Fault{Body: fmt.Sprintf(`{"ok":false,"error":%q}`, code)}
}

// Reply answers 200 with the body; nothing is posted.
func Reply(body string) Fault { return Fault{Status: http.StatusOK, Body: body} }

// Slow waits before it answers as usual.
func Slow(d time.Duration) Fault { return Fault{Delay: d} }

// replaces says whether the fault has a reply of its own.
func (f Fault) replaces() bool { return f.Status != 0 || f.Body != "" || f.Header != nil }

// Call is one call of a method, as [Slack.OnCall] sees it.
type Call struct {
	// Method is the Web API method, or "webhook".
	Method string
	// Channel is the channel's ID, empty for methods without one.
	Channel string
	// N counts the calls of this method from 1.
	N int
}

// mustKnow stops a test whose method is misspelt: a fault that never happens, or a
// call that is never counted, would let it pass.
func mustKnow(method string) {
	if !slices.Contains(methods, method) {
		panic(fmt.Sprintf("notifytest: there is no method %q; there are %q", method, methods))
	}
}

// Script queues faults for the next calls of the method ("chat.postMessage",
// "conversations.history", "conversations.replies", "auth.test" or "webhook"), one
// each; then the method works again. It panics for any other.
func (s *Slack) Script(method string, faults ...Fault) {
	mustKnow(method)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scripts[method] = append(s.scripts[method], faults...)
}

// Always makes every call of the method fail so, once its script has run out. An
// empty method means every method. It panics for a method that [Slack.Script] does
// not know.
func (s *Slack) Always(method string, f Fault) {
	if method != "" {
		mustKnow(method)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.always[method] = f
}

// OnCall asks f how each call goes that no script and no Always decides. f may
// be called from several goroutines at once. Nil takes it back.
func (s *Slack) OnCall(f func(Call) Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onCall = f
}

// Clear takes back every Script, Always and OnCall.
func (s *Slack) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scripts, s.always, s.onCall = map[string][]Fault{}, map[string]Fault{}, nil
}

// fault counts the call and decides how it goes.
func (s *Slack) fault(method, channel string) Fault {
	s.mu.Lock()
	s.calls[method]++
	c := Call{Method: method, Channel: channel, N: s.calls[method]}
	if q := s.scripts[method]; len(q) > 0 {
		s.scripts[method] = q[1:]
		s.mu.Unlock()
		return q[0]
	}
	for _, m := range []string{method, ""} {
		if f, ok := s.always[m]; ok {
			s.mu.Unlock()
			return f
		}
	}
	on := s.onCall
	s.mu.Unlock()
	if on == nil {
		return None
	}
	return on(c)
}
