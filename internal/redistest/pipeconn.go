package redistest

import (
	"net"
	"sync"
)

// pipeConn is an in-memory pipe whose writes do not wait for the other side, as
// those of a socket. On a bare net.Pipe a pipeline of commands never ends: the
// server waits for its first reply to be read, the client for its last command.
type pipeConn struct {
	net.Conn

	mu     sync.Mutex // guards the fields below
	wake   *sync.Cond
	queue  []byte
	closed bool
	err    error
}

func newPipeConn(c net.Conn) *pipeConn {
	p := &pipeConn{Conn: c}
	p.wake = sync.NewCond(&p.mu)
	go p.drain()
	return p
}

func (p *pipeConn) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return 0, p.err
	}
	p.queue = append(p.queue, b...)
	p.wake.Signal()
	return len(b), nil
}

func (p *pipeConn) Close() error {
	p.mu.Lock()
	p.closed = true
	p.wake.Signal()
	p.mu.Unlock()
	return p.Conn.Close()
}

func (p *pipeConn) drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for len(p.queue) == 0 && !p.closed {
			p.wake.Wait()
		}
		if p.closed {
			return
		}
		b := p.queue
		p.queue = nil
		p.mu.Unlock()
		_, err := p.Conn.Write(b)
		p.mu.Lock()
		if err != nil {
			p.err = err
			return
		}
	}
}
