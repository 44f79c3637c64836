package wire

import (
	"bytes"
	"net/http"
	"net/url"
	"testing"

	"github.com/nexuscore/onceq/internal/canonical"
)

var fuzzAPIs = []API{OpenAIChat, OpenAIResponses, OpenAIEmbeddings, OpenAIImages, OpenAIAudio, AnthropicMessages, GeminiGenerate, GeminiEmbed, OllamaChat, OllamaEmbed}

var fuzzMedia = []string{eventStream, "application/json", "application/x-ndjson", "application/vnd.amazon.eventstream", "", "text/plain"}

// FuzzScanner: wherever a body is cut into pieces, the verdict is the same, and
// no byte of it is lost on the way.
func FuzzScanner(f *testing.F) {
	for _, s := range streams {
		for i, api := range fuzzAPIs {
			if api != s.call.API {
				continue
			}
			for j, media := range fuzzMedia {
				if media == s.media || media == "text/plain" {
					f.Add([]byte(s.body), byte(i), byte(j), uint16(7), uint16(100), uint16(0))
				}
			}
		}
	}
	for _, a := range answers {
		f.Add([]byte(a.body), byte(0), byte(1), uint16(3), uint16(9), uint16(40))
	}
	f.Add([]byte("data: [DONE]\r"), byte(0), byte(0), uint16(12), uint16(13), uint16(0))
	f.Add([]byte("\xef\xbb\xbf: x\r\n\r\rdata\ndata:\n\nevent: error\n\n"), byte(0), byte(0), uint16(1), uint16(2), uint16(8))
	f.Fuzz(func(t *testing.T, b []byte, api, media byte, first, second, limit uint16) {
		c := Call{API: fuzzAPIs[int(api)%len(fuzzAPIs)], Stream: media < 128}
		c.Judge = JudgeOf(c.API, int(api)/len(fuzzAPIs)%3)
		h := headerOf(fuzzMedia[int(media)%len(fuzzMedia)])
		run := func(pieces ...[]byte) (open, ended Outcome) {
			s := NewScanner(c, 200, h, int(limit))
			for _, p := range pieces {
				before := bytes.Clone(p)
				_, _ = s.Write(p)
				if !bytes.Equal(p, before) {
					t.Fatal("the scanner changed its input")
				}
			}
			open = s.Outcome()
			if again := s.Outcome(); again != open {
				t.Fatalf("asked twice: %+v, then %+v", open, again)
			}
			s.End(nil)
			return open, s.Outcome()
		}
		wantOpen, want := run(b)
		if want.Complete == (want.Reason != "") || wantOpen.Complete == (wantOpen.Reason != "") {
			t.Fatalf("complete with a reason, or neither: %+v %+v", wantOpen, want)
		}
		i := int(first) % (len(b) + 1)
		j := i + int(second)%(len(b)-i+1)
		if open, got := run(b[:i], b[i:j], b[j:]); got != want || open != wantOpen {
			t.Fatalf("cut at %d and %d: %+v %+v, whole: %+v %+v", i, j, open, got, wantOpen, want)
		}
		if len(b) < 4096 {
			var single [][]byte
			for k := range b {
				single = append(single, b[k:k+1])
			}
			if open, got := run(single...); got != want || open != wantOpen {
				t.Fatalf("byte by byte: %+v %+v, whole: %+v %+v", open, got, wantOpen, want)
			}
		}
	})
}

// FuzzRecognise: no request makes it panic, and a cacheable one has a key that
// depends neither on white space around its body nor on credentials.
func FuzzRecognise(f *testing.F) {
	for _, path := range []string{
		"/v1/chat/completions", "/v1/responses", "/v1/embeddings?key=1", "/v1/messages", "/model/m/invoke", "/api/chat", "/api/embed",
		"/v1beta/models/m:streamGenerateContent?alt=sse", "/models/m:batchEmbedContents", "/v1/audio/transcriptions", "/v1/threads/t/messages",
	} {
		f.Add(path, "application/json", []byte(`{"model":"m","messages":[{"role":"user","content":"x\"]"}],"input":["a","b"],"n":2,"tools":[{"type":"mcp"}]}`))
	}
	form := formRequest(f, transcriptions, "b1", audioParts()...)
	f.Add("/v1/audio/transcriptions", form.Header.Get("Content-Type"), form.Body)
	f.Add("/v1/chat/completions", "", []byte(`{"a":[],"b":{},"c":"\\","store":null}`))
	f.Fuzz(func(t *testing.T, path, media string, body []byte) {
		u, err := url.Parse("https://h.example" + path)
		if err != nil || u.Host != "h.example" {
			return
		}
		r := Request{Method: http.MethodPost, URL: u, Header: http.Header{"Content-Type": {media}}, Body: body}
		c, v := Recognise(r)
		if v.Cacheable == (v.Reason != "") {
			t.Fatalf("cacheable with a reason, or neither: %+v", v)
		}
		candidate, _ := Candidate(r.Method, u, r.Header)
		if v.Cacheable && !candidate {
			t.Fatal("cacheable, but no candidate")
		}
		if !v.Cacheable {
			return
		}
		if c.Judge == nil || c.Provider == "" || c.API == "" {
			t.Fatalf("cacheable, but half known: %+v", c)
		}
		key := func(r Request) [32]byte {
			c, v := Recognise(r)
			if !v.Cacheable {
				t.Fatalf("no longer cacheable: %+v", v)
			}
			h := canonical.NewHasher("fuzz")
			c.Fields(h, r)
			return h.Sum()
		}
		want := key(r)
		r.Header.Set("Authorization", "Bearer x")
		if c.body.kind == bodyJSON {
			r.Body = append([]byte("\n "), append(bytes.Clone(body), '\t')...)
		}
		if key(r) != want {
			t.Fatal("another key for the same call")
		}
	})
}
