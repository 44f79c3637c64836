package llmcache

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"sync"

	"github.com/nexuscore/onceq/llmcache/internal/wire"
)

// maxFailure is how much of an error response is read before it is passed on, so
// that all who wait get it.
const maxFailure = 256 << 10

// exchange is one recognised request and what becomes of it.
type exchange struct {
	*Transport
	*place
	known wire.Call
	req   *http.Request
	body  []byte
	call  *call
}

func (e *exchange) serve() (*http.Response, error) {
	e.call = &call{place: e.place, model: e.known.Model, invoke: e.invoke}
	out := e.cache.serve(e.req.Context(), e.call)
	switch {
	case out.err != nil:
		return nil, out.err
	case out.live != nil:
		return out.live.(*live).response(e, out.flight), nil
	}
	if resp, ok := out.value.(*http.Response); ok && out.led {
		resp.Request = e.req
		return resp, nil
	}
	return replay(out.rec, e.req, e.pace), nil
}

// invoke sends the request to the provider.
func (e *exchange) invoke(ctx context.Context, f *flight) result {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req := withBody(e.req, e.body, nil).Clone(ctx)
	// Without it the base negotiates compression itself and undoes it; an encoded
	// answer could be neither judged nor replayed.
	req.Header.Del("Accept-Encoding")
	resp, err := e.base.RoundTrip(req)
	if err != nil {
		return e.failed(ctx, err)
	}
	switch {
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return e.refused(ctx, f, resp, cancel)
	case wire.Streamed(e.known, resp.Header):
		return e.stream(ctx, f, resp, nil, cancel)
	}
	return e.whole(ctx, f, resp, cancel)
}

// failed is a call without a response. Unless it failed before it was sent, the
// provider may have worked.
func (e *exchange) failed(ctx context.Context, err error) result {
	r := result{err: err, retry: ctx.Err() != nil}
	if op, ok := errors.AsType[*net.OpError](err); !ok || op.Op != "dial" {
		r.cost.Wasted.Calls = 1
	}
	return r
}

// refused passes an error response on, unchanged. Those who joined get the same,
// rather than each being refused in turn.
func (e *exchange) refused(ctx context.Context, f *flight, resp *http.Response, cancel context.CancelFunc) result {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxFailure+1))
	if len(body) > maxFailure {
		return e.stream(ctx, f, resp, body, cancel)
	}
	_ = resp.Body.Close()
	r := result{value: resp, retry: err != nil || ctx.Err() != nil}
	resp.Body = &brokenBody{bytes.NewReader(body), endOf(err)}
	r.rec = &record{kind: kindHTTP, status: resp.StatusCode, header: failureHeader(resp.Header), body: body}
	return r
}

// whole reads an answer that comes in one piece, and passes it on when it is
// settled. One that is too large goes on as a stream.
func (e *exchange) whole(ctx context.Context, f *flight, resp *http.Response, cancel context.CancelFunc) result {
	most := e.cache.maxValue
	var buf bytes.Buffer
	if n := resp.ContentLength; n > 0 && n <= int64(most) {
		buf.Grow(int(n) + bytes.MinRead)
	}
	_, err := buf.ReadFrom(io.LimitReader(resp.Body, int64(most)+1))
	body := buf.Bytes()
	if len(body) > most {
		return e.stream(ctx, f, resp, body, cancel)
	}
	_ = resp.Body.Close()
	resp.Body = &brokenBody{bytes.NewReader(body), endOf(err)}
	s := wire.NewScanner(e.known, resp.StatusCode, resp.Header, most)
	_, _ = s.Write(body)
	s.End(endOf(err))
	r := e.judge(s.Outcome(), resp, body, nil)
	r.value = resp
	return r
}

// endOf is what a reader sees at the end of a body that was read with this error.
func endOf(err error) error {
	if err == nil {
		return io.EOF
	}
	return err
}

// judge says what becomes of an answer that has come to its end.
func (e *exchange) judge(o wire.Outcome, resp *http.Response, body []byte, cuts []cut) result {
	usage := Usage{o.Usage.Input, o.Usage.Output, o.Usage.Cached, o.Usage.CacheWrite}
	sum := e.cache.prices.sum(usage, e.known.Model, o.Model)
	if !o.Complete {
		return result{retry: true, cost: Account{Wasted: sum}}
	}
	return result{
		rec: &record{
			kind: kindHTTP, model: trim(o.Model), usage: usage, status: resp.StatusCode,
			header: keptHeader(resp.Header), cuts: cuts, body: body,
		},
		whole: true, store: o.WhyNot(e.shared(), e.cache.refusals) == "", cost: Account{Paid: sum},
	}
}

// stream passes an answer on while it comes. head is what was read of it before.
func (e *exchange) stream(ctx context.Context, f *flight, resp *http.Response, head []byte, cancel context.CancelFunc) result {
	upstream := resp.Body
	closing := context.AfterFunc(ctx, func() { _ = upstream.Close() }) // for a base that forgets about ctx
	defer func() {
		if closing() {
			_ = upstream.Close()
		}
	}()
	t := newTape(e.cache.maxValue, cancel)
	leaving := context.AfterFunc(f.leader, func() { t.leave(context.Canceled) })
	defer leaving()
	passed := *resp                     // the caller's: it gets a body of its own
	passed.Header = resp.Header.Clone() // SDKs write into it, and this one is stored
	f.offers <- &live{resp: &passed, tape: t}

	s := wire.NewScanner(e.known, resp.StatusCode, resp.Header, e.cache.maxValue)
	e.pump(ctx, f, t, s, io.MultiReader(bytes.NewReader(head), upstream), splitter(resp.Header))
	body, cuts, kept := t.recorded()
	r := e.judge(s.Outcome(), resp, body, cuts)
	switch {
	case !kept: // its place is free already, and took no cost
		e.cache.count(e.place, r.cost)
		return result{whole: r.whole, retry: true}
	case r.store && !t.served() && ctx.Err() != nil: // the reader left, and nobody else waits
		return result{retry: true, cost: Account{Wasted: r.cost.Paid}}
	}
	return r
}

var pumpBuffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// pump reads the provider's body to its end, piece by piece.
func (e *exchange) pump(ctx context.Context, f *flight, t *tape, s *wire.Scanner, body io.Reader, split func([]byte) int) {
	buf := pumpBuffers.Get().(*[32 << 10]byte)[:]
	defer pumpBuffers.Put((*[32 << 10]byte)(buf))
	for whole := false; ; {
		n, err := body.Read(buf)
		for rest := buf[:n]; len(rest) > 0; {
			size := split(rest)
			if size <= 0 {
				size = len(rest)
			}
			_, _ = s.Write(rest[:size])
			if t.add(rest[:size]) {
				e.letGo(ctx, f)
			}
			if !whole && s.Outcome().Complete {
				whole = true
				t.whole()
			}
			rest = rest[size:]
		}
		if err != nil {
			s.End(t.end(err))
			return
		}
	}
}

// letGo frees the place of an answer that will not be stored, long before its end.
func (e *exchange) letGo(ctx context.Context, f *flight) {
	e.cache.disband(f)
	if f.owner != "" {
		e.cache.drop(ctx, e.call, f.owner)
	}
}

// splitter says where a piece is cut further: after each event. A reader that
// stops after two events has then not been given the third.
func splitter(h http.Header) func([]byte) int {
	media, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	switch media {
	case "text/event-stream":
		return splitSSE
	case "application/x-ndjson", "application/ndjson", "application/jsonl":
		return splitLine
	}
	return func([]byte) int { return 0 }
}

// splitSSE returns where the first event ends, 0 for nowhere.
func splitSSE(piece []byte) int {
	for from := 0; ; {
		i := bytes.IndexByte(piece[from:], '\n')
		if i < 0 {
			return 0
		}
		from += i + 1
		switch {
		case from < len(piece) && piece[from] == '\n':
			return from + 1
		case from+1 < len(piece) && piece[from] == '\r' && piece[from+1] == '\n':
			return from + 2
		}
	}
}

func splitLine(piece []byte) int { return bytes.IndexByte(piece, '\n') + 1 }

// live is a response whose body is still coming.
type live struct {
	resp *http.Response
	tape *tape
}

// response gives the response to the caller that leads the flight.
func (l *live) response(e *exchange, f *flight) *http.Response {
	b := &liveBody{exchange: e, flight: f, tape: l.tape}
	ctx := e.req.Context()
	b.stop = context.AfterFunc(ctx, func() { b.leave(ended(ctx)) })
	l.resp.Body, l.resp.Request = b, e.req
	return l.resp
}

// liveBody reads the tape. It ends, for whoever reads, when the answer is settled,
// so that what the reader does next finds it stored or its place free.
type liveBody struct {
	*exchange
	flight *flight
	tape   *tape
	stop   func() bool // of the context's end
	once   sync.Once
}

func (b *liveBody) Read(p []byte) (int, error) {
	n, err := b.tape.Read(p)
	if err != nil {
		b.stop()
		b.leave(err)
	}
	return n, err
}

func (b *liveBody) Close() error {
	b.stop()
	b.leave(errBodyClosed)
	return nil
}

// leave ends the reading. Reads return err from then on.
func (b *liveBody) leave(err error) {
	b.once.Do(func() {
		c, f := b.cache, b.flight
		select {
		case <-f.done:
		default:
			if b.tape.atEnd() || b.tape.satisfied() {
				<-f.done // bounded: by grace, and by the store's timeouts
			}
		}
		b.tape.leaving(err)
		last := c.leave(f, true)
		b.tape.leave(err)
		if last {
			<-f.done
		}
		select {
		case <-f.done:
			if f.out.whole {
				return
			}
		default:
		}
		b.giveBack()
	})
}
