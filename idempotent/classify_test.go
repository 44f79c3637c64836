package idempotent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	openai "github.com/openai/openai-go/v3"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/redistest"
)

func newWorldGuard(t *testing.T, opts ...idempotent.Option) *idempotent.Guard {
	t.Helper()
	_, rdb := redistest.Mini(t)
	g, err := idempotent.New(rdb, append([]idempotent.Option{idempotent.WithLogger(quiet)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func openaiError(status int, retryAfter string) error {
	r := &http.Response{StatusCode: status, Header: http.Header{}}
	if retryAfter != "" {
		r.Header.Set("Retry-After", retryAfter)
	}
	return fmt.Errorf("chat: %w", &openai.Error{StatusCode: status, Response: r, Request: &http.Request{}})
}

// What a server does with an error shows in its delay and in IsFailure.
func TestClassesOfErrors(t *testing.T) {
	host := errors.New("a host's own")
	g := newWorldGuard(t, idempotent.WithClassifier(func(err error) (idempotent.Class, time.Duration) {
		if errors.Is(err, host) {
			return idempotent.ClassRateLimited, 7 * time.Second
		}
		return idempotent.ClassNone, 0
	}))
	cfg := g.ServerConfig(asynq.Config{})
	for _, c := range []struct {
		name         string
		err          error
		failure      bool
		least, limit time.Duration
	}{
		{"unknown", errors.New("?"), true, 500 * time.Millisecond, time.Second},
		{"network", io.ErrUnexpectedEOF, true, 500 * time.Millisecond, time.Second},
		{"timeout", context.DeadlineExceeded, true, 500 * time.Millisecond, time.Second},
		{"redis", fmt.Errorf("x: %w", idempotent.ErrUnavailable), true, 500 * time.Millisecond, time.Second},
		{"503", openaiError(503, ""), true, 500 * time.Millisecond, time.Second},
		{"503 with Retry-After", openaiError(503, "9"), true, 9 * time.Second, 9 * time.Second},
		{"429", openaiError(429, "20"), false, 21 * time.Second, 23 * time.Second},
		{"429 fraction", openaiError(429, "1.5"), false, 2500 * time.Millisecond, 3500 * time.Millisecond},
		{"429 bare", openaiError(429, ""), false, 500 * time.Millisecond, time.Second},
		{"429 of a year", openaiError(429, "999999"), false, time.Hour, 67 * time.Minute},
		{"no status of HTTP", openaiError(1205, ""), true, 500 * time.Millisecond, time.Second},
		{"lost", fmt.Errorf("x: %w", idempotent.ErrLeaseLost), false, 0, time.Second},
		{"asynq's lease", asynq.ErrLeaseExpired, false, 0, time.Second},
		{"host's own", fmt.Errorf("x: %w", host), false, 8 * time.Second, 9 * time.Second},
		{"joined", errors.Join(errors.New("x"), openaiError(429, "20")), false, 21 * time.Second, 23 * time.Second},
	} {
		if got := cfg.IsFailure(c.err); got != c.failure {
			t.Errorf("%s: IsFailure %v, want %v", c.name, got, c.failure)
		}
		if d := cfg.RetryDelayFunc(0, c.err, nil); d < c.least || d > c.limit {
			t.Errorf("%s: delay %v, want %v to %v", c.name, d, c.least, c.limit)
		}
	}
}

func TestMarkersKeepWhatTheyWrap(t *testing.T) {
	boom := errors.New("boom")
	if err := idempotent.Permanent(boom); !errors.Is(err, boom) || !errors.Is(err, asynq.SkipRetry) {
		t.Errorf("Permanent: %v", err)
	}
	if err := idempotent.RateLimited(boom, time.Second); !errors.Is(err, boom) {
		t.Errorf("RateLimited: %v", err)
	}
	if idempotent.Permanent(nil) != nil || idempotent.RateLimited(nil, time.Second) != nil {
		t.Error("a marked nil is not nil")
	}
}
