package idempotent

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"
)

// HTTPStatus maps what a Producer answered to HTTP, after the IETF draft "The
// Idempotency-Key HTTP Header Field": 202 queued; 200 already succeeded; 409
// duplicate, with the time after which to ask again (0: not by waiting, the run has
// failed); 422 same key, other payload; 400 an argument is not allowed; 503 cannot
// tell, ask again with the same key. Anything else is 500.
func HTTPStatus(err error) (status int, retryAfter time.Duration) {
	var dup *DuplicateError
	switch {
	case err == nil:
		return http.StatusAccepted, 0
	case errors.Is(err, ErrAlreadySucceeded):
		return http.StatusOK, 0
	case errors.As(err, &dup):
		if dup.State == StateFailed {
			return http.StatusConflict, 0
		}
		return http.StatusConflict, max(time.Second, dup.RetryAfter)
	case errors.Is(err, ErrDuplicate):
		return http.StatusConflict, 0
	case errors.Is(err, ErrPayloadMismatch):
		return http.StatusUnprocessableEntity, 0
	case errors.Is(err, ErrInvalid):
		return http.StatusBadRequest, 0
	case errors.Is(err, ErrUnavailable):
		return http.StatusServiceUnavailable, time.Second
	}
	return http.StatusInternalServerError, 0
}

// SetRetryAfter writes a Retry-After header in whole seconds, rounded up; for zero it
// does nothing.
func SetRetryAfter(h http.Header, d time.Duration) {
	if d > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(d.Seconds())), 10))
	}
}
