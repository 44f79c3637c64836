package llmcache

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nexuscore/onceq/internal/redistest"
)

// M10 with streams: two processes, one of which waits for the other.
func TestColdCrowdMakesOneStreamedCall(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	more := make(chan struct{})
	started := make(chan struct{}, 100)
	p := &provider{}
	p.answer = func(n int64, req *http.Request, _ []byte) (*http.Response, error) {
		started <- struct{}{}
		return p.streamAnswer(req, slices.Insert(events(n), 2, any(until(more)))...), nil
	}
	var wg sync.WaitGroup
	for range 2 {
		tr := open(t, server.Client()).Transport(p)
		for range 50 {
			wg.Go(func() {
				if _, got := get(t, tr, ask(t, t.Context(), streamChat)); strings.Join(got, "") != joined(events(1)) {
					t.Errorf("got %q", got)
				}
			})
		}
	}
	<-started
	time.AfterFunc(300*time.Millisecond, func() { close(more) }) // let the other process find the lease
	wg.Wait()
	if n := p.calls.Load(); n != 1 {
		t.Errorf("%d calls, want 1", n)
	}
}

// M11: the caller that reads the stream goes away; those who joined get all of it.
func TestFollowersOfAStreamSurviveItsReader(t *testing.T) {
	for _, how := range []string{"close", "cancel", "cancel before the answer"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, rdb := redistest.Bubble(t)
				more := make(chan struct{})
				p := &provider{}
				p.answer = func(n int64, req *http.Request, _ []byte) (*http.Response, error) {
					if how == "cancel before the answer" {
						if err := until(more)(req.Context()); err != nil {
							return nil, err
						}
					}
					return p.streamAnswer(req, slices.Insert(events(n), 1, any(until(more)))...), nil
				}
				c := open(t, rdb)
				tr := c.Transport(p)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var leader *http.Response
				var wg sync.WaitGroup
				wg.Go(func() {
					var err error
					leader, err = tr.RoundTrip(ask(t, ctx, streamChat))
					if (err != nil) != (how == "cancel before the answer") {
						t.Errorf("leader: %v", err)
					}
				})
				synctest.Wait()
				for range 5 {
					wg.Go(func() {
						if _, got := get(t, tr, ask(t, t.Context(), streamChat)); strings.Join(got, "") != joined(events(1)) {
							t.Errorf("follower got %q", got)
						}
					})
				}
				synctest.Wait()
				if how == "close" {
					_ = leader.Body.Close()
				} else {
					cancel()
				}
				synctest.Wait()
				close(more)
				wg.Wait()
				if p.calls.Load() != 1 || c.Stats().Stored != 1 || c.Stats().Joined != 5 {
					t.Errorf("%d calls, %+v", p.calls.Load(), c.Stats())
				}
			})
		})
	}
}
