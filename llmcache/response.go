package llmcache

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ReplayedHeader marks answers that did not come from the provider: stored ones,
// and those of a call that another goroutine made. Its value is "1".
const ReplayedHeader = "Onceq-Replayed"

// keptHeaders are stored with an answer. All others belong to the connection, to
// the encoding that is already undone, or to the moment: rate limits, cookies,
// dates.
var keptHeaders = map[string]bool{
	"Content-Type": true, "Content-Disposition": true, "Content-Language": true,
	"X-Request-Id": true, "Request-Id": true, "Apim-Request-Id": true, "X-Amzn-Requestid": true,
	"Openai-Model": true, "Openai-Version": true,
}

const bedrockHeaders = "X-Amzn-Bedrock-" // token counts

func keptHeader(h http.Header) []headerField {
	var kept []headerField
	for name, values := range h {
		if !keptHeaders[name] && !strings.HasPrefix(name, bedrockHeaders) {
			continue
		}
		for _, v := range values {
			kept = append(kept, headerField{name, v})
		}
	}
	return kept
}

// failureHeader is what others who waited see of an error response: all but what
// describes the connection and the encoding.
func failureHeader(h http.Header) []headerField {
	var kept []headerField
	for name, values := range h {
		switch name {
		case "Connection", "Keep-Alive", "Transfer-Encoding", "Content-Length", "Trailer", "Upgrade", "Set-Cookie":
			continue
		}
		for _, v := range values {
			kept = append(kept, headerField{name, v})
		}
	}
	return kept
}

// replay makes a response of a record.
func replay(r *record, req *http.Request, pace bool) *http.Response {
	h := http.Header{}
	if r.status < 300 { // an error that was shared stays as it is
		h.Set(ReplayedHeader, "1")
	}
	for _, f := range r.header {
		h[f.name] = append(h[f.name], f.value)
	}
	resp := &http.Response{
		Status:     strconv.Itoa(r.status) + " " + http.StatusText(r.status),
		StatusCode: r.status,
		Proto:      "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        h,
		Body:          &replayBody{ctx: req.Context(), rec: r, pace: pace},
		ContentLength: int64(len(r.body)),
		Request:       req,
	}
	if len(r.cuts) > 0 {
		resp.ContentLength = -1 // as it was: nobody knew
	} else {
		h.Set("Content-Length", strconv.Itoa(len(r.body)))
	}
	return resp
}

// replayBody reads a record in the pieces it was recorded in.
type replayBody struct {
	ctx  context.Context
	rec  *record
	pace bool

	mu     sync.Mutex // guards the fields below: Close may come from elsewhere
	read   int
	cut    int // the piece
	inCut  int // bytes of it that were read
	closed bool
}

var errBodyClosed = errors.New("llmcache: read on closed response body")

func (b *replayBody) Read(p []byte) (int, error) {
	if b.ctx.Err() != nil {
		return 0, ended(b.ctx)
	}
	if err := b.wait(); err != nil {
		return 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, errBodyClosed
	}
	rest := b.rec.body[b.read:]
	if len(rest) == 0 {
		return 0, io.EOF
	}
	if len(b.rec.cuts) > 0 {
		for b.inCut == b.rec.cuts[b.cut].size {
			b.cut, b.inCut = b.cut+1, 0
		}
		rest = rest[:b.rec.cuts[b.cut].size-b.inCut]
	}
	n := copy(p, rest)
	b.read += n
	b.inCut += n
	return n, nil
}

// wait lets a piece come as long after the one before as it did when recorded.
func (b *replayBody) wait() error {
	if !b.pace {
		return nil
	}
	b.mu.Lock()
	next, fresh := b.cut, b.inCut == 0
	if next < len(b.rec.cuts) && b.inCut == b.rec.cuts[next].size {
		next, fresh = next+1, true
	}
	b.mu.Unlock()
	if !fresh || next >= len(b.rec.cuts) {
		return nil
	}
	return pauseErr(b.ctx, b.rec.cuts[next].gap)
}

func pauseErr(ctx context.Context, d time.Duration) error {
	if d > 0 && !pause(ctx, d) {
		return ended(ctx)
	}
	return nil
}

func (b *replayBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return nil
}

// brokenBody is a body that was read as far as it came.
type brokenBody struct {
	io.Reader
	err error
}

func (b *brokenBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF {
		err = b.err
	}
	return n, err
}

func (b *brokenBody) Close() error { return nil }
