package wire

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nexuscore/onceq/internal/canonical"
)

func BenchmarkRecogniseAndKey(b *testing.B) {
	for _, size := range []int{1 << 10, 4 << 10, 100 << 10} {
		r := post(b, "https://api.openai.com/v1/chat/completions",
			`{"model":"gpt-4o","messages":[{"role":"user","content":"`+strings.Repeat("lorem <ipsum> ", size/14)+`"}],"temperature":0.2,"stream":true}`)
		b.Run(fmt.Sprintf("%dKB", size>>10), func(b *testing.B) {
			b.SetBytes(int64(len(r.Body)))
			b.ReportAllocs()
			for b.Loop() {
				c, _ := Recognise(r)
				h := canonical.NewHasher("bench")
				c.Fields(h, r)
				h.Sum()
			}
		})
	}
}

// BenchmarkScanEvent is what watching adds to one event of a stream.
func BenchmarkScanEvent(b *testing.B) {
	for _, bc := range []struct {
		name, media, event string
		api                API
	}{
		{"chat", eventStream, sse(chatText), OpenAIChat},
		{"anthropic", eventStream, named(textDelta), AnthropicMessages},
		{"gemini", "application/json", geminiText + ",", GeminiGenerate},
		{"bedrock", "application/vnd.amazon.eventstream", chunkFrames(textDelta), AnthropicMessages},
	} {
		b.Run(bc.name, func(b *testing.B) {
			s := NewScanner(streaming(bc.api, 1), 200, headerOf(bc.media), 0)
			if bc.media == "application/json" {
				_, _ = s.Write([]byte("["))
			}
			p := []byte(bc.event)
			b.SetBytes(int64(len(p)))
			b.ReportAllocs()
			for b.Loop() {
				_, _ = s.Write(p)
			}
		})
	}
}

func BenchmarkAssess(b *testing.B) {
	body := []byte(`{"model":"gpt-4o","choices":[{"index":0,"message":{"role":"assistant","content":"` + strings.Repeat("x", 4<<10) + `"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}`)
	c := streaming(OpenAIChat, 1)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		c.Assess(200, nil, body)
	}
}
