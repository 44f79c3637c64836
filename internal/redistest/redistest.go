// Package redistest starts Redis servers for tests: miniredis for logic, a
// redis-server process on a free port where the truth is the point.
package redistest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Mini starts a miniredis whose TTLs run by the clock, and a client on it.
func Mini(t testing.TB) (*miniredis.Miniredis, *redis.Client) {
	t.Helper()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	if err := m.Start(); err != nil {
		t.Fatalf("miniredis: %v", err)
	}
	t.Cleanup(m.Close)
	return m, Client(t, m.Addr())
}

// Bubble starts a miniredis for a testing/synctest bubble and a client that
// reaches it without a socket: TTLs run in the bubble's virtual time.
func Bubble(t testing.TB) (*miniredis.Miniredis, *redis.Client) {
	t.Helper()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	t.Cleanup(m.Close)
	c := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:6379", // a literal IP: the resolver would leave the bubble
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			c, err := m.Dial()
			if err != nil {
				return nil, err
			}
			return newPipeConn(c), nil
		},
		Protocol:        2,
		DisableIdentity: true,
	})
	t.Cleanup(func() { _ = c.Close() })
	return m, c
}

// Client returns a client on addr that is closed with the test.
func Client(t testing.TB, addr string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr, DisableIdentity: true})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Skip ends a test that needs something this machine lacks. It says so loudly,
// and with ONCEQ_REQUIRE_REAL=1 it is a failure. go test hides what a passing package
// prints when it runs several: ONCEQ_SKIPPED names a file that collects it.
func Skip(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("ONCEQ_REQUIRE_REAL") == "1" {
		t.Fatalf("ONCEQ_REQUIRE_REAL=1, but %s", what)
	}
	line := fmt.Sprintf("*** NOT TESTED: %s: %s ***\n", t.Name(), what)
	fmt.Fprint(os.Stderr, "\n"+line)
	if name := os.Getenv("ONCEQ_SKIPPED"); name != "" {
		f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = f.WriteString(line)
		_ = f.Close()
	}
	t.Skip(what)
}

// Server is a redis-server process of the test's own.
type Server struct {
	Addr string

	t    testing.TB // nil for one made by New
	bin  string
	dir  string
	args []string
	log  lockedBuffer

	mu  sync.Mutex // guards cmd
	cmd *exec.Cmd
}

// Real starts a redis-server without persistence on a free port, with further
// arguments as on its command line. The test is skipped, loudly, without one.
func Real(t testing.TB, args ...string) *Server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		Skip(t, "redis-server is not installed")
	}
	s, err := New(t.TempDir(), args...)
	if err != nil {
		t.Fatal(err)
	}
	s.t = t
	t.Cleanup(s.Kill)
	return s
}

// New is Real for a program: with its files in dir, until Kill. Client is not for
// it.
func New(dir string, args ...string) (*Server, error) {
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin, dir: dir, args: args}
	for range 5 { // another process may take the port between the look and the start
		if s.Addr, err = freeAddr(); err == nil {
			err = s.Start()
		}
		if err == nil {
			return s, nil
		}
	}
	return nil, fmt.Errorf("redis-server: %w\n%s", err, s.log.String())
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String(), nil
}

// Start starts the process on the same port and folder, after Kill or Stop.
func (s *Server) Start() error {
	_, port, _ := net.SplitHostPort(s.Addr)
	args := append([]string{
		"--port", port, "--bind", "127.0.0.1", "--dir", s.dir,
		"--save", "", "--appendonly", "no", "--daemonize", "no",
	}, s.args...)
	cmd := exec.Command(s.bin, args...)
	cmd.Stdout, cmd.Stderr = &s.log, &s.log
	if err := cmd.Start(); err != nil {
		return err
	}
	s.mu.Lock()
	s.cmd = cmd
	s.mu.Unlock()
	deadline := time.Now().Add(10 * time.Second)
	c := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1, DisableIdentity: true})
	defer func() { _ = c.Close() }()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		err := c.Ping(ctx).Err()
		pid := c.Info(ctx, "server").Val()
		cancel()
		if err == nil && bytes.Contains([]byte(pid), []byte("process_id:"+strconv.Itoa(cmd.Process.Pid))) {
			return nil
		}
		if time.Now().After(deadline) {
			s.Kill()
			return fmt.Errorf("no answer on %s: %w", s.Addr, err)
		}
		time.Sleep(10 * time.Millisecond) // a process that starts sends no event
	}
}

// Kill ends the process with SIGKILL and waits for it. It may be called twice.
func (s *Server) Kill() { s.end(syscall.SIGKILL) }

// Stop ends the process with SIGTERM and waits for it.
func (s *Server) Stop() { s.end(syscall.SIGTERM) }

func (s *Server) end(sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGCONT)
	_ = s.cmd.Process.Signal(sig)
	_ = s.cmd.Wait()
	s.cmd = nil
}

// Signal sends sig, for example SIGSTOP, to the process.
func (s *Server) Signal(sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd != nil {
		_ = s.cmd.Process.Signal(sig)
	}
}

// Client returns a client on the server that is closed with the test.
func (s *Server) Client() *redis.Client { return Client(s.t, s.Addr) }

// Counter counts what a client sends, handshakes of new connections aside: add
// it with AddHook.
type Counter struct{ commands, trips atomic.Int64 }

// Reset sets both counts to zero.
func (c *Counter) Reset() { c.commands.Store(0); c.trips.Store(0) }

// Commands is how many commands were sent, those in pipelines included.
func (c *Counter) Commands() int64 { return c.commands.Load() }

// RoundTrips is how often the client waited for Redis.
func (c *Counter) RoundTrips() int64 { return c.trips.Load() }

// DialHook implements redis.Hook.
func (c *Counter) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (c *Counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.add(cmd)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements redis.Hook.
func (c *Counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.add(cmds...)
		return next(ctx, cmds)
	}
}

func (c *Counter) add(cmds ...redis.Cmder) {
	n := 0
	for _, cmd := range cmds {
		switch cmd.Name() {
		case "hello", "client", "auth", "select":
		default:
			n++
		}
	}
	if n > 0 {
		c.commands.Add(int64(n))
		c.trips.Add(1)
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
