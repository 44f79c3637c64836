package idempotent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
)

// Class says what an error of a handler means for its run.
type Class int

const (
	// ClassNone leaves the decision to the next classifier; the last one takes
	// it for ClassTransient.
	ClassNone Class = iota
	// ClassTransient errors are retried with exponential backoff and use up the budget.
	ClassTransient
	// ClassPermanent errors are never retried: the run fails.
	ClassPermanent
	// ClassRateLimited errors are retried after the wait that came with them, without
	// using up the budget.
	ClassRateLimited
	// ClassContended: another attempt holds the run. Retried when its lease may be
	// over, without using up the budget.
	ClassContended
	// ClassOrphaned: the attempt lost its lease, or its worker died. Retried at once,
	// without using up the budget.
	ClassOrphaned
)

var classNames = [...]string{"none", "transient", "permanent", "rate limited", "contended", "orphaned"}

// String returns the class in lower case.
func (c Class) String() string {
	if c < 0 || int(c) >= len(classNames) {
		return "class " + strconv.Itoa(int(c))
	}
	return classNames[c]
}

// Classifier says what an error means, and how long to wait where it knows (zero:
// the policy decides). It must be safe for concurrent use.
type Classifier func(err error) (Class, time.Duration)

// Permanent marks err so that the run fails at once. Nil stays nil. The result
// unwraps to err and to asynq.SkipRetry.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanent(err)
}

// RateLimited marks err so that the run is tried again after the given wait
// without using up a retry. Nil stays nil; a wait of zero lets the policy decide, one
// over an hour counts as an hour. asynq adds up to two seconds, and jitter a tenth.
func RateLimited(err error, after time.Duration) error {
	if err == nil {
		return nil
	}
	return &rateLimited{err, after}
}

type rateLimited struct {
	err   error
	after time.Duration
}

func (e *rateLimited) Error() string {
	return fmt.Sprintf("%v (rate limited, retry after %v)", e.err, e.after)
}
func (e *rateLimited) Unwrap() error             { return e.err }
func (e *rateLimited) RetryAfter() time.Duration { return e.after }

// classify never returns ClassNone. An error or a classifier that panics is no reason
// to lose an attempt.
func (g *Guard) classify(err error) (class Class, wait time.Duration) {
	defer func() {
		if v := recover(); v != nil {
			g.logger.Error("onceq: error not classified, taken for transient", "type", fmt.Sprintf("%T", err), "panic", fmt.Sprint(v))
			class, wait = ClassTransient, 0
		}
	}()
	for _, f := range g.classifiers {
		if class, wait := f(err); class != ClassNone {
			return class, max(0, wait)
		}
	}
	if class, wait := own(err); class != ClassNone {
		return class, wait
	}
	if class, wait := byStatus(err); class != ClassNone {
		return class, wait
	}
	return ClassTransient, 0
}

func own(err error) (Class, time.Duration) {
	var held *ContendedError
	var limited interface{ RetryAfter() time.Duration }
	var marked interface{ Permanent() bool }
	switch {
	case errors.As(err, &held):
		return ClassContended, held.RetryAfter
	case errors.Is(err, asynq.SkipRetry), errors.Is(err, asynq.RevokeTask),
		errors.Is(err, ErrPoisoned), errors.Is(err, ErrAlreadyFailed), errors.Is(err, ErrInvalid):
		return ClassPermanent, 0
	case errors.Is(err, ErrLeaseLost), errors.Is(err, asynq.ErrLeaseExpired):
		return ClassOrphaned, 0
	case errors.As(err, &marked) && marked.Permanent():
		return ClassPermanent, 0
	case errors.As(err, &limited):
		return ClassRateLimited, limited.RetryAfter()
	case errors.Is(err, ErrUnavailable), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return ClassTransient, 0
	}
	return ClassNone, 0
}

// byStatus reads the HTTP status that an SDK's error carries: a field StatusCode
// or HTTPStatusCode (openai-go, anthropic-sdk-go, go-openai), and the Retry-After of
// its field Response. Reflection, because their types must not be dependencies of
// ours, and none of them has a method for it.
func byStatus(err error) (Class, time.Duration) {
	for _, e := range chain(err, nil) {
		v := reflect.ValueOf(e)
		for v.Kind() == reflect.Pointer && !v.IsNil() {
			v = v.Elem()
		}
		if v.Kind() != reflect.Struct {
			continue
		}
		for _, name := range [...]string{"StatusCode", "HTTPStatusCode"} {
			f := v.FieldByName(name)
			if !f.IsValid() || !f.CanInt() {
				continue
			}
			if class := statusClass(int(f.Int())); class != ClassNone {
				return class, retryAfter(v)
			}
		}
	}
	return ClassNone, 0
}

// text is err's own, also where that panics.
func text(err error) (s string) {
	defer func() {
		if v := recover(); v != nil {
			s = fmt.Sprintf("%T, whose Error method panicked", err)
		}
	}()
	return err.Error()
}

// chain lists err and all it wraps; its length is bounded against cycles.
func chain(err error, into []error) []error {
	if err == nil || len(into) >= 64 {
		return into
	}
	into = append(into, err)
	switch w := err.(type) {
	case interface{ Unwrap() error }:
		return chain(w.Unwrap(), into)
	case interface{ Unwrap() []error }:
		for _, e := range w.Unwrap() {
			into = chain(e, into)
		}
	}
	return into
}

func statusClass(code int) Class {
	switch code {
	case http.StatusTooManyRequests:
		return ClassRateLimited
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusLocked:
		return ClassTransient
	}
	switch {
	case code >= 500 && code <= 599:
		return ClassTransient
	case code >= 400 && code <= 499:
		return ClassPermanent
	}
	return ClassNone
}

func retryAfter(v reflect.Value) time.Duration {
	f := v.FieldByName("Response")
	if !f.IsValid() || !f.CanInterface() {
		return 0
	}
	r, ok := f.Interface().(*http.Response)
	if !ok || r == nil {
		return 0
	}
	s := r.Header.Get("Retry-After")
	if n, err := strconv.ParseFloat(s, 64); err == nil && n > 0 && n < 1e6 {
		return time.Duration(n * float64(time.Second))
	}
	if at, err := http.ParseTime(s); err == nil {
		return max(0, time.Until(at))
	}
	return 0
}
