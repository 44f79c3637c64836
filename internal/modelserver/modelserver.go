package modelserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// What the server calls itself, in every answer.
const (
	Model       = "scripted-model"
	Fingerprint = "fp_scripted"
	Header      = "X-Scripted-Model"

	honesty = "answers come from a script; no language model was asked"
)

// maxLatency bounds both latencies: more is a slip of the unit.
const maxLatency = 10 * time.Minute

// Server answers chat completions from a script and records who asked. Make one
// with [Start]. It is safe for concurrent use.
type Server struct {
	log     *slog.Logger
	samples bool
	mux     *http.ServeMux
	addr    string
	http    *http.Server
	ctx     context.Context // ends with Close; every call looks at it
	stop    context.CancelFunc
	serving chan struct{}  // closed when the listener is done
	active  sync.WaitGroup // handlers; http.Server.Close does not wait for them

	mu       sync.Mutex
	closed   bool
	latency  latency
	faults   []planned
	hanging  chan struct{} // closed and replaced by Release
	calls    []Call
	answered map[string]int  // by hash: answers begun, for WithSamples
	paid     map[string]bool // by hash: an answer was completed
	changed  chan struct{}   // closed and replaced when calls change
}

type latency struct{ call, chunk time.Duration }

type config struct {
	log     *slog.Logger
	samples bool
	latency latency
	faults  []planned
}

// Option configures [Start].
type Option func(*config)

// WithLogger sets where one line per call goes, at debug level. Default: nowhere.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.log = l } }

// WithLatency makes the server wait before each answer and before each chunk of
// a streamed one. Default 0, at most ten minutes.
func WithLatency(call, chunk time.Duration) Option {
	return func(c *config) { c.latency = latency{call, chunk} }
}

// WithSamples numbers the answers to equal requests, so that three samples of one
// prompt are three texts. By default equal requests get equal texts.
func WithSamples() Option { return func(c *config) { c.samples = true } }

// WithFault makes the first n calls that f applies to fail; see [Server.Fail].
func WithFault(n int, f Fault) Option {
	return func(c *config) { c.faults = append(c.faults, planned{n, f}) }
}

// New returns a server that does not listen: an [http.Handler] for a test's own
// listener. Close ends the calls in it.
func New(opts ...Option) (*Server, error) {
	c := config{log: slog.New(slog.DiscardHandler)}
	for _, o := range opts {
		o(&c)
	}
	if c.log == nil {
		return nil, errors.New("modelserver: WithLogger: nil logger")
	}
	if err := c.latency.check(); err != nil {
		return nil, err
	}
	for _, p := range c.faults {
		if err := p.check(); err != nil {
			return nil, err
		}
	}
	s := &Server{
		log: c.log, samples: c.samples, latency: c.latency, faults: c.faults,
		hanging: make(chan struct{}), changed: make(chan struct{}),
		answered: map[string]int{}, paid: map[string]bool{},
	}
	// The server outlives whoever starts it, until Close.
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.mux = s.routes()
	return s, nil
}

// Start listens on addr (for example "127.0.0.1:0", or "" for that) and serves
// until [Server.Close].
func Start(addr string, opts ...Option) (*Server, error) {
	s, err := New(opts...)
	if err != nil {
		return nil, err
	}
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("modelserver: listen: %w", err)
	}
	s.addr = l.Addr().String()
	s.http = &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	s.serving = make(chan struct{})
	go func() {
		defer close(s.serving)
		_ = s.http.Serve(l) // always http.ErrServerClosed, or the listener is gone: Close says so
	}()
	return s, nil
}

// Addr is where the server listens, as host:port; "" if it was made by [New].
func (s *Server) Addr() string { return s.addr }

// BaseURL is what an OpenAI client wants as OPENAI_BASE_URL.
func (s *Server) BaseURL() string { return "http://" + s.addr + "/v1/" }

// Close ends all calls, also those that hang, and waits for them. It is safe to
// call twice; the records can still be read.
func (s *Server) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	s.stop()
	var err error
	if s.http != nil {
		if first {
			err = s.http.Close()
		}
		<-s.serving
	}
	s.active.Wait()
	return err
}

// SetLatency changes the latencies of calls that begin from now on.
func (s *Server) SetLatency(call, chunk time.Duration) error {
	l := latency{call, chunk}
	if err := l.check(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latency = l
	return nil
}

func (l latency) check() error {
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"latency per call", l.call}, {"latency per chunk", l.chunk}} {
		if f.d < 0 || f.d > maxLatency {
			return fmt.Errorf("modelserver: %s is %v, allowed are 0 to %v", f.name, f.d, maxLatency)
		}
	}
	return nil
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	if s.closed { // nothing may join a group that Close waits for
		s.mu.Unlock()
		panic(http.ErrAbortHandler)
	}
	s.active.Add(1)
	s.mu.Unlock()
	defer s.active.Done()
	w.Header().Set(Header, honesty)
	s.mux.ServeHTTP(w, r)
}

// wait pauses for d, or until the client left or the server closes. It reports
// whether to go on.
func (s *Server) wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil && s.ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
	case <-s.ctx.Done():
	}
	return false
}
