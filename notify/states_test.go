package notify

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nexuscore/onceq/internal/dbtest"
)

func notSent(retryAfter time.Duration) error {
	return &SendError{Kind: KindNotSent, RetryAfter: retryAfter, Err: errors.New("connection refused")}
}

func limited(retryAfter time.Duration) error {
	return &SendError{Kind: KindNotSent, RateLimited: true, RetryAfter: retryAfter, Err: errors.New("429")}
}

var (
	errPermanent = &SendError{Kind: KindPermanent, Err: errors.New("channel_not_found")}
	errVague     = errors.New("EOF") // nobody classified it
)

// TestWhatBecomesOfAnAttempt goes through what destinations answer, on every
// database: the state at the end, and what people saw of it.
func TestWhatBecomesOfAnAttempt(t *testing.T) {
	type result struct {
		State State
		Calls int
		Seen  int
		Error string // part of last_error
	}
	once := func(shown bool, err error) func(context.Context, int, Message) (bool, error) {
		return func(_ context.Context, n int, _ Message) (bool, error) {
			if n == 1 {
				return shown, err
			}
			return true, nil
		}
	}
	always := func(err error) func(context.Context, int, Message) (bool, error) {
		return func(context.Context, int, Message) (bool, error) { return false, err }
	}
	cases := []struct {
		name   string
		policy Policy
		asked  bool
		find   func(n int, there bool) (bool, error)
		answer func(context.Context, int, Message) (bool, error)
		want   result
	}{
		{name: "taken", want: result{StateSent, 1, 1, ""}},
		{name: "not sent once", answer: once(false, notSent(0)), want: result{StateSent, 2, 1, ""}},
		{name: "never sent", answer: always(notSent(0)), want: result{StateFailed, 3, 0, "3 attempts: not sent: connection refused"}},
		{name: "permanent (N3)", answer: always(errPermanent), want: result{StateFailed, 1, 0, "permanent: channel_not_found"}},
		{name: "rate limited more often than there are attempts", answer: func(_ context.Context, n int, _ Message) (bool, error) {
			switch {
			case n <= 5:
				return false, limited(time.Millisecond)
			case n == 6: // the first attempt that counts
				return false, notSent(0)
			}
			return true, nil
		}, want: result{StateSent, 7, 1, ""}},
		{name: "rate limited without saying how long (N4)", answer: once(false, limited(0)), want: result{StateSent, 2, 1, ""}},
		{name: "vague, hold (N5)", answer: always(errVague), want: result{StateHeld, 1, 0, "EOF"}},
		{name: "shown and vague, hold", answer: once(true, errVague), want: result{StateHeld, 1, 1, "EOF"}},
		{name: "shown and vague, resend", policy: PolicyResend, answer: once(true, errVague), want: result{StateSent, 2, 2, ""}},
		{name: "always vague, resend", policy: PolicyResend, answer: always(errVague), want: result{StateHeld, 3, 0, "EOF"}},
		{name: "vague, drop", policy: PolicyDrop, answer: once(false, errVague), want: result{StateFailed, 1, 0, "dropped, may have been sent: uncertain: EOF"}},
		{name: "panics", answer: func(context.Context, int, Message) (bool, error) { panic("nil map") }, want: result{StateHeld, 1, 0, "panic: nil map"}},
		{name: "panics with an error that says nothing was sent", answer: func(context.Context, int, Message) (bool, error) { panic(notSent(0)) },
			want: result{StateHeld, 1, 0, "uncertain: panic: not sent"}},
		{name: "goexits", answer: func(context.Context, int, Message) (bool, error) { runtime.Goexit(); return false, nil },
			want: result{StateHeld, 1, 0, "did not come back"}},
		{name: "ends with its context", answer: func(ctx context.Context, n int, _ Message) (bool, error) {
			<-ctx.Done()
			return false, ctx.Err()
		}, want: result{StateHeld, 1, 0, "deadline exceeded"}},

		{name: "shown, reply lost, asked (N1)", asked: true, answer: once(true, errVague), want: result{StateSent, 1, 1, ""}},
		{name: "lost, asked", asked: true, answer: once(false, errVague), want: result{StateSent, 2, 1, ""}},
		{name: "always lost, asked", asked: true, answer: always(errVague), want: result{StateFailed, 3, 0, "3 attempts"}},
		{name: "goexits after it was shown, asked", asked: true, want: result{StateSent, 1, 1, ""}},
		{name: "cannot be asked at first", asked: true, answer: once(true, errVague), find: func(n int, there bool) (bool, error) {
			if n == 1 {
				return false, errors.New("i/o timeout")
			}
			if n == 2 {
				return false, limited(time.Millisecond)
			}
			return there, nil
		}, want: result{StateSent, 1, 1, ""}},
		{name: "can never be asked", asked: true, answer: once(true, errVague),
			find: func(int, bool) (bool, error) { return false, errPermanent }, want: result{StateHeld, 1, 1, "channel_not_found"}},
		{name: "asked in vain, drop", asked: true, policy: PolicyDrop, answer: once(true, errVague),
			find: func(int, bool) (bool, error) { return false, errVague }, want: result{StateFailed, 1, 1, "asked 4 times"}},
		{name: "panics when asked", asked: true, answer: once(true, errVague),
			find: func(int, bool) (bool, error) { panic("nil map") }, want: result{StateHeld, 1, 1, "panic: nil map"}},
	}
	dbtest.Each(t, func(t *testing.T, d *dbtest.Database) {
		for i, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				name := "d" + strconv.Itoa(i) // all share one table
				a := &asked{channel: channel{name: name, answer: c.answer}, find: c.find}
				if strings.HasPrefix(c.name, "goexits after") {
					a.answer = func(_ context.Context, n int, m Message) (bool, error) {
						a.show(m)
						runtime.Goexit()
						return false, nil
					}
				}
				dest := Destination(a)
				if !c.asked {
					dest = &a.channel
				}
				opts := quick(WithPolicy(name, c.policy), WithMaxAttempts(3), WithMaxChecks(4))
				if strings.HasPrefix(c.name, "goexits") || strings.HasPrefix(c.name, "ends with") {
					opts = append(opts, WithSendTimeout(200*time.Millisecond), WithLeaseTTL(2*time.Second))
				}
				o := outboxOn(t, d.DB, []Destination{dest}, opts...)
				must(t, o.Enqueue(t.Context(), d.DB, done("r")))
				drain(t, o)
				calls, seen := a.count()
				e, err := o.List(t.Context(), Filter{Destination: name})
				must(t, err)
				same(t, "result", result{e[0].State, calls, seen["r/done"], c.want.Error}, c.want)
				if !strings.Contains(e[0].LastError, c.want.Error) {
					t.Errorf("last error is %q, want it to contain %q", e[0].LastError, c.want.Error)
				}
				if c.want.State == StateSent && (e[0].SentAt.IsZero() || e[0].Receipt.ID == "") {
					t.Errorf("sent at %v, receipt %v", e[0].SentAt, e[0].Receipt)
				}
			})
		}
	})
}
