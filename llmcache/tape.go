package llmcache

import (
	"bytes"
	"io"
	"sync"
	"time"
)

const (
	// window is how far a stream that is too large to record may run ahead of its
	// reader.
	window = 64 << 10
	// grace is how long the end of a body is waited for after the provider's last
	// event was read: some servers leave the connection open.
	grace = 250 * time.Millisecond
	// idle is how long a whole answer waits for a reader that does not read on. Then
	// it is stored all the same: it is slow, or has forgotten to close.
	idle = time.Minute
)

// tape passes a body from the provider to one reader and keeps it, up to a limit;
// past that it keeps only what the reader has not read.
type tape struct {
	limit int
	cut   func() // ends the provider's body

	mu       sync.Mutex // guards the fields below
	moved    *sync.Cond // anything below has changed
	buf      []byte     // from base on
	base     int        // bytes that were dropped
	cuts     []cut      // of buf while recording
	over     bool       // too large: no longer recording
	last     time.Time  // of the last cut
	read     int        // bytes the reader has
	nextCut  int        // the cut the reader is in
	cutRead  int        // bytes of it the reader has
	terminal int        // bytes after which the answer is known to be whole; 0: not known
	err      error      // why no more will come
	gone     bool       // the reader needs no more
	goneErr  error      // what its reads return once nothing more comes
	timer    *time.Timer
	wasCut   bool
}

func newTape(limit int, cut func()) *tape {
	t := &tape{limit: limit, cut: cut, last: time.Now()}
	t.moved = sync.NewCond(&t.mu)
	return t
}

// add takes the next piece of the body. It waits when the reader is too far
// behind, and reports whether the piece made the body too large to keep.
func (t *tape) add(piece []byte) (overflowed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.over && len(t.buf)+len(piece) > t.limit {
		t.over, overflowed = true, true
		t.buf, t.base, t.cuts = bytes.Clone(t.buf[t.read:]), t.read, nil // lets the rest go
	}
	for t.over && !t.gone && t.base+len(t.buf)-t.read >= window {
		t.moved.Wait()
	}
	if t.over {
		if t.gone {
			return overflowed
		}
		t.buf = append(t.buf[:0], t.buf[t.read-t.base:]...)
		t.base = t.read
	} else {
		t.addCut(len(piece))
	}
	t.buf = append(t.buf, piece...)
	t.moved.Broadcast()
	return overflowed
}

func (t *tape) addCut(size int) {
	now := time.Now()
	if len(t.cuts) < maxCuts {
		t.cuts = append(t.cuts, cut{size, now.Sub(t.last)})
	} else {
		t.cuts[maxCuts-1].size += size
	}
	t.last = now
}

// whole says that with what was added so far the answer is whole.
func (t *tape) whole() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.terminal == 0 {
		t.terminal = t.base + len(t.buf)
		t.satisfiedLocked()
	}
}

// satisfiedLocked starts the grace once the reader has the whole answer.
func (t *tape) satisfiedLocked() {
	if t.terminal == 0 || t.read < t.terminal || t.timer != nil || t.err != nil {
		return
	}
	t.timer = time.AfterFunc(grace, func() {
		t.mu.Lock()
		t.wasCut = true
		t.mu.Unlock()
		t.cut()
	})
}

// end says that no more will come, and returns why: an end that the tape itself
// brought about is an orderly one.
func (t *tape) end(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.wasCut && err != nil {
		err = io.EOF
	}
	t.err = err
	if t.timer != nil {
		t.timer.Stop()
	}
	t.moved.Broadcast()
	return err
}

// Read implements io.Reader for the one reader: never more than one piece.
func (t *tape) Read(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	for {
		switch {
		case t.gone:
			return 0, t.goneErr
		case t.read < t.base+len(t.buf):
			return t.takeLocked(p), nil
		case t.err != nil && t.goneErr != nil:
			return 0, t.goneErr
		case t.err != nil:
			return 0, t.err
		}
		t.moved.Wait()
	}
}

func (t *tape) takeLocked(p []byte) int {
	b := t.buf[t.read-t.base:]
	if !t.over {
		b = b[:min(len(b), t.cuts[t.nextCut].size-t.cutRead)]
	}
	n := copy(p, b)
	t.read += n
	if !t.over {
		if t.cutRead += n; t.cutRead == t.cuts[t.nextCut].size && t.nextCut+1 < maxCuts {
			t.nextCut, t.cutRead = t.nextCut+1, 0
		}
	}
	t.satisfiedLocked()
	t.moved.Broadcast()
	return n
}

// leaving says why the reader is about to leave. Its leaving ends the provider's
// body, and its reads return err rather than how that ended.
func (t *tape) leaving(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.goneErr == nil {
		t.goneErr = err
	}
}

// leave says that the reader needs no more; its reads return err, or what leaving
// was told.
func (t *tape) leave(err error) {
	t.leaving(err)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gone = true
	t.moved.Broadcast()
}

// served waits, after the body has ended, until the reader has the whole answer
// or is gone, and reports which. A reader that does not move for long is taken as
// served.
func (t *tape) served() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	whole := t.terminal
	if whole == 0 {
		whole = t.base + len(t.buf)
	}
	for t.read < whole && !t.gone {
		was, stuck := t.read, false
		timer := time.AfterFunc(idle, func() {
			t.mu.Lock()
			stuck = true
			t.mu.Unlock()
			t.moved.Broadcast()
		})
		for t.read == was && !t.gone && !stuck {
			t.moved.Wait()
		}
		timer.Stop()
		if t.read == was && !t.gone {
			return true
		}
	}
	return t.read >= whole
}

// satisfied reports whether the reader has the whole answer although the body has
// not been read to its end.
func (t *tape) satisfied() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.terminal > 0 && t.read >= t.terminal
}

// atEnd reports whether the reader has read all there is.
func (t *tape) atEnd() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err != nil && t.read == t.base+len(t.buf)
}

// recorded returns the body and its pieces, false when it was too large.
func (t *tape) recorded() ([]byte, []cut, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf, t.cuts, !t.over
}
