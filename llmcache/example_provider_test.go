package llmcache_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"

	"github.com/nexuscore/onceq/llmcache"
)

// post sends a body and says what came back, and whether it was replayed.
func post(client *http.Client, url, body string) {
	resp, err := client.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(resp.Body)
	fmt.Println(string(answer), "replayed:", resp.Header.Get(llmcache.ReplayedHeader) == "1")
}

// A gateway that speaks OpenAI's chat completions at a path of its own.
func ExampleWithCompatible() {
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"choices":[{"index":0,"message":{"content":"hello"},"finish_reason":"stop"}]}`)
	}))
	defer gateway.Close()
	transport, err := newCache().NewTransport(nil, llmcache.WithCompatible("/gateway/ask", llmcache.OpenAIChat))
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: transport}
	for range 2 {
		post(client, gateway.URL+"/gateway/ask", `{"model":"gpt-x","messages":[{"role":"user","content":"hi"}]}`)
	}
	// Output:
	// {"choices":[{"index":0,"message":{"content":"hello"},"finish_reason":"stop"}]} replayed: false
	// {"choices":[{"index":0,"message":{"content":"hello"},"finish_reason":"stop"}]} replayed: true
}

// translator is an API that is not built in: POST /translate, answered by
// {"text", "finished", "tokens"} in one piece.
type translator struct{}

func (translator) Match(method string, u *url.URL, _ http.Header) bool {
	return method == http.MethodPost && u.Path == "/translate"
}

func (translator) Recognise(r llmcache.ProviderRequest) (llmcache.ProviderCall, bool) {
	var q struct {
		Model    string
		Remember bool // the server keeps it: more than an answer
	}
	if json.Unmarshal(r.Body, &q) != nil || q.Remember {
		return llmcache.ProviderCall{}, false
	}
	return llmcache.ProviderCall{Model: q.Model, Judge: translation{}}, true
}

type translation struct{}

func (translation) Whole(body []byte) llmcache.Judgement {
	var a struct {
		Text     string
		Finished bool
		Tokens   int64
	}
	if json.Unmarshal(body, &a) != nil {
		return llmcache.Judgement{} // not complete
	}
	return llmcache.Judgement{Complete: a.Finished, Empty: a.Text == "", Usage: llmcache.Usage{OutputTokens: a.Tokens}}
}

func (translation) Stream() llmcache.StreamJudge { return never{} }

// never judges streams, which this API does not have: none is complete.
type never struct{}

func (never) Event(string, []byte)              {}
func (never) Judgement(bool) llmcache.Judgement { return llmcache.Judgement{} }

func ExampleWithProvider() {
	calls := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls++
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"text":"bonjour %d","finished":%v,"tokens":2}`, calls, calls > 1)
	}))
	defer server.Close()
	transport, err := newCache().NewTransport(nil, llmcache.WithProvider(translator{}))
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: transport}
	for range 3 {
		post(client, server.URL+"/translate", `{"model":"fr","q":"hello"}`)
	}
	post(client, server.URL+"/translate", `{"model":"fr","q":"hello","remember":true}`)
	// Output:
	// {"text":"bonjour 1","finished":false,"tokens":2} replayed: false
	// {"text":"bonjour 2","finished":true,"tokens":2} replayed: false
	// {"text":"bonjour 2","finished":true,"tokens":2} replayed: true
	// {"text":"bonjour 3","finished":true,"tokens":2} replayed: false
}
