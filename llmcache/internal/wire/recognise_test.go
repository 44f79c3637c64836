package wire

import (
	"bytes"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"testing"
)

func post(t testing.TB, rawURL, body string, header ...string) Request {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	h := http.Header{"Content-Type": {"application/json"}}
	for i := 0; i < len(header); i += 2 {
		h.Add(header[i], header[i+1])
	}
	return Request{Method: http.MethodPost, URL: u, Header: h, Body: []byte(body)}
}

func TestRecognise(t *testing.T) {
	const messages = `"messages":[{"role":"user","content":"hi"}]`
	const google = "https://generativelanguage.googleapis.com/v1beta/models/"
	const vertex = "https://us-central1-aiplatform.googleapis.com/v1/projects/p/locations/us-central1/publishers/"
	for _, tc := range []struct {
		url, body string
		want      Call
	}{
		{"https://api.openai.com/v1/chat/completions", `{"model":"gpt-4o",` + messages + `}`, Call{Provider: "openai", API: OpenAIChat, Model: "gpt-4o"}},
		{"https://api.openai.com/v1/chat/completions", `{"stream":true,"store":false,"model":"gpt-4o",` + messages + `}`, Call{Provider: "openai", API: OpenAIChat, Model: "gpt-4o", Stream: true}},
		{"https://api.openai.com/v1/completions", `{"model":"i","prompt":"a"}`, Call{Provider: "openai", API: OpenAIChat, Model: "i"}},
		{"https://api.openai.com/v1/responses", `{"model":"gpt-5","input":"hi","previous_response_id":null,"background":false,"tools":[{"type":"web_search"},{"type":"code_interpreter","container":{"type":"auto"}}]}`, Call{Provider: "openai", API: OpenAIResponses, Model: "gpt-5"}},
		{"https://api.openai.com/v1/embeddings", `{"model":"e","input":["a","b"]}`, Call{Provider: "openai", API: OpenAIEmbeddings, Model: "e"}},
		{"https://api.openai.com/v1/images/generations", `{"model":"gpt-image-1","prompt":"a cat","stream":true}`, Call{Provider: "openai", API: OpenAIImages, Model: "gpt-image-1", Stream: true}},
		{"https://api.groq.com/openai/v1/chat/completions", `{"model":"llama-3.3",` + messages + `}`, Call{Provider: "openai", API: OpenAIChat, Model: "llama-3.3"}},
		{"http://localhost:8000/v1/chat/completions/", `{"model":"m",` + messages + `}`, Call{Provider: "openai", API: OpenAIChat, Model: "m"}},
		{"https://r.openai.azure.com/openai/deployments/my%20dep/chat/completions?api-version=2024-10-21", `{` + messages + `}`, Call{Provider: "azure", API: OpenAIChat, Model: "my dep"}},
		{"https://r.openai.azure.com/openai/responses?api-version=2025-04-01-preview", `{"model":"d","input":"x"}`, Call{Provider: "azure", API: OpenAIResponses, Model: "d"}},
		{"https://api.anthropic.com/v1/messages", `{"model":"claude","max_tokens":9,` + messages + `}`, Call{Provider: "anthropic", API: AnthropicMessages, Model: "claude"}},
		{"https://api.anthropic.com/v1/messages?beta=true", `{"model":"claude","max_tokens":9,"stream":true,` + messages + `}`, Call{Provider: "anthropic", API: AnthropicMessages, Model: "claude", Stream: true}},
		{"https://bedrock-runtime.us-east-1.amazonaws.com/model/us.anthropic.claude-sonnet-4-5-20250929-v1:0/invoke", `{"anthropic_version":"bedrock-2023-05-31","max_tokens":9,` + messages + `}`, Call{Provider: "bedrock", API: AnthropicMessages, Model: "us.anthropic.claude-sonnet-4-5-20250929-v1:0"}},
		{"https://bedrock-runtime.us-east-1.amazonaws.com/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Ainference-profile%2Fx/invoke-with-response-stream", `{"anthropic_version":"bedrock-2023-05-31"}`, Call{Provider: "bedrock", API: AnthropicMessages, Model: "arn:aws:bedrock:us-east-1:1:inference-profile/x", Stream: true}},
		{vertex + "anthropic/models/claude-sonnet-4-5@20250929:rawPredict", `{"anthropic_version":"vertex-2023-10-16"}`, Call{Provider: "vertex", API: AnthropicMessages, Model: "claude-sonnet-4-5@20250929"}},
		{vertex + "anthropic/models/claude-sonnet-4-5@20250929:streamRawPredict", `{"anthropic_version":"vertex-2023-10-16","stream":true}`, Call{Provider: "vertex", API: AnthropicMessages, Model: "claude-sonnet-4-5@20250929", Stream: true}},
		{vertex + "google/models/gemini-2.5-pro:generateContent", `{"contents":[]}`, Call{Provider: "vertex", API: GeminiGenerate, Model: "gemini-2.5-pro"}},
		{vertex + "google/models/text-embedding-005:predict", `{"instances":[{"content":"x"}]}`, Call{Provider: "vertex", API: GeminiEmbed, Model: "text-embedding-005"}},
		{google + "gemini-2.5-flash:generateContent?key=secret", `{"contents":[]}`, Call{Provider: "gemini", API: GeminiGenerate, Model: "gemini-2.5-flash"}},
		{google + "gemini-2.5-flash:streamGenerateContent?alt=sse", `{"contents":[]}`, Call{Provider: "gemini", API: GeminiGenerate, Model: "gemini-2.5-flash", Stream: true}},
		{google + "gemini-embedding-001:batchEmbedContents", `{"requests":[{},{}]}`, Call{Provider: "gemini", API: GeminiEmbed, Model: "gemini-embedding-001"}},
		{"http://localhost:11434/api/chat", `{"model":"llama3.2",` + messages + `}`, Call{Provider: "ollama", API: OllamaChat, Model: "llama3.2", Stream: true}},
		{"http://localhost:11434/api/generate", `{"model":"llama3.2","prompt":"x","stream":false}`, Call{Provider: "ollama", API: OllamaChat, Model: "llama3.2"}},
		{"http://localhost:11434/api/embed", `{"model":"e","input":["a"]}`, Call{Provider: "ollama", API: OllamaEmbed, Model: "e"}},
	} {
		r := post(t, tc.url, tc.body)
		got, v := Recognise(r)
		if !v.Cacheable || v.Reason != "" || got.Judge == nil {
			t.Errorf("%s: %+v, %+v", tc.url, v, got)
		}
		got.Judge, got.body = nil, body{}
		if !sameCall(got, tc.want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", tc.url, got, tc.want)
		}
		if ok, v := Candidate(r.Method, r.URL, r.Header); !ok || v.Reason != "" {
			t.Errorf("%s: no candidate: %+v", tc.url, v)
		}
	}
}

func sameCall(a, b Call) bool {
	return a.Provider == b.Provider && a.API == b.API && a.Model == b.Model && a.Stream == b.Stream
}

func TestPassThrough(t *testing.T) {
	const chat, responses = "https://api.openai.com/v1/chat/completions", "https://api.openai.com/v1/responses"
	for _, tc := range []struct {
		url, body string
		want      Reason
	}{
		{chat, `{"store":true}`, ReasonStored},
		{responses, `{"store":true,"input":"x"}`, ReasonStored},
		{responses, `{"previous_response_id":"resp_1"}`, ReasonContinued},
		{responses, `{"conversation":"conv_1"}`, ReasonConversation},
		{responses, `{"conversation":{"id":"conv_1"}}`, ReasonConversation},
		{responses, `{"background":true}`, ReasonBackground},
		{responses, `{"tools":[{"type":"web_search"},{"type":"mcp","server_url":"https://x"}]}`, ReasonSideEffects},
		{responses, `{"tools":[{"type":"code_interpreter","container":"cntr_1"}]}`, ReasonContainer},
		{responses, `{"input":"x","model":"a","model":"b"}`, ReasonMalformed},
		{responses, `{"store":true,"store":false}`, ReasonMalformed},
		{responses, `{"input":"x"} {"store":true}`, ReasonMalformed},
		{chat, `not json`, ReasonMalformed},
		{chat, `["an","array"]`, ReasonMalformed},
		{chat, ``, ReasonMalformed},
		{"https://api.openai.com/v1/files", `{}`, ReasonFiles},
		{"https://api.openai.com/v1/uploads/u/parts", `{}`, ReasonFiles},
		{"https://api.openai.com/v1/batches", `{}`, ReasonBatch},
		{"https://api.openai.com/v1/fine_tuning/jobs", `{}`, ReasonFineTuning},
		{"https://api.openai.com/v1/assistants", `{}`, ReasonAssistants},
		{"https://api.openai.com/v1/threads/t/messages", `{"role":"user","content":"x"}`, ReasonAssistants},
		{"https://api.openai.com/v1/threads/runs", `{}`, ReasonAssistants},
		{"https://api.openai.com/v1/realtime/sessions", `{}`, ReasonRealtime},
		{"https://api.openai.com/v1/conversations", `{}`, ReasonConversation},
		{responses + "/resp_1/cancel", `{}`, ReasonUnknown},
		{responses + "/input_tokens", `{}`, ReasonCounting},
		{"https://api.openai.com/v1/audio/speech", `{}`, ReasonUnknown},
		{"https://api.openai.com/v1/moderations", `{}`, ReasonUnknown},
		{"https://api.anthropic.com/v1/messages/batches", `{}`, ReasonBatch},
		{"https://api.anthropic.com/v1/messages/count_tokens", `{}`, ReasonCounting},
		{"https://api.anthropic.com/v1/messages", `{"container":"container_1"}`, ReasonContainer},
		{"https://api.anthropic.com/v1/messages", `{"mcp_servers":[{"type":"url"}]}`, ReasonSideEffects},
		{"https://b.amazonaws.com/model/amazon.titan-text/invoke", `{"inputText":"x"}`, ReasonUnjudged},
		{"https://b.amazonaws.com/model/m/converse", `{}`, ReasonUnknown},
		{"https://g.com/v1beta/models/m:countTokens", `{}`, ReasonCounting},
		{"https://g.com/v1beta/models/m:batchGenerateContent", `{}`, ReasonBatch},
		{"https://g.com/v1beta/models/m:predictLongRunning", `{}`, ReasonBatch},
		{"https://g.com/v1beta/cachedContents", `{}`, ReasonFiles},
		{"https://g.com/v1/projects/p/locations/l/publishers/anthropic/models/count-tokens:rawPredict", `{}`, ReasonUnknown},
		{"https://g.com/v1/projects/p/locations/l/publishers/mistralai/models/m:rawPredict", `{}`, ReasonUnknown},
		{"http://localhost:11434/api/generate", `{"model":"m","keep_alive":0}`, ReasonLoading},
		{"http://localhost:11434/api/chat", `{"model":"m","messages":[]}`, ReasonLoading},
		{"http://localhost:11434/api/pull", `{"model":"m"}`, ReasonUnknown},
		{"https://example.com/", `{}`, ReasonUnknown},
		{"", `{}`, ReasonUnknown},
	} {
		_, v := Recognise(post(t, tc.url, tc.body))
		if v.Cacheable || v.Reason != tc.want {
			t.Errorf("%s %s: %+v, want %s", tc.url, tc.body, v, tc.want)
		}
	}
}

func TestPassThroughByTheRest(t *testing.T) {
	const chat = "https://api.openai.com/v1/chat/completions"
	get := post(t, chat, "")
	get.Method = http.MethodGet
	large := post(t, chat, "")
	large.Body = make([]byte, MaxBody+1)
	form := post(t, chat, "a=b")
	form.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	parts := post(t, chat, "--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nx\r\n--b--\r\n")
	parts.Header.Set("Content-Type", "multipart/form-data; boundary=b")
	broken := post(t, "https://api.openai.com/v1/audio/transcriptions", "--b\r\nContent-Disp")
	broken.Header.Set("Content-Type", "multipart/form-data; boundary=b")
	unbounded := post(t, "https://api.openai.com/v1/audio/transcriptions", "")
	unbounded.Header.Set("Content-Type", "multipart/form-data")
	for _, tc := range []struct {
		r    Request
		want Reason
	}{
		{get, ReasonMethod},
		{large, ReasonTooLarge},
		{form, ReasonMalformed},
		{parts, ReasonMalformed},
		{broken, ReasonMalformed},
		{unbounded, ReasonMalformed},
		{post(t, chat, "{}", "Content-Encoding", "gzip"), ReasonEncoding},
		{post(t, chat, "{}", "Upgrade", "websocket"), ReasonRealtime},
		{Request{Method: http.MethodPost}, ReasonUnknown},
	} {
		if _, v := Recognise(tc.r); v.Cacheable || v.Reason != tc.want {
			t.Errorf("%s %v: %+v, want %s", tc.r.Method, tc.r.Header, v, tc.want)
		}
	}
	if ok, v := Candidate(http.MethodGet, get.URL, get.Header); ok || v.Reason != ReasonMethod {
		t.Errorf("Candidate: %v %+v", ok, v)
	}
	if ok, _ := Candidate(http.MethodPost, nil, nil); ok {
		t.Error("a request without a URL is a candidate")
	}
}

func TestExpectedAnswers(t *testing.T) {
	for _, tc := range []struct {
		url, body string
		want      Judge
	}{
		{"/v1/chat/completions", `{"n":3}`, chatJudge{choices: 3}},
		{"/v1/chat/completions", `{"n":null}`, chatJudge{choices: 1}},
		{"/v1/completions", `{"n":2,"prompt":["a","b","c"]}`, chatJudge{choices: 6}},
		{"/v1/completions", `{"prompt":[1,2,3]}`, chatJudge{choices: 1}},
		{"/v1/completions", `{"prompt":[[1,2],[3]]}`, chatJudge{choices: 2}},
		{"/v1/embeddings", `{"input":"a"}`, embeddingJudge{inputs: 1}},
		{"/v1/embeddings", `{"input":["a,b]","\"]","c"]}`, embeddingJudge{inputs: 3}},
		{"/v1/embeddings", `{"input":[1,2]}`, embeddingJudge{inputs: 1}},
		{"/models/m:generateContent", `{"generationConfig":{"candidateCount":4}}`, geminiJudge{candidates: 4}},
		{"/models/m:batchEmbedContents", `{"requests":[{"content":{}},{"content":{}}]}`, geminiEmbedJudge{inputs: 2}},
		{"/models/m:predict", `{"instances":[{},{}]}`, geminiEmbedJudge{}},
		{"/api/embed", `{"input":["a","b"]}`, ollamaEmbedJudge{inputs: 2}},
		{"/v1/images/generations", `{"n":2}`, imageJudge{images: 2}},
	} {
		c, v := Recognise(post(t, "http://h"+tc.url, tc.body))
		if !v.Cacheable || c.Judge != tc.want {
			t.Errorf("%s %s: %#v, want %#v", tc.url, tc.body, c.Judge, tc.want)
		}
	}
}

type formPart struct{ name, filename, media, data string }

// formRequest is a multipart upload with a boundary of its own.
func formRequest(t testing.TB, rawURL, boundary string, parts ...formPart) Request {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	if err := w.SetBoundary(boundary); err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		h := textproto.MIMEHeader{}
		d := `form-data; name="` + p.name + `"`
		if p.filename != "" {
			d += `; filename="` + p.filename + `"`
		}
		h.Set("Content-Disposition", d)
		if p.media != "" {
			h.Set("Content-Type", p.media)
		}
		pw, err := w.CreatePart(h)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = pw.Write([]byte(p.data))
	}
	_ = w.Close()
	r := post(t, rawURL, b.String())
	r.Header.Set("Content-Type", w.FormDataContentType())
	return r
}

func audioParts(more ...formPart) []formPart {
	return append([]formPart{
		{"file", "speech.mp3", "audio/mpeg", "\xff\xfb\x90\r\n--no boundary"},
		{"model", "", "", "whisper-1"},
	}, more...)
}

const transcriptions = "https://api.openai.com/v1/audio/transcriptions"

func TestRecogniseForms(t *testing.T) {
	for _, tc := range []struct {
		format string
		want   Judge
	}{
		{"", audioJudge{}}, {"json", audioJudge{}}, {"verbose_json", audioJudge{}},
		{"text", audioJudge{plain: true}}, {"srt", audioJudge{plain: true}}, {"vtt", audioJudge{plain: true}},
	} {
		c, v := Recognise(formRequest(t, transcriptions, "b1", audioParts(formPart{name: "response_format", data: tc.format})...))
		if !v.Cacheable || c.Judge != tc.want || c.Model != "whisper-1" || c.Stream || c.API != OpenAIAudio {
			t.Errorf("%q: %+v %+v", tc.format, c, v)
		}
	}
	c, _ := Recognise(formRequest(t, transcriptions, "b1", audioParts(formPart{name: "stream", data: "true"})...))
	if !c.Stream {
		t.Error("stream=true in a form is not seen")
	}
	c, v := Recognise(formRequest(t, "https://api.openai.com/v1/images/edits", "b1", formPart{"image", "a.png", "image/png", "x"}, formPart{name: "n", data: "2"}))
	if !v.Cacheable || c.Judge != (imageJudge{images: 2}) {
		t.Errorf("%+v %+v", c, v)
	}
	many := make([]formPart, maxParts+1)
	if _, v := Recognise(formRequest(t, transcriptions, "b1", many...)); v.Reason != ReasonMalformed {
		t.Errorf("%d parts: %+v", len(many), v)
	}
}

type ocr struct{ ownJudge bool }

func (ocr) Match(_ string, u *url.URL, _ http.Header) bool { return strings.HasSuffix(u.Path, "/ocr") }

func (o ocr) Recognise(Request) (Call, Verdict) {
	c := Call{Provider: "ocr", Model: "m"}
	if o.ownJudge {
		c.Judge = audioJudge{plain: true}
	}
	return c, Verdict{Cacheable: true}
}

func TestHostProviders(t *testing.T) {
	r := post(t, "http://h/ocr", `{"b":1, "a":2}`)
	if _, v := Recognise(r); v.Cacheable {
		t.Error("an unknown path is cacheable")
	}
	c, v := Recognise(r, ocr{ownJudge: true})
	if !v.Cacheable || c.Provider != "ocr" || string(c.body.bytes) != `{"a":2,"b":1}` {
		t.Errorf("%+v %+v", c, v)
	}
	if _, v := Recognise(r, ocr{}); v.Cacheable || v.Reason != ReasonUnjudged {
		t.Errorf("without a judge: %+v", v)
	}
	r.Body = []byte(`{`)
	if _, v := Recognise(r, ocr{ownJudge: true}); v.Cacheable || v.Reason != ReasonMalformed {
		t.Errorf("damaged body: %+v", v)
	}
	if ok, _ := Candidate(r.Method, r.URL, r.Header, ocr{}); !ok {
		t.Error("no candidate")
	}
	acme := Compatible("acme", "/llm/generate", OpenAIChat)
	c, v = Recognise(post(t, "http://h/llm/generate", `{"model":"m","n":2}`), acme)
	if !v.Cacheable || c.Provider != "acme" || c.Model != "m" || c.Judge != (chatJudge{choices: 2}) {
		t.Errorf("%+v %+v", c, v)
	}
	if _, v = Recognise(post(t, "http://h/llm/generate", `{"store":true}`), acme); v.Reason != ReasonStored {
		t.Errorf("%+v", v)
	}
	if _, v = Recognise(post(t, "http://h/llm/generate", `{`), acme); v.Reason != ReasonMalformed {
		t.Errorf("%+v", v)
	}
}
