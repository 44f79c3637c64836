package llmcache

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/nexuscore/onceq/internal/redistest"
)

// A stream of any length passes in the memory of one that can be stored.
func TestAStreamOf200MBPasses(t *testing.T) { // not parallel: it looks at the heap
	if testing.Short() {
		t.Skip("200 MB")
	}
	size, most := 200<<20, int64(48<<20) // it takes 25 to 33 MB
	if raced() {
		size = 80 << 20
	}
	sent := sha256.New()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		out := bufio.NewWriterSize(io.MultiWriter(w, sent), 64<<10)
		all := events(1)
		text := repeat("x", 4000)
		for n := 0; n < size; {
			written, err := fmt.Fprintf(out, "data: {\"id\":\"c\",\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%d %s\"},\"finish_reason\":null}]}\n\n", n, text)
			if err != nil {
				t.Errorf("server: %v after %d bytes", err, n)
				return
			}
			n += written
		}
		_, _ = io.WriteString(out, joined(all[1:]))
		_ = out.Flush()
	}))
	defer srv.Close()
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	_, rdb := redistest.Mini(t)
	c := open(t, rdb)
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/v1/chat/completions", strings.NewReader(streamChat))
	req.Header.Set("Content-Type", "application/json")
	runtime.GC()
	heap := func() int64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before, peak := heap(), int64(0)
	resp, err := c.Transport(base).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	got := sha256.New()
	var n int64
	for err == nil {
		var more int64
		more, err = io.CopyN(got, resp.Body, 1<<20)
		n += more
		peak = max(peak, heap()-before)
	}
	if err != io.EOF || n < int64(size) || !bytes.Equal(got.Sum(nil), sent.Sum(nil)) {
		t.Errorf("read %d bytes, %v; want those that were sent, at least %d", n, err, size)
	}
	if peak > most {
		t.Errorf("the heap grew by %d bytes, at most %d are allowed", peak, most)
	}
	if s := c.Stats(); s.Stored != 0 {
		t.Errorf("%+v, want nothing stored", s)
	}
	if a := total(t, c); a.Paid.Calls != 1 || a.Paid.OutputTokens == 0 {
		t.Errorf("ledger %+v, want the call and its tokens as paid", a)
	}
	if keys := rdb.Keys(t.Context(), "onceq:llm:*:t:*").Val(); len(keys) > 0 {
		t.Errorf("left in Redis: %v", keys)
	}
}

// raced reports whether the test runs with -race, which takes eight times as long.
func raced() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
