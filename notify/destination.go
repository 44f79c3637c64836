package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Content is the part of an event that people read. It is stored with the
// event when it is enqueued, so that a message sent an hour later still says
// what was true then.
type Content struct {
	// Text is plain text, also what shows in notifications where Blocks are the
	// message.
	Text string `json:"text,omitempty"`
	// Blocks is a JSON array of Slack blocks. Destinations without blocks send Text.
	Blocks json.RawMessage `json:"blocks,omitempty"`
	// Thread is what the message answers, for example the ts of a Slack message.
	Thread string `json:"thread,omitempty"`
	// Link leads to more, for example the page of the run.
	Link string `json:"link,omitempty"`
}

// Message is what a destination sends. It is built from the row alone, never
// from live state, so that every attempt sends the same.
type Message struct {
	// ID is the same in every attempt and differs between any two messages: a
	// hash of destination, run, event and generation. Destinations pass it on
	// (metadata, idempotency key) so that the message can be recognised.
	ID string
	// Destination is the name under which the message was enqueued.
	Destination string
	RunID       string
	Event       string
	Generation  int // 1 for the first
	Attempt     int // 1 for the first
	// Payload is the event's data as it was when it was enqueued; JSON or nil.
	Payload json.RawMessage
	Content
	// CreatedAt is when the event was enqueued.
	CreatedAt time.Time
	// FirstAttemptAt is when the first attempt to send it began. Nothing of it
	// can be found at the destination before that.
	FirstAttemptAt time.Time
}

// Receipt is what a destination says about a message that it took.
type Receipt struct {
	ID      string `json:"id,omitempty"`      // the destination's own name for it, for example a Slack ts
	Channel string `json:"channel,omitempty"` // where it can be seen
	Link    string `json:"link,omitempty"`    // a permanent link to it
}

// Destination is somewhere that people are told. Its methods are called from
// several goroutines.
type Destination interface {
	// Name is what events and rows call it. It must not change between deploys:
	// rows wait under it. At most 64 bytes, see [New].
	Name() string
	// Send tries to deliver the message once: one POST per call, and no retry
	// inside, for only the outbox knows whether another may be made. It returns
	// a nil error only if the destination said that it took the message. Every
	// other answer is a [SendError]; an error that is not counts as [KindUncertain].
	// ctx ends before the lease on the row does.
	Send(ctx context.Context, m Message) (Receipt, error)
}

// Reconciler is a [Destination] that can be asked whether it has a message.
type Reconciler interface {
	// Find looks for the message. It returns (receipt, true, nil) if it is there;
	// (_, false, nil) only if the destination was read in full, back to
	// m.FirstAttemptAt, and the message is not there now; an error if it cannot
	// tell. The outbox allows for the delay with which a destination shows what
	// it took: it believes "not there" only some time after the last attempt. A
	// [SendError] of kind [KindPermanent] says that asking again is useless, for
	// example because a scope is missing. RetryAfter is honoured, and a question
	// that was RateLimited does not count.
	Find(ctx context.Context, m Message) (Receipt, bool, error)
}

// PolicyAdviser is a [Destination] that knows which [Policy] is right for it;
// [WithPolicy] overrides it. An [HTTP] destination whose receiver takes nothing
// twice advises [PolicyResend].
type PolicyAdviser interface {
	DefaultPolicy() Policy
}

// Kind says what is known about a message after an attempt that failed.
type Kind int

const (
	// KindUncertain: the message may have been sent. It must not be sent again
	// before that is known. It is the zero value: what nobody classified is uncertain.
	KindUncertain Kind = iota
	// KindNotSent: it was definitely not sent, and may be later.
	KindNotSent
	// KindPermanent: it was not sent, and never will be.
	KindPermanent
)

// String names the kind as log lines do.
func (k Kind) String() string {
	switch k {
	case KindUncertain:
		return "uncertain"
	case KindNotSent:
		return "not sent"
	case KindPermanent:
		return "permanent"
	}
	return fmt.Sprintf("Kind(%d)", int(k))
}

// SendError is a destination's classified answer.
type SendError struct {
	Kind Kind
	// RateLimited says that the destination turned the message away because of
	// how many came before. The outbox then holds back everything for this
	// destination, and the attempt does not count. Only with KindNotSent.
	RateLimited bool
	// RetryAfter is how long the destination asked to be left alone; 0 if it did
	// not say.
	RetryAfter time.Duration
	// Err is the cause. It ends up in the row and in log lines: no secrets.
	Err error
}

// Error implements error.
func (e *SendError) Error() string {
	s := e.Kind.String()
	if e.RateLimited {
		s += ", rate limited"
	}
	if e.RetryAfter > 0 {
		s += ", retry after " + e.RetryAfter.String()
	}
	if e.Err == nil {
		return s
	}
	return s + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *SendError) Unwrap() error { return e.Err }

// classify returns what a destination said, unclassified errors as KindUncertain.
func classify(err error) *SendError {
	if e, ok := errors.AsType[*SendError](err); ok {
		return e
	}
	return &SendError{Kind: KindUncertain, Err: err}
}
