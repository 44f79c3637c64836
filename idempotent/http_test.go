package idempotent_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/nexuscore/onceq/idempotent"
)

func TestHTTPStatus(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		header string
	}{
		{nil, 202, ""},
		{&idempotent.SucceededError{}, 200, ""},
		{fmt.Errorf("x: %w", &idempotent.DuplicateError{State: idempotent.StateRunning, RetryAfter: 1200 * time.Millisecond}), 409, "2"},
		{&idempotent.DuplicateError{State: idempotent.StateRetrying}, 409, "1"},
		{&idempotent.DuplicateError{State: idempotent.StateFailed}, 409, ""},
		{&idempotent.PayloadMismatchError{}, 422, ""},
		{idempotent.ErrUnavailable, 503, "1"},
		{errors.New("?"), 500, ""},
	} {
		status, after := idempotent.HTTPStatus(c.err)
		h := http.Header{}
		idempotent.SetRetryAfter(h, after)
		if status != c.status || h.Get("Retry-After") != c.header {
			t.Errorf("%v: %d %q, want %d %q", c.err, status, h.Get("Retry-After"), c.status, c.header)
		}
	}
}
