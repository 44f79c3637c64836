package llmcache

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nexuscore/onceq/internal/redistest"
)

// M2: also when all of it has arrived already.
func TestReaderThatStopsLeavesNothing(t *testing.T) {
	for name, slow := range map[string]bool{"slow provider": true, "fast provider": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, rdb := redistest.Bubble(t)
				p := &provider{}
				p.answer = func(n int64, req *http.Request, _ []byte) (*http.Response, error) {
					if slow {
						return p.streamAnswer(req, slices.Insert(events(n), 2, any(after(time.Hour)))...), nil
					}
					return p.streamAnswer(req, joined(events(n))), nil
				}
				c := open(t, rdb)
				tr := c.Transport(p)
				ctx, _ := attempt(t, t.Context(), "run", "p")
				resp, err := tr.RoundTrip(ask(t, ctx, streamChat))
				if err != nil {
					t.Fatal(err)
				}
				buf := make([]byte, 4096)
				for i := range 2 {
					n, err := resp.Body.Read(buf)
					if err != nil || string(buf[:n]) != events(1)[i] {
						t.Fatalf("event %d: %q, %v", i, buf[:n], err)
					}
				}
				synctest.Wait()
				if err := resp.Body.Close(); err != nil {
					t.Fatal(err)
				}
				if n, err := resp.Body.Read(buf); n != 0 || err == nil {
					t.Errorf("read after Close: %d, %v", n, err)
				}
				synctest.Wait()
				if slow && p.cancelled.Load() != 1 {
					t.Error("the provider was not told")
				}
				a := account(t, c, "run")
				if c.Stats().Stored != 0 || a.Wasted.Calls != 1 || a.Paid.Calls != 0 || len(a.Open) != 0 {
					t.Errorf("%+v, account %+v; want nothing stored, one wasted", c.Stats(), a)
				}
				// The same call again has the same place in the run.
				if !slow {
					get(t, tr, ask(t, ctx, streamChat))
					ctx, _ = attempt(t, t.Context(), "run", "p")
					_, got := get(t, tr, ask(t, ctx, streamChat))
					if strings.Join(got, "") != joined(events(2)) || p.calls.Load() != 2 {
						t.Errorf("resumed: %q after %d calls", got, p.calls.Load())
					}
				}
			})
		})
	}
}

// Clients stop at the last event, before the end of the body, and some never close.
func TestReaderThatStopsAtTheLastEvent(t *testing.T) {
	for _, closes := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			_, rdb := redistest.Bubble(t)
			p := &provider{}
			p.answer = func(n int64, req *http.Request, _ []byte) (*http.Response, error) {
				return p.streamAnswer(req, append(events(n), after(time.Hour))...), nil // the connection stays open
			}
			c := open(t, rdb)
			tr := c.Transport(p)
			resp, err := tr.RoundTrip(ask(t, t.Context(), streamChat))
			if err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 4096)
			for range events(1) {
				if _, err := resp.Body.Read(buf); err != nil {
					t.Fatal(err)
				}
			}
			if closes {
				_ = resp.Body.Close()
			} else {
				time.Sleep(time.Second)
			}
			if c.Stats().Stored != 1 {
				t.Errorf("closes %v: %+v, want the answer stored", closes, c.Stats())
			}
			_, got := get(t, tr, ask(t, t.Context(), streamChat))
			if strings.Join(got, "") != joined(events(1)) {
				t.Errorf("replay: %q", got)
			}
		})
	}
}

// A reader that goes away without closing does not hold its place for ever.
func TestForgottenBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Bubble(t)
		p := &provider{}
		p.answer = func(n int64, req *http.Request, _ []byte) (*http.Response, error) {
			return p.streamAnswer(req, events(n)...), nil
		}
		c := open(t, rdb)
		resp, err := c.Transport(p).RoundTrip(ask(t, t.Context(), streamChat))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if got := c.Stats(); got.Stored != 1 {
			t.Errorf("%+v, want the whole answer stored after a while", got)
		}
		_ = resp.Body.Close()
	})
}

// The reader learns why its own context ended, whichever of the two goroutines that
// its end wakes comes first.
func TestCancelledReaderIsUnblocked(t *testing.T) {
	for range 200 {
		synctest.Test(t, cancelledReader)
	}
}

func cancelledReader(t *testing.T) {
	_, rdb := redistest.Bubble(t)
	p := &provider{}
	p.answer = func(n int64, req *http.Request, _ []byte) (*http.Response, error) {
		return p.streamAnswer(req, events(n)[0], after(time.Hour)), nil
	}
	why := errors.New("out of patience")
	tr := open(t, rdb).Transport(p)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 5*time.Second, why)
	defer cancel()
	resp, err := tr.RoundTrip(ask(t, ctx, streamChat))
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	_, err = io.ReadAll(resp.Body)
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, why) || time.Since(begin) != 5*time.Second {
		t.Errorf("%v after %v, want the deadline's error and cause in time", err, time.Since(begin))
	}
	synctest.Wait()
	if p.cancelled.Load() != 1 {
		t.Error("the provider was not told")
	}
}

// Clients drain a body that they have read to its end.
func TestEndIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Bubble(t)
		p := &provider{}
		p.answer = func(n int64, req *http.Request, _ []byte) (*http.Response, error) {
			return p.streamAnswer(req, events(n)...), nil
		}
		tr := open(t, rdb).Transport(p)
		for _, name := range []string{"paid", "replayed"} {
			resp, err := tr.RoundTrip(ask(t, t.Context(), streamChat))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(resp.Body); err != nil {
				t.Fatal(err)
			}
			if n, err := resp.Body.Read(make([]byte, 1)); n != 0 || err != io.EOF {
				t.Errorf("%s: read after the end: %d bytes, %v, want 0, EOF", name, n, err)
			}
			_ = resp.Body.Close()
		}
	})
}
