// Package faultproxy is a TCP proxy in front of Redis that fails on request: it
// cuts connections, keeps them half open, slows them down, and lets the nth command
// of a test's choice be lost, or its reply.
package faultproxy

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

// Verdict is what becomes of a command.
type Verdict int

const (
	Pass      Verdict = iota
	Cut               // the command is not sent on; its connection breaks
	LoseReply         // the command takes effect; its connection breaks before the reply
)

// Proxy passes connections on to one server. It is safe for concurrent use.
type Proxy struct {
	Addr string

	target string
	l      net.Listener
	work   sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	judge  func(args []string) Verdict
	delay  time.Duration
	silent chan struct{} // open while nothing gets through; nil otherwise
	down   bool
	conns  map[net.Conn]struct{}
	closed bool
}

// New starts a proxy to target on a free port.
func New(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{Addr: l.Addr().String(), target: target, l: l, conns: map[net.Conn]struct{}{}}
	p.work.Go(p.accept)
	return p, nil
}

// Judge sets a function that is asked about each command, arguments as they are on
// the wire. It may be called from several goroutines. Nil passes all.
func (p *Proxy) Judge(f func(args []string) Verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.judge = f
}

// Delay makes each reply wait.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Silence keeps all connections open, new ones too, and lets nothing through, until
// Heal: then what waited goes through.
func (p *Proxy) Silence() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.silent == nil {
		p.silent = make(chan struct{})
	}
}

// Down breaks all connections and refuses new ones, until Heal.
func (p *Proxy) Down() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = true
	for c := range p.conns {
		_ = c.Close()
	}
}

// Heal ends Silence, Down and Delay.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.silent != nil {
		close(p.silent)
		p.silent = nil
	}
	p.down, p.delay = false, 0
}

// Close ends all connections and waits.
func (p *Proxy) Close() {
	_ = p.l.Close()
	p.Down()
	p.mu.Lock()
	p.closed = true
	if p.silent != nil {
		close(p.silent)
		p.silent = nil
	}
	p.mu.Unlock()
	p.work.Wait()
}

func (p *Proxy) accept() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		s, err := net.Dial("tcp", p.target)
		p.mu.Lock()
		if err != nil || p.down || p.closed {
			p.mu.Unlock()
			_ = c.Close()
			if err == nil {
				_ = s.Close()
			}
			continue
		}
		p.conns[c], p.conns[s] = struct{}{}, struct{}{}
		p.mu.Unlock()
		l := &link{p: p, client: c, server: s}
		p.work.Go(l.requests)
		p.work.Go(l.replies)
	}
}

// link is one connection with its other half.
type link struct {
	p              *Proxy
	client, server net.Conn

	mu   sync.Mutex // guards lose
	lose bool       // the next reply is lost, and the connection with it
}

func (l *link) close() {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	for _, c := range []net.Conn{l.client, l.server} {
		_ = c.Close()
		delete(l.p.conns, c)
	}
}

func (l *link) requests() {
	defer l.close()
	in := bufio.NewReader(l.client)
	for {
		raw, args, err := command(in)
		if err != nil {
			return
		}
		l.p.mu.Lock()
		judge, silent := l.p.judge, l.p.silent
		l.p.mu.Unlock()
		if silent != nil {
			<-silent
		}
		v := Pass
		if judge != nil {
			v = judge(args)
		}
		if v == Cut {
			return
		}
		if v == LoseReply {
			l.mu.Lock()
			l.lose = true
			l.mu.Unlock()
		}
		if _, err := l.server.Write(raw); err != nil {
			return
		}
	}
}

func (l *link) replies() {
	defer l.close()
	buf := make([]byte, 64<<10)
	for {
		n, err := l.server.Read(buf)
		l.mu.Lock()
		lose := l.lose
		l.mu.Unlock()
		if lose || err != nil {
			return
		}
		l.p.mu.Lock()
		delay, silent := l.p.delay, l.p.silent
		l.p.mu.Unlock()
		if silent != nil {
			<-silent
		}
		time.Sleep(delay)
		if _, err := l.client.Write(buf[:n]); err != nil {
			return
		}
	}
}

var errProtocol = errors.New("not a command")

// command reads one command as Redis clients send it: an array of bulk strings.
func command(in *bufio.Reader) (raw []byte, args []string, err error) {
	n, raw, err := number(in, '*', nil)
	if err != nil {
		return nil, nil, err
	}
	for range n {
		var size int
		if size, raw, err = number(in, '$', raw); err != nil {
			return nil, nil, err
		}
		start := len(raw)
		raw = append(raw, make([]byte, size+2)...)
		if _, err := io.ReadFull(in, raw[start:]); err != nil {
			return nil, nil, err
		}
		args = append(args, string(raw[start:start+size]))
	}
	return raw, args, nil
}

// number reads a line such as "*3\r\n" and appends it to raw.
func number(in *bufio.Reader, kind byte, raw []byte) (int, []byte, error) {
	line, err := in.ReadBytes('\n')
	if err != nil {
		return 0, nil, err
	}
	if len(line) < 4 || line[0] != kind {
		return 0, nil, errProtocol
	}
	n, err := strconv.Atoi(string(line[1 : len(line)-2]))
	if err != nil || n < 0 {
		return 0, nil, errProtocol
	}
	return n, append(raw, line...), nil
}
