package llmcache

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/internal/lease"
	"github.com/nexuscore/onceq/internal/redistest"
	"github.com/nexuscore/onceq/internal/runkey"
	"github.com/nexuscore/onceq/internal/scope"
)

// Tests with processes of their own: the test binary starts itself again.
const childEnv = "LLMCACHE_TEST_CHILD" // "<redis> <provider> <goroutines> <run or ->"

// child makes the same streamed call in some goroutines at once, and prints each
// answer's body on a line, quoted.
func child() {
	var addr, base, run string
	var goroutines int
	if _, err := fmt.Sscan(os.Getenv(childEnv), &addr, &base, &goroutines, &run); err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr, DisableIdentity: true})
	cache, err := New(rdb, WithLeaseTTL(time.Second))
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	if run != "-" {
		ctx, _ = lease.New(ctx, lease.Config{Prefix: "onceq", Key: run, Base: runkey.Base("onceq", run), Generation: 1, TTL: time.Hour}, time.Now())
		ctx = scope.New(ctx, "planning", "")
	}
	client := &http.Client{Transport: cache.Transport(nil)}
	answers := make(chan string, goroutines)
	for range goroutines {
		go func() {
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/chat/completions", strings.NewReader(streamChat))
			req.Header.Set("Content-Type", "application/json")
			resp, err := client.Do(req)
			if err != nil {
				answers <- err.Error()
				return
			}
			defer func() { _ = resp.Body.Close() }()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				body = append(body, err.Error()...)
			}
			answers <- string(body)
		}()
	}
	for range goroutines {
		fmt.Println(strconv.Quote(<-answers))
	}
}

// startChild starts a child; its answers come on the channel, which is closed at its end.
func startChild(t *testing.T, redisAddr, base string, goroutines int, run string) (*exec.Cmd, <-chan string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %d %s", childEnv, redisAddr, base, goroutines, run))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	answers := make(chan string, goroutines)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(answers)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			s, _ := strconv.Unquote(lines.Text())
			answers <- s
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
		_ = cmd.Wait()
	})
	return cmd, answers
}

// streamServer streams events(n) for the nth call; before the third event it
// calls wait.
func streamServer(t *testing.T, calls *atomic.Int64, wait func(n int64, r *http.Request)) *httptest.Server {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := calls.Add(1)
		_, _ = io.Copy(io.Discard, r.Body) // else the server does not notice that the client is gone
		w.Header().Set("Content-Type", "text/event-stream")
		for i, e := range events(n) {
			if i == 2 {
				wait(n, r)
			}
			_, _ = io.WriteString(w, e.(string))
			w.(http.Flusher).Flush()
		}
	}))
	t.Cleanup(srv.Close)
	return srv
}

// M10 for real: two processes, fifty goroutines each, nothing stored.
func TestTwoProcessesMakeOneCall(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	var calls atomic.Int64
	srv := streamServer(t, &calls, func(int64, *http.Request) { time.Sleep(time.Second) }) // a slow answer
	var wg sync.WaitGroup
	for range 2 {
		_, answers := startChild(t, server.Addr, srv.URL, 50, "-")
		wg.Go(func() {
			n := 0
			for a := range answers {
				n++
				if a != joined(events(1)) {
					t.Errorf("answer %q", a)
				}
			}
			if n != 50 {
				t.Errorf("%d answers, want 50", n)
			}
		})
	}
	wg.Wait()
	if calls.Load() != 1 {
		t.Errorf("%d calls, want 1", calls.Load())
	}
}

// A worker is killed in the middle of a stream: the next attempt pays once more,
// the ledger says what happened, and the one after that replays.
func TestKillInMidStream(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	var calls atomic.Int64
	reached := make(chan struct{})
	srv := streamServer(t, &calls, func(n int64, r *http.Request) {
		if n == 1 {
			close(reached)
			<-r.Context().Done()
		}
	})
	c := open(t, server.Client())
	cmd, _ := startChild(t, server.Addr, srv.URL, 1, "run")
	<-reached
	if a := account(t, c, "run"); len(a.Open) != 1 || !a.Open[0].Held || a.Open[0].Model != "gpt-x" {
		t.Errorf("while it streams: %+v", a)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, answers := startChild(t, server.Addr, srv.URL, 1, "run")
		if got := <-answers; got != joined(events(2)) {
			t.Errorf("resumed: %q", got)
		}
		for range answers {
			t.Error("a second answer")
		}
	}
	if calls.Load() != 2 {
		t.Errorf("%d calls, want 2", calls.Load())
	}
	paid := Sum{Calls: 1, InputTokens: 10, OutputTokens: 5, CachedTokens: 4}
	same(t, "account", account(t, c, "run"), Account{Paid: paid, Saved: paid, Wasted: Sum{Calls: 1}})
}
