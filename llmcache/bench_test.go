package llmcache

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nexuscore/onceq/internal/redistest"
)

// body is an answer of about size bytes that compresses as text does.
func answerOf(size int) string {
	words := strings.Fields("the a model answers with words that a person may read and some of them are long enough to matter here")
	r := rand.New(rand.NewPCG(1, 2))
	var b bytes.Buffer
	for b.Len() < size {
		_, _ = fmt.Fprintf(&b, "%s%d ", words[r.IntN(len(words))], r.IntN(50))
	}
	return fmt.Sprintf(`{"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":"stop"}]}`, b.String()[:size])
}

// BenchmarkHit compares a hit through the Transport, request and all, with a bare
// GET of the same bytes.
func BenchmarkHit(b *testing.B) {
	server := redistest.Real(b)
	rdb := server.Client()
	for _, kb := range []int{4, 64, 512} {
		answer := answerOf(kb << 10)
		name := fmt.Sprintf("%dKB", kb)
		b.Run("GET/"+name, func(b *testing.B) {
			if err := rdb.Set(b.Context(), "bench", answer, 0).Err(); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := rdb.Get(b.Context(), "bench").Bytes(); err != nil {
					b.Fatal(err)
				}
			}
		})
		for _, v := range []struct {
			name string
			opts []Option
		}{
			{"hit", nil},
			{"hit-uncompressed", []Option{WithCompressAbove(-1)}},
			{"hit-memory", []Option{WithMemory(64 << 20)}},
		} {
			b.Run(v.name+"/"+name, func(b *testing.B) {
				p := &provider{answer: func(int64, *http.Request, []byte) (*http.Response, error) { return jsonAnswer(200, answer), nil }}
				tr := open(b, rdb, append(v.opts, WithPrefix(fmt.Sprint("bench-", v.name, kb)))...).Transport(p)
				hit := func() {
					resp, err := tr.RoundTrip(ask(b, b.Context(), plainChat))
					if err != nil {
						b.Fatal(err)
					}
					if n, _ := io.Copy(io.Discard, resp.Body); n != int64(len(answer)) {
						b.Fatalf("%d bytes", n)
					}
				}
				hit()
				b.ReportAllocs()
				for b.Loop() {
					hit()
				}
				if p.calls.Load() > 1 {
					b.Fatalf("%d calls", p.calls.Load())
				}
			})
		}
	}
}

// BenchmarkFirstByte measures how long the first byte of a streamed miss takes,
// with and without the Transport, over local HTTP.
func BenchmarkFirstByte(b *testing.B) {
	server := redistest.Real(b)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, e := range events(1) {
			_, _ = io.WriteString(w, e.(string))
			w.(http.Flusher).Flush()
		}
	}))
	defer srv.Close()
	base := &http.Transport{MaxIdleConnsPerHost: 4}
	defer base.CloseIdleConnections()
	for name, rt := range map[string]http.RoundTripper{"bare": base, "transport": open(b, server.Client()).Transport(base)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			buf := make([]byte, 1)
			n := 0
			for b.Loop() {
				n++
				ctx := With(context.Background(), Tenant(fmt.Sprint(n)), Refresh())
				req, _ := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+"/v1/chat/completions", strings.NewReader(streamChat))
				req.Header.Set("Content-Type", "application/json")
				resp, err := rt.RoundTrip(req)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := resp.Body.Read(buf); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				b.StartTimer()
			}
		})
	}
}

// BenchmarkStreamedMiss is a whole streamed call, bare and through the Transport.
func BenchmarkStreamedMiss(b *testing.B) {
	server := redistest.Real(b)
	long := []any{}
	for range 500 {
		long = append(long, events(1)[1])
	}
	all := joined(append(long, events(1)...))
	p := &provider{}
	p.answer = func(_ int64, req *http.Request, _ []byte) (*http.Response, error) {
		return &http.Response{
			StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}},
			Body: io.NopCloser(strings.NewReader(all)), ContentLength: -1,
		}, nil
	}
	for name, rt := range map[string]http.RoundTripper{"bare": p, "transport": open(b, server.Client()).Transport(p)} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(all)))
			b.ReportAllocs()
			for b.Loop() {
				get(b, rt, ask(b, With(b.Context(), Refresh()), streamChat))
			}
		})
	}
}
