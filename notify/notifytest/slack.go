package notifytest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/nexuscore/onceq/internal/setting"
)

// What a new fake Slack knows without options.
const (
	// Token is the bot token that the server accepts.
	Token = "xoxb-fake"
	// Channel is the public channel that exists from the start, with the bot in it.
	Channel = "C0FAKE0001"
	// BotUser is the user ID of the bot that Token belongs to.
	BotUser = "U0FAKEBOT"
)

// Slack is a fake Slack workspace with one bot. Construct it with [NewSlack].
type Slack struct {
	config

	addr   string // of the listener, kept for Up
	server *http.Server
	client *http.Client
	done   chan struct{}  // closed by Close: ends what hangs
	serves sync.WaitGroup // handlers and Serve loops

	mu       sync.Mutex // guards all below
	closed   bool
	listener net.Listener // nil while down
	channels map[string]*channel
	lastTS   int64
	calls    map[string]int
	scripts  map[string][]Fault
	always   map[string]Fault
	onCall   func(Call) Fault
	limits   map[string]*limit
}

// channel is a conversation and all messages in it, oldest first.
type channel struct {
	private  bool
	archived bool
	left     bool // the bot is not in it
	messages []stored
}

// stored is a message and when the history begins to show it.
type stored struct {
	Message
	shownAt time.Time
}

// Option changes a new [Slack].
type Option func(*config)

type config struct {
	more    []string // channels beside Channel
	scopes  []string
	maxPage int
	lag     time.Duration
	memory  bool
}

// WithChannel adds a channel with the bot in it. IDs that begin with C are
// public channels (scope channels:history), G private ones (groups:history), D
// direct messages (im:history).
func WithChannel(id string) Option {
	return func(c *config) { c.more = append(c.more, id) }
}

// WithScopes sets what the token may do. Defaults to chat:write,
// channels:history, groups:history and im:history.
func WithScopes(scopes ...string) Option {
	return func(c *config) { c.scopes = scopes }
}

// WithMaxPage bounds the messages in one page of history. Defaults to 999, at
// least 1; Slack gives 15 to apps that it does not list and that are distributed.
func WithMaxPage(n int) Option {
	return func(c *config) { c.maxPage = n }
}

// WithHistoryLag lets a message appear in the history only so long after it was
// posted; 0 by default. A person in the channel ([Slack.Seen]) sees it at once.
func WithHistoryLag(d time.Duration) Option {
	return func(c *config) { c.lag = d }
}

// WithMemory keeps the server off the network: only the client from
// [Slack.HTTPClient] reaches it. Goroutines then wait on nothing but each other
// and the clock, as testing/synctest wants it.
func WithMemory() Option {
	return func(c *config) { c.memory = true }
}

func (c *config) check() error {
	for _, id := range c.more {
		if len(id) < 2 || !slices.Contains([]byte("CGD"), id[0]) {
			return setting.Invalidf("WithChannel: %q, an ID begins with C, G or D", id)
		}
	}
	switch {
	case c.maxPage < 1:
		return setting.Invalidf("WithMaxPage: %d, at least 1 is allowed", c.maxPage)
	case c.lag < 0:
		return setting.Invalidf("WithHistoryLag: %v, at least 0 is allowed", c.lag)
	}
	return nil
}

// NewSlack starts a fake Slack. Close it. The error says which option is not
// allowed, or that nothing can be listened to.
func NewSlack(opts ...Option) (*Slack, error) {
	s := &Slack{
		config: config{
			maxPage: 999,
			scopes:  []string{"chat:write", "channels:history", "groups:history", "im:history"},
		},
		channels: map[string]*channel{Channel: {}},
		calls:    map[string]int{},
		limits:   map[string]*limit{},
		done:     make(chan struct{}),
	}
	s.Clear()
	if err := setting.Apply(&s.config, opts); err != nil {
		return nil, err
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	for _, id := range s.more {
		s.channels[id] = &channel{private: id[0] != 'C'}
	}
	if err := s.listen("127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("notifytest: %w", err)
	}
	s.addr = s.listener.Addr().String()
	s.client = &http.Client{Transport: &http.Transport{DialContext: s.dial, DisableKeepAlives: true}}
	s.server = &http.Server{
		Handler:  s.handler(),
		ErrorLog: log.New(io.Discard, "", 0), // aborted connections are on purpose
	}
	s.serve(s.listener)
	return s, nil
}

// URL is the base of the Web API, with the trailing slash that slack-go needs.
func (s *Slack) URL() string { return "http://" + s.addr + "/api/" }

// WebhookURL is the incoming webhook of the channel.
func (s *Slack) WebhookURL(channel string) string {
	return "http://" + s.addr + "/services/T0FAKE/B0FAKE/" + channel
}

// HTTPClient is a client that reaches the server. Only a server [WithMemory]
// needs it; for others any client will do.
func (s *Slack) HTTPClient() *http.Client { return s.client }

// Close stops the server, ends every call that hangs and waits for them.
func (s *Slack) Close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	s.mu.Unlock()
	close(s.done)
	s.server.Close()
	s.client.CloseIdleConnections()
	s.serves.Wait()
}

// Down refuses connections until [Slack.Up]. Calls under way go on.
func (s *Slack) Down() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener != nil {
		s.listener.Close()
		s.listener = nil
	}
}

// Up ends [Slack.Down], at the same address.
func (s *Slack) Up() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.listener != nil {
		return nil
	}
	if err := s.listen(s.addr); err != nil {
		return fmt.Errorf("notifytest: listen again: %w", err)
	}
	s.serve(s.listener)
	return nil
}

func (s *Slack) listen(addr string) (err error) {
	if s.memory {
		s.listener = newPipes()
		return nil
	}
	var lc net.ListenConfig
	s.listener, err = lc.Listen(context.Background(), "tcp", addr) // lives until Close, whoever called
	return err
}

func (s *Slack) serve(l net.Listener) {
	s.serves.Go(func() {
		// Down closes the listener and Close the server: both end Serve.
		_ = s.server.Serve(l)
	})
}

// dial is how HTTPClient connects.
func (s *Slack) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if !s.memory {
		var d net.Dialer
		return d.DialContext(ctx, network, addr)
	}
	s.mu.Lock()
	l, _ := s.listener.(*pipes)
	s.mu.Unlock()
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	if l == nil || addr != s.addr {
		return nil, refused
	}
	c, err := l.dial(ctx)
	if errors.Is(err, net.ErrClosed) {
		return nil, refused
	}
	return c, err
}

// Calls is how often the method ("chat.postMessage", "webhook", ...) was
// called, failed calls included. It panics for a method that the server does not
// have, as [Slack.Script] does.
func (s *Slack) Calls(method string) int {
	mustKnow(method)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[method]
}

// Seen is what a person in the channel sees, threads unfolded, oldest first. It
// is empty for a channel that does not exist.
func (s *Slack) Seen(channel string) []Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.channels[channel]
	if c == nil {
		return nil
	}
	seen := make([]Message, 0, len(c.messages))
	for _, m := range c.messages {
		seen = append(seen, m.Message)
	}
	return seen
}

// Say lets somebody else write into the channel, which must exist, and returns
// the message's TS.
func (s *Slack) Say(channel string, m Message) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.channels[channel]
	if c == nil {
		return "", fmt.Errorf("notifytest: say in %q: no such channel", channel)
	}
	return s.add(c, m), nil
}

// Delete removes a message, as its author or an administrator can.
func (s *Slack) Delete(channel, ts string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.channels[channel]; c != nil {
		c.messages = slices.DeleteFunc(c.messages, func(m stored) bool { return m.TS == ts })
	}
}

// Archive archives the channel: it can be read and no longer written.
func (s *Slack) Archive(channel string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.channels[channel]; c != nil {
		c.archived = true
	}
}

// Kick removes the bot from the channel.
func (s *Slack) Kick(channel string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.channels[channel]; c != nil {
		c.left = true
	}
}

// add appends the message under a fresh TS. The caller holds mu.
func (s *Slack) add(c *channel, m Message) string {
	now := time.Now()
	s.lastTS = max(s.lastTS+1, now.UnixMicro())
	m.TS = fmt.Sprintf("%d.%06d", s.lastTS/1e6, s.lastTS%1e6)
	c.messages = append(c.messages, stored{m, now.Add(s.lag)})
	return m.TS
}
