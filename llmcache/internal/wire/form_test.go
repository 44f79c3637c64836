package wire

import (
	"net/http"
	"strings"
	"testing"

	"github.com/nexuscore/onceq/internal/canonical"
)

// recorder shows the fields one a line.
type recorder struct{ strings.Builder }

func (r *recorder) Write(p []byte)       { r.Builder.WriteString(string(p) + "\n") }
func (r *recorder) WriteString(s string) { r.Builder.WriteString(s + "\n") }
func keyOf(t testing.TB, r Request, headers ...string) [32]byte {
	t.Helper()
	c, v := Recognise(r)
	if !v.Cacheable {
		t.Fatalf("%s: %+v", r.URL, v)
	}
	h := canonical.NewHasher("test")
	c.Fields(h, r, headers...)
	return h.Sum()
}

// TestGoldenFields: a changed form makes every stored answer unreachable.
func TestGoldenFields(t *testing.T) {
	json := post(t, "https://R.OpenAI.Azure.com:443/openai/deployments/d/chat/completions?b=2&api-version=2024-10-21&a=x&a=w&api-key=SECRET",
		`{ "stream" : true, "messages" : [ {"role":"user","content":"\u00e9<&>"} ], "temperature": 1.0 }`,
		"Authorization", "Bearer SECRET", "Api-Key", "SECRET", "OpenAI-Organization", "org", "X-Stainless-Retry-Count", "2", "Accept", "application/json")
	form := formRequest(t, "http://localhost:8080/v1/audio/transcriptions", "b1", audioParts()...)
	raw := post(t, "http://h/ocr", "plain")
	raw.Header.Set("Content-Type", `text/plain; Charset="utf-8"`)
	for _, tc := range []struct {
		r    Request
		want []string
	}{
		{json, []string{
			"POST", "r.openai.azure.com", "/openai/deployments/d/chat/completions",
			"3", "a", "2", "x", "w", "api-version", "1", "2024-10-21", "b", "1", "2",
			"2", "Accept", "1", "application/json", "Openai-Organization", "1", "org",
			"json", `{"messages":[{"content":"é<&>","role":"user"}],"stream":true,"temperature":1}`,
		}},
		{form, []string{
			"POST", "localhost:8080", "/v1/audio/transcriptions", "0", "0",
			"multipart", "2", "file", "speech.mp3", "audio/mpeg", "\xff\xfb\x90\r\n--no boundary", "model", "", "", "whisper-1",
		}},
		{raw, []string{"POST", "h", "/ocr", "0", "0", "raw", "text/plain; charset=utf-8", "plain"}},
	} {
		c, v := Recognise(tc.r, ocr{ownJudge: true})
		if !v.Cacheable {
			t.Fatalf("%+v", v)
		}
		var got recorder
		c.Fields(&got, tc.r)
		if want := strings.Join(tc.want, "\n") + "\n"; got.String() != want {
			t.Errorf("got\n%s\nwant\n%s", got.String(), want)
		}
	}
}

func TestWhatDoesNotChangeTheKey(t *testing.T) {
	const u = "https://api.openai.com/v1/chat/completions"
	base := func() Request {
		return post(t, u, `{"model":"m","messages":[{"role":"user","content":"hi"}],"temperature":0.5}`)
	}
	want := keyOf(t, base())
	for name, change := range map[string]func(*Request){
		"order and white space": func(r *Request) {
			r.Body = []byte("{ \"temperature\":5e-1,\n\"messages\":[{\"content\":\"hi\",\"role\":\"user\"}],\"model\":\"m\"}")
		},
		"credentials": func(r *Request) {
			r.Header.Set("Authorization", "Bearer other")
			r.Header.Set("X-Api-Key", "k")
			r.Header.Set("Api-Key", "k")
			r.Header.Set("X-Goog-Api-Key", "k")
			r.URL.RawQuery = "key=k&X-Amz-Signature=s&X-Amz-Date=d"
		},
		"retries, traces, signatures": func(r *Request) {
			for _, h := range []string{
				"X-Stainless-Retry-Count", "X-Stainless-Timeout", "X-Server-Timeout", "Traceparent", "Tracestate", "Baggage",
				"Idempotency-Key", "X-Amz-Date", "X-Amz-Security-Token", "User-Agent", "X-Request-Id", "Accept-Encoding", "Content-Length",
			} {
				r.Header.Set(h, "1")
			}
		},
		"media type parameters":   func(r *Request) { r.Header.Set("Content-Type", "application/json; charset=utf-8") },
		"scheme and default port": func(r *Request) { r.URL.Scheme, r.URL.Host = "http", "API.openai.com:80" },
		"no media type":           func(r *Request) { r.Header.Del("Content-Type") },
	} {
		r := base()
		change(&r)
		if keyOf(t, r) != want {
			t.Errorf("%s changes the key", name)
		}
	}
	beta := func(values ...string) [32]byte {
		r := post(t, "https://api.anthropic.com/v1/messages", `{"model":"m"}`)
		r.Header["Anthropic-Beta"] = values
		return keyOf(t, r)
	}
	if beta("a,b") != beta("b", "a") || beta("a, b,a") != beta("b,a") {
		t.Error("the order of beta features changes the key")
	}
	if beta("a") == beta("a,b") || beta("a,b") == beta("ab") {
		t.Error("different beta features have one key")
	}
}

func TestWhatChangesTheKey(t *testing.T) {
	const u = "https://api.openai.com/v1/chat/completions"
	seen := map[[32]byte]string{}
	add := func(name string, r Request, headers ...string) {
		t.Helper()
		k := keyOf(t, r, headers...)
		if other, ok := seen[k]; ok {
			t.Errorf("%s has the key of %s", name, other)
		}
		seen[k] = name
	}
	add("base", post(t, u, `{"model":"m","input":"x"}`))
	add("max_tokens 16", post(t, u, `{"model":"m","input":"x","max_tokens":16}`))
	add("max_tokens 4000", post(t, u, `{"model":"m","input":"x","max_tokens":4000}`))
	add("stream", post(t, u, `{"model":"m","input":"x","stream":true}`))
	add("an unknown field", post(t, u, `{"model":"m","input":"x","zzz":1}`))
	add("the unknown field differs", post(t, u, `{"model":"m","input":"x","zzz":9007199254740993}`))
	add("by one", post(t, u, `{"model":"m","input":"x","zzz":9007199254740992}`))
	add("case", post(t, u, `{"model":"m","Input":"x"}`))
	add("path", post(t, "https://api.openai.com/v1/responses", `{"model":"m","input":"x"}`))
	add("instructions", post(t, "https://api.openai.com/v1/responses", `{"model":"m","input":"x","instructions":"a"}`))
	add("host", post(t, "https://api.other.com/v1/chat/completions", `{"model":"m","input":"x"}`))
	add("port", post(t, "https://api.openai.com:8443/v1/chat/completions", `{"model":"m","input":"x"}`))
	add("query", post(t, u+"?api-version=1", `{"model":"m","input":"x"}`))
	add("query value", post(t, u+"?api-version=2", `{"model":"m","input":"x"}`))
	add("query twice", post(t, u+"?api-version=1&api-version=2", `{"model":"m","input":"x"}`))
	add("query cannot be read", post(t, u+"?api-version=%zz", `{"model":"m","input":"x"}`))
	add("organization", post(t, u, `{"model":"m","input":"x"}`, "OpenAI-Organization", "o"))
	add("project", post(t, u, `{"model":"m","input":"x"}`, "OpenAI-Project", "o"))
	add("a header of the host's", post(t, u, `{"model":"m","input":"x"}`, "X-Portkey-Config", "o"), "x-portkey-config")
	add("anthropic", post(t, "https://api.anthropic.com/v1/messages", `{"model":"m"}`))
	add("anthropic version", post(t, "https://api.anthropic.com/v1/messages", `{"model":"m"}`, "Anthropic-Version", "2023-06-01"))
	add("another version", post(t, "https://api.anthropic.com/v1/messages", `{"model":"m"}`, "Anthropic-Version", "2024-01-01"))
	add("system", post(t, "https://api.anthropic.com/v1/messages", `{"model":"m","system":"s"}`))
	add("escaped slash", post(t, "https://b/model/a%2Fb/invoke", `{"anthropic_version":"bedrock-2023-05-31"}`))
	add("its stream", post(t, "https://b/model/a%2Fb/invoke-with-response-stream", `{"anthropic_version":"bedrock-2023-05-31"}`))
	add("alt", post(t, "https://g/v1/models/m:streamGenerateContent?alt=sse", `{}`))
	add("no alt", post(t, "https://g/v1/models/m:streamGenerateContent", `{}`))
}

func TestMultipartKeys(t *testing.T) {
	base := keyOf(t, formRequest(t, transcriptions, "boundary-1", audioParts()...))
	if keyOf(t, formRequest(t, transcriptions, "boundary-2", audioParts()...)) != base {
		t.Error("the boundary changes the key")
	}
	swapped := audioParts()
	swapped[0], swapped[1] = swapped[1], swapped[0]
	if keyOf(t, formRequest(t, transcriptions, "b", swapped...)) != base {
		t.Error("the order of fields changes the key")
	}
	for name, change := range map[string]func(p []formPart){
		"bytes":    func(p []formPart) { p[0].data += "\n" },
		"filename": func(p []formPart) { p[0].filename = "speech.wav" },
		"type":     func(p []formPart) { p[0].media = "audio/wav" },
		"name":     func(p []formPart) { p[1].name = "language" },
		"field":    func(p []formPart) { p[1].data = "gpt-4o-transcribe" },
	} {
		p := audioParts()
		change(p)
		if keyOf(t, formRequest(t, transcriptions, "b", p...)) == base {
			t.Errorf("the %s does not change the key", name)
		}
	}
	one := keyOf(t, formRequest(t, transcriptions, "b", formPart{name: "x[]", data: "1"}, formPart{name: "x[]", data: "2"}))
	two := keyOf(t, formRequest(t, transcriptions, "b", formPart{name: "x[]", data: "2"}, formPart{name: "x[]", data: "1"}))
	if one == two {
		t.Error("the order of the values of one field does not change the key")
	}
}

func TestCredential(t *testing.T) {
	for _, tc := range []struct {
		query string
		h     http.Header
		want  string
	}{
		{"", http.Header{"Authorization": {"Bearer sk-1"}}, "Bearer sk-1"},
		{"", http.Header{"X-Api-Key": {"sk-ant"}}, "sk-ant"},
		{"", http.Header{"Api-Key": {"azure"}}, "azure"},
		{"", http.Header{"X-Goog-Api-Key": {"AIza"}}, "AIza"},
		{"key=AIza", http.Header{}, "AIza"},
		{"", http.Header{"Authorization": {"AWS4-HMAC-SHA256 Credential=AKIA1/20250101/us-east-1/bedrock/aws4_request, SignedHeaders=host, Signature=abc"}}, "aws AKIA1"},
		{"alt=sse", http.Header{}, ""},
	} {
		r := post(t, "https://h/?"+tc.query, "")
		if got := Credential(r.URL, tc.h); got != tc.want {
			t.Errorf("%v %v: %q, want %q", tc.query, tc.h, got, tc.want)
		}
	}
	if got := Credential(nil, nil); got != "" {
		t.Errorf("%q", got)
	}
}
