// Package logtest is a log that tests read while it is being written.
package logtest

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
)

// Log keeps what is written to it. The zero value is empty; it is safe for concurrent use.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String is the whole log so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Logger writes to l, one line of key=value pairs a record, from level INFO on.
func (l *Log) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// Count is the number of lines of these levels; of all without any.
func (l *Log) Count(levels ...slog.Level) int {
	n := 0
	for line := range strings.Lines(l.String()) {
		for _, level := range levels {
			if strings.Contains(line, "level="+level.String()+" ") {
				n++
			}
		}
		if len(levels) == 0 {
			n++
		}
	}
	return n
}
