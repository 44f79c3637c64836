package idempotent

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/hibiken/asynq"

	"github.com/nexuscore/onceq/internal/setting"
)

type policy struct {
	base, limit time.Duration
	maxRetry    int
}

func defaultPolicy() policy {
	return policy{base: time.Second, limit: 2 * time.Minute, maxRetry: 5}
}

func (p policy) validate() error {
	switch {
	case p.base < time.Millisecond:
		return setting.Invalidf("WithBackoff: base %v is shorter than 1ms", p.base)
	case p.limit < p.base || p.limit > time.Hour:
		return setting.Invalidf("WithBackoff: limit %v is not between the base %v and 1h", p.limit, p.base)
	case p.maxRetry < 1 || p.maxRetry > 1000:
		return setting.Invalidf("WithRetryBudget: %d is not between 1 and 1000", p.maxRetry)
	}
	return nil
}

// maxRateLimit bounds a Retry-After: a run must come back while its checkpoint
// is still there.
const maxRateLimit = time.Hour

// wholeSecond makes up for asynq, which truncates the time of a retry to seconds.
const wholeSecond = time.Second

// delay is how long a delivery rests before its next try.
func (p policy) delay(c Class, wait time.Duration, n int) time.Duration {
	switch c {
	case ClassContended:
		return wait + wholeSecond + jitter(max(time.Second, wait/10))
	case ClassOrphaned:
		return p.orphanDelay()
	case ClassRateLimited:
		if wait > 0 {
			wait = min(wait, maxRateLimit)
			return wait + wholeSecond + jitter(max(time.Second, wait/10))
		}
	}
	if wait > 0 {
		return min(wait, p.limit)
	}
	// Full jitter: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
	ceiling := p.limit
	if n = max(n, 0); n < 63 && p.base <= p.limit>>n {
		ceiling = p.base << n
	}
	return max(p.base/2, jitter(ceiling))
}

// longest bounds what delay returns, for whatever must outlive it. A host's own
// RetryDelayFunc is beyond it.
func (p policy) longest() time.Duration {
	return max(p.limit, maxRateLimit+maxRateLimit/10) + 2*wholeSecond
}

func (p policy) orphanDelay() time.Duration { return jitter(time.Second) }

func jitter(limit time.Duration) time.Duration {
	if limit <= 0 {
		return 0
	}
	return rand.N(limit)
}

// retryError carries a verdict from the middleware to the server's policy. It does not
// unwrap: a SkipRetry or RevokeTask inside would make asynq drop a task that the guard
// wants delivered again. Everything else inside can be asked for.
type retryError struct {
	err   error
	class Class
	delay time.Duration
}

func (e *retryError) Error() string { return text(e.err) }

func (e *retryError) Is(target error) bool {
	return target != asynq.SkipRetry && target != asynq.RevokeTask && errors.Is(e.err, target)
}

func (e *retryError) As(target any) bool { return errors.As(e.err, target) }

// permanent makes asynq archive the task. What it wraps stays visible.
func permanent(err error) error {
	if errors.Is(err, asynq.SkipRetry) || errors.Is(err, asynq.RevokeTask) {
		return err
	}
	return &permanentError{err}
}

// permanentError reads like what it wraps: asynq's sentinel is for asynq.
type permanentError struct{ err error }

func (e *permanentError) Error() string   { return e.err.Error() }
func (e *permanentError) Unwrap() []error { return []error{e.err, asynq.SkipRetry} }

// ServerConfig returns cfg with the guard's retry policy. Contended, orphaned and
// rate-limited deliveries wait as long as their error says and use up no retry;
// transient ones back off exponentially with full jitter. Functions the host has
// set are kept: its RetryDelayFunc decides the delay of what is transient, its
// IsFailure is asked about everything that uses up a retry, its ErrorHandler hears of
// everything. A run whose deadline passes in the queue fails before it began, with
// WithOnFailed's function called: asynq asks no middleware then, but the ErrorHandler.
// Inspector.CancelProcessing uses up a retry, since asynq asks no middleware.
// A DelayedTaskCheckInterval of zero becomes 1 s (asynq's default is 5 s), so that
// waits end in time.
func (g *Guard) ServerConfig(cfg asynq.Config) asynq.Config {
	hostDelay, hostFailure := cfg.RetryDelayFunc, cfg.IsFailure
	cfg.RetryDelayFunc = func(n int, err error, t *asynq.Task) time.Duration {
		class, delay := g.verdict(err, n)
		if hostDelay != nil && class == ClassTransient {
			return hostDelay(n, err, t)
		}
		return delay
	}
	cfg.IsFailure = func(err error) bool {
		switch class, _ := g.verdict(err, 0); class {
		case ClassContended, ClassOrphaned, ClassRateLimited:
			return false
		}
		return hostFailure == nil || hostFailure(err)
	}
	hostErrors := cfg.ErrorHandler
	cfg.ErrorHandler = asynq.ErrorHandlerFunc(func(ctx context.Context, t *asynq.Task, err error) {
		g.expire(ctx, t, err)
		if hostErrors != nil {
			hostErrors.HandleError(ctx, t, err)
		}
	})
	if cfg.DelayedTaskCheckInterval == 0 {
		cfg.DelayedTaskCheckInterval = time.Second
	}
	return cfg
}

// verdict is what the middleware decided, or for errors of asynq's own what it
// would have.
func (g *Guard) verdict(err error, n int) (Class, time.Duration) {
	var r *retryError
	if errors.As(err, &r) {
		return r.class, r.delay
	}
	class, wait := g.classify(err)
	return class, g.policy.delay(class, wait, n)
}
