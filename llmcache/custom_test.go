package llmcache

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/nexuscore/onceq/internal/logtest"
	"github.com/nexuscore/onceq/internal/redistest"
)

// custom is a provider with a form of its own: {"text", "done", "in", "out"} in one
// piece or as lines.
type custom struct{ call ProviderCall }

func (*custom) Match(method string, u *url.URL, _ http.Header) bool {
	return method == http.MethodPost && u.Path == "/custom"
}

func (p *custom) Recognise(r ProviderRequest) (ProviderCall, bool) {
	return p.call, r.Method == http.MethodPost && r.URL.Host == "custom" && r.Header.Get("X-Keep") == "" && string(r.Body) != "delete"
}

type customJudge struct{}

type customAnswer struct {
	Text    string
	Done    bool
	In, Out int64
}

func (customJudge) Whole(body []byte) Judgement {
	var a customAnswer
	if json.Unmarshal(body, &a) != nil {
		return Judgement{}
	}
	return Judgement{
		Complete: a.Done, Truncated: a.Text == "cut", Refused: a.Text == "no", Empty: a.Text == "", Perishable: a.Text == "link",
		Model: "custom-2026", Usage: Usage{InputTokens: a.In, OutputTokens: a.Out},
	}
}

func (customJudge) Stream() StreamJudge { return &customStream{} }

type customStream struct{ last Judgement }

func (s *customStream) Event(_ string, data []byte) { s.last = customJudge{}.Whole(data) }
func (s *customStream) Judgement(bool) Judgement    { return s.last }

func TestProvider(t *testing.T) {
	t.Parallel()
	const whole = `{"text":"hi","done":true,"in":10,"out":5}`
	for name, c := range map[string]struct {
		call    ProviderCall
		answers []string // lines when there are several
		body    string
		header  http.Header
		want    int64 // calls of two requests
	}{
		"its own judge":                       {call: ProviderCall{Judge: customJudge{}}, answers: []string{whole}, want: 1},
		"its own judge, a stream":             {call: ProviderCall{Judge: customJudge{}}, answers: []string{`{"text":"h"}`, whole}, want: 1},
		"its own judge, a stream that is cut": {call: ProviderCall{Judge: customJudge{}}, answers: []string{whole, `{"text":"h"}`}, want: 2},
		"not complete":                        {call: ProviderCall{Judge: customJudge{}}, answers: []string{`{"text":"hi"}`}, want: 2},
		"no answer at all":                    {call: ProviderCall{Judge: customJudge{}}, answers: []string{`no`}, want: 2},
		"empty":                               {call: ProviderCall{Judge: customJudge{}}, answers: []string{`{"done":true}`}, want: 2},
		"refused":                             {call: ProviderCall{Judge: customJudge{}}, answers: []string{`{"text":"no","done":true}`}, want: 2},
		"truncated, shared":                   {call: ProviderCall{Judge: customJudge{}}, answers: []string{`{"text":"cut","done":true}`}, want: 2},
		"perishable, shared":                  {call: ProviderCall{Judge: customJudge{}}, answers: []string{`{"text":"link","done":true}`}, want: 2},
		"a built-in judge":                    {call: ProviderCall{API: OpenAIChat}, answers: []string{chat(1)}, want: 1},
		"a built-in judge, no such answer":    {call: ProviderCall{API: OpenAIChat}, answers: []string{whole}, want: 2},
		"a nil judge in an interface":         {call: ProviderCall{API: OpenAIChat, Judge: (*customJudge)(nil)}, answers: []string{chat(1)}, want: 1},
		"nobody judges":                       {answers: []string{whole}, want: 2},
		"declined by header":                  {call: ProviderCall{Judge: customJudge{}}, answers: []string{whole}, header: http.Header{"X-Keep": {"1"}}, want: 2},
		"declined by body":                    {call: ProviderCall{Judge: customJudge{}}, answers: []string{whole}, body: "delete", want: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, rdb := redistest.Mini(t)
			var log logtest.Log
			cache := open(t, rdb, WithLogger(log.Logger()))
			p := &provider{}
			p.answer = func(_ int64, req *http.Request, _ []byte) (*http.Response, error) {
				if len(c.answers) == 1 {
					return jsonAnswer(200, c.answers[0]), nil
				}
				var parts []any
				for _, a := range c.answers {
					parts = append(parts, a+"\n")
				}
				resp := p.streamAnswer(req, parts...)
				resp.Header.Set("Content-Type", "application/x-ndjson")
				return resp, nil
			}
			tr := transport(t, cache, p, WithProvider(&custom{c.call}))
			var got []string
			for range 2 {
				body := c.body
				if body == "" {
					body = `{"ask":1}`
				}
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://custom/custom", strings.NewReader(body))
				req.Header = c.header.Clone()
				if req.Header == nil {
					req.Header = http.Header{}
				}
				req.Header.Set("Content-Type", "application/json")
				_, pieces := get(t, tr, req)
				got = append(got, strings.Join(pieces, ""))
			}
			if p.calls.Load() != c.want || got[0] != got[1] {
				t.Errorf("%d calls, want %d; %q", p.calls.Load(), c.want, got)
			}
			if warned := strings.Count(log.String(), "nobody can judge their answers"); warned > 1 || (warned == 1) != (name == "nobody judges") {
				t.Errorf("log: %s", log.String())
			}
		})
	}
}

// What a host's judge says of tokens is in the ledger, at the price of its model.
func TestProviderInTheLedger(t *testing.T) {
	t.Parallel()
	c := open(t, nil, WithStore(NewMemoryStore()), WithPrices(Prices{"custom-2026": {Input: 1_000_000, Output: 2_000_000}}))
	p := &provider{answer: func(int64, *http.Request, []byte) (*http.Response, error) {
		return jsonAnswer(200, `{"text":"hi","done":true,"in":10,"out":5}`), nil
	}}
	tr := transport(t, c, p, WithProvider(&custom{ProviderCall{Judge: customJudge{}}}))
	for range 2 {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://custom/custom", bytes.NewReader([]byte(`{}`)))
		req.Header.Set("Content-Type", "application/json")
		get(t, tr, req)
	}
	sum := Sum{Calls: 1, InputTokens: 10, OutputTokens: 5, CostMicros: 20}
	same(t, "total", total(t, c), Account{Paid: sum, Saved: sum})
}
