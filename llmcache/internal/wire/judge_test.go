package wire

import (
	"net/http"
	"strings"
	"testing"
)

// answers are whole answers, by the API that gives them.
var answers = []struct {
	name  string
	judge Judge
	body  string
	want  Outcome
}{
	{"chat", chatJudge{choices: 1}, `{"id":"c","object":"chat.completion","model":"gpt-4o","choices":[{"index":0,"message":{"role":"assistant","content":"Hi","refusal":null,"annotations":[]},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29,"prompt_tokens_details":{"cached_tokens":4}}}`, Outcome{Complete: true, Model: "gpt-4o", Usage: chatTokens}},
	{"chat, tool call", chatJudge{}, `{"choices":[{"message":{"content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"f","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}`, Outcome{Complete: true}},
	{"chat, content in parts", chatJudge{}, `{"choices":[{"message":{"content":[{"type":"text","text":"x"}]},"finish_reason":"stop"}]}`, Outcome{Complete: true}},
	{"chat, length", chatJudge{}, `{"choices":[{"message":{"content":"x"},"finish_reason":"length"}]}`, Outcome{Complete: true, Truncated: true}},
	{"chat, filtered", chatJudge{}, `{"choices":[{"message":{"content":""},"finish_reason":"content_filter"}]}`, Outcome{Complete: true, Refused: true}},
	{"chat, refusal", chatJudge{}, `{"choices":[{"message":{"content":null,"refusal":"no"},"finish_reason":"stop"}]}`, Outcome{Complete: true, Refused: true}},
	{"chat, empty", chatJudge{}, `{"choices":[{"message":{"content":""},"finish_reason":"stop"}]}`, Outcome{Complete: true, Empty: true}},
	{"chat, one of two empty", chatJudge{}, `{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop"},{"index":1,"message":{"content":""},"finish_reason":"stop"}]}`, Outcome{Complete: true, Empty: true}},
	{"chat, n ignored", chatJudge{choices: 3}, `{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}`, Outcome{Complete: true}},
	{"chat, no finish reason", chatJudge{}, `{"choices":[{"message":{"content":"x"}}]}`, Outcome{Reason: reasonNoFinish}},
	{"chat, one unfinished", chatJudge{}, `{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop"},{"index":1,"message":{"content":"x"},"finish_reason":null}]}`, Outcome{Reason: reasonNoFinish}},
	{"chat, no choices", chatJudge{}, `{"choices":[]}`, Outcome{Reason: reasonNoFinish}},
	{"chat, error in a 200", chatJudge{}, `{"error":{"message":"overloaded"},"choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}`, Outcome{Reason: reasonError}},
	{"chat, error as text", chatJudge{}, `{"error":"overloaded"}`, Outcome{Reason: reasonError}},
	{"chat, error null", chatJudge{}, `{"error":null,"choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}`, Outcome{Complete: true}},
	{"chat, finished by an error", chatJudge{}, `{"choices":[{"message":{"content":"x"},"finish_reason":"error"}]}`, Outcome{Reason: reasonError}},
	{"chat, no JSON", chatJudge{}, `<html>`, Outcome{Reason: reasonNotJSON}},
	{"chat, nothing", chatJudge{}, ``, Outcome{Reason: reasonNotJSON}},
	{"chat, other JSON", chatJudge{}, `[1]`, Outcome{Reason: reasonNoFinish}},
	{"chat, odd types", chatJudge{}, `{"model":7,"usage":{"prompt_tokens":"12","completion_tokens":3.0,"prompt_tokens_details":null},"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop"}]}`, Outcome{Complete: true, Usage: Usage{Known: true, Input: 12, Output: 3}}},
	{"completion", chatJudge{}, `{"object":"text_completion","choices":[{"text":"x","index":0,"finish_reason":"stop"}],"usage":{}}`, Outcome{Complete: true}},
	{"responses", responsesJudge{}, responseCompleted[strings.Index(responseCompleted, `{"id":"resp`) : len(responseCompleted)-1], Outcome{Complete: true, Model: "gpt-5-2025-08-07", Usage: Usage{Known: true, Input: 37, Output: 11, Cached: 5}}},
	{"responses, in progress", responsesJudge{}, `{"status":"in_progress","output":[{"type":"message","content":[{"text":"x"}]}]}`, Outcome{Reason: "status is not completed"}},
	{"responses, no status", responsesJudge{}, `{"output":[{"type":"message","content":[{"text":"x"}]}]}`, Outcome{Reason: "status is not completed"}},
	{"responses, failed", responsesJudge{}, `{"status":"failed","error":{"code":"server_error"},"output":[]}`, Outcome{Empty: true, Reason: reasonError}},
	{"responses, filtered", responsesJudge{}, `{"status":"incomplete","incomplete_details":{"reason":"content_filter"},"output":[]}`, Outcome{Complete: true, Refused: true}},
	{"responses, cut", responsesJudge{}, `{"status":"completed","output":[{"type":"mess`, Outcome{Reason: reasonNotJSON}},
	{"embeddings", embeddingJudge{inputs: 2}, `{"model":"e","data":[{"index":0,"embedding":[0.1]},{"index":1,"embedding":"AAAA"}],"usage":{"prompt_tokens":8,"total_tokens":8}}`, Outcome{Complete: true, Model: "e", Usage: Usage{Known: true, Input: 8}}},
	{"embeddings, one missing", embeddingJudge{inputs: 2}, `{"data":[{"embedding":[0.1]}]}`, Outcome{Reason: "fewer answers than were asked for"}},
	{"embeddings, one null", embeddingJudge{inputs: 2}, `{"data":[{"embedding":[0.1]},{"embedding":null}]}`, Outcome{Reason: "fewer answers than were asked for"}},
	{"embeddings, none", embeddingJudge{inputs: 1}, `{"data":[]}`, Outcome{Empty: true, Reason: reasonNoData}},
	{"images", imageJudge{images: 2}, `{"created":1,"data":[{"b64_json":"aGk="}],"usage":{"input_tokens":50,"output_tokens":60}}`, Outcome{Complete: true, Usage: Usage{Known: true, Input: 50, Output: 60}}},
	{"images by link", imageJudge{}, `{"data":[{"url":"https://x"}]}`, Outcome{Complete: true, Perishable: true}},
	{"images, none", imageJudge{}, `{"data":[]}`, Outcome{Empty: true, Reason: reasonNoData}},
	{"transcription", audioJudge{}, `{"text":"I see","usage":{"type":"duration","seconds":3}}`, Outcome{Complete: true}},
	{"transcription of silence", audioJudge{}, `{"text":""}`, Outcome{Complete: true, Empty: true}},
	{"transcription, error", audioJudge{}, `{"error":{"message":"x"}}`, Outcome{Reason: reasonError}},
	{"transcription as text", audioJudge{plain: true}, "I see\n", Outcome{Complete: true}},
	{"transcription as no text", audioJudge{plain: true}, "", Outcome{Complete: true, Empty: true}},
	{"transcription, text instead of JSON", audioJudge{}, "I see\n", Outcome{Reason: reasonNotJSON}},
	{"anthropic", anthropicJudge{}, `{"id":"msg_1","type":"message","role":"assistant","model":"claude","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"Hi"}],"stop_reason":"end_turn","usage":{"input_tokens":25,"cache_creation_input_tokens":7,"cache_read_input_tokens":100,"output_tokens":15}}`, Outcome{Complete: true, Model: "claude", Usage: anthropicTokens}},
	{"anthropic, tool", anthropicJudge{}, `{"type":"message","content":[{"type":"tool_use","id":"t","name":"f","input":{}}],"stop_reason":"tool_use"}`, Outcome{Complete: true}},
	{"anthropic, max_tokens", anthropicJudge{}, `{"type":"message","content":[{"type":"text","text":"Hi"}],"stop_reason":"max_tokens"}`, Outcome{Complete: true, Truncated: true}},
	{"anthropic, window full", anthropicJudge{}, `{"type":"message","content":[{"type":"text","text":"Hi"}],"stop_reason":"model_context_window_exceeded"}`, Outcome{Complete: true, Truncated: true}},
	{"anthropic, refusal", anthropicJudge{}, `{"type":"message","content":[],"stop_reason":"refusal"}`, Outcome{Complete: true, Refused: true}},
	{"anthropic, nothing said", anthropicJudge{}, `{"type":"message","content":[],"stop_reason":"end_turn"}`, Outcome{Complete: true, Empty: true}},
	{"anthropic, no stop reason", anthropicJudge{}, `{"type":"message","content":[{"type":"text","text":"Hi"}],"stop_reason":null}`, Outcome{Reason: reasonNoFinish}},
	{"anthropic, error", anthropicJudge{}, `{"type":"error","error":{"type":"overloaded_error","message":"x"}}`, Outcome{Empty: true, Reason: reasonError}},
	{"gemini", geminiJudge{}, geminiStop, Outcome{Complete: true, Model: "gemini-2.5-flash", Usage: geminiTokens}},
	{"gemini, enums as numbers", geminiJudge{}, `{"candidates":[{"content":{"parts":[{"text":"x"}]},"finishReason":1}]}`, Outcome{Complete: true}},
	{"gemini, an image", geminiJudge{}, `{"candidates":[{"content":{"parts":[{"inlineData":{"mimeType":"image/png","data":"aGk="}}]},"finishReason":"STOP"}]}`, Outcome{Complete: true}},
	{"gemini, recitation", geminiJudge{}, `{"candidates":[{"content":{},"finishReason":"RECITATION"}]}`, Outcome{Complete: true, Refused: true}},
	{"gemini, other", geminiJudge{}, `{"candidates":[{"content":{"parts":[{"text":"x"}]},"finishReason":"OTHER"}]}`, Outcome{Reason: "a candidate failed"}},
	{"gemini, unspecified", geminiJudge{}, `{"candidates":[{"content":{"parts":[{"text":"x"}]},"finishReason":0}]}`, Outcome{Reason: "a candidate failed"}},
	{"gemini, no finish reason", geminiJudge{}, geminiText, Outcome{Model: "gemini-2.5-flash", Usage: Usage{Known: true, Input: 8}, Reason: reasonNoFinish}},
	{"gemini, nothing", geminiJudge{}, `{}`, Outcome{Reason: reasonNoFinish}},
	{"gemini, error", geminiJudge{}, `{"error":{"code":400}}`, Outcome{Reason: reasonError}},
	{"gemini embedding", geminiEmbedJudge{inputs: 1}, `{"embedding":{"values":[0.1,0.2]}}`, Outcome{Complete: true}},
	{"gemini embeddings", geminiEmbedJudge{inputs: 2}, `{"embeddings":[{"values":[0.1]},{"values":[0.2]}]}`, Outcome{Complete: true}},
	{"gemini embeddings, one missing", geminiEmbedJudge{inputs: 2}, `{"embeddings":[{"values":[0.1]}]}`, Outcome{Reason: "fewer answers than were asked for"}},
	{"gemini predictions", geminiEmbedJudge{}, `{"predictions":[{"embeddings":{"values":[0.1]}}]}`, Outcome{Complete: true}},
	{"gemini, no predictions", geminiEmbedJudge{}, `{}`, Outcome{Empty: true, Reason: reasonNoData}},
	{"ollama", ollamaJudge{}, `{"model":"l","message":{"role":"assistant","content":"x"},"done":true,"done_reason":"stop","prompt_eval_count":26,"eval_count":5}`, Outcome{Complete: true, Model: "l", Usage: Usage{Known: true, Input: 26, Output: 5}}},
	{"ollama, tool", ollamaJudge{}, `{"message":{"content":"","tool_calls":[{"function":{"name":"f"}}]},"done":true}`, Outcome{Complete: true}},
	{"ollama, loaded", ollamaJudge{}, `{"response":"","done":true,"done_reason":"load"}`, Outcome{Complete: true, Empty: true}},
	{"ollama, not done", ollamaJudge{}, `{"response":"x","done":false}`, Outcome{Reason: reasonNoEnd}},
	{"ollama, error", ollamaJudge{}, `{"error":"model not found"}`, Outcome{Empty: true, Reason: reasonError}},
	{"ollama, error object", ollamaJudge{}, `{"response":"x","done":true,"error":{"code":1}}`, Outcome{Reason: reasonError}},
	{"ollama embed", ollamaEmbedJudge{inputs: 1}, `{"model":"e","embeddings":[[0.1]],"prompt_eval_count":8}`, Outcome{Complete: true, Model: "e", Usage: Usage{Known: true, Input: 8}}},
	{"ollama embeddings", ollamaEmbedJudge{inputs: 1}, `{"embedding":[0.1]}`, Outcome{Complete: true}},
	{"ollama embed, none", ollamaEmbedJudge{inputs: 1}, `{"embeddings":[]}`, Outcome{Empty: true, Reason: reasonNoData}},
}

func TestWholeAnswers(t *testing.T) {
	for _, tc := range answers {
		t.Run(tc.name, func(t *testing.T) {
			c := Call{Judge: tc.judge}
			if got := c.Assess(200, http.Header{}, []byte(tc.body)); got != tc.want {
				t.Errorf("got  %+v\nwant %+v", got, tc.want)
			}
			if got := scan(c, "application/json", 0, nil, strings.Split(tc.body, "")...); got != tc.want {
				t.Errorf("scanned %+v\nwant %+v", got, tc.want)
			}
			if _, plain := tc.judge.(audioJudge); plain && !strings.HasPrefix(tc.body, "{") {
				return
			}
			for cut := range len(tc.body) {
				if got := c.Assess(200, http.Header{}, []byte(tc.body[:cut])); got.Complete {
					t.Fatalf("cut after byte %d: complete", cut)
				}
			}
		})
	}
}

// TestWholeAnswerBeforeItsEnd: clients that decode JSON from the body close it
// before they have seen its end.
func TestWholeAnswerBeforeItsEnd(t *testing.T) {
	c := Call{Judge: chatJudge{}}
	body := `{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}`
	if got := scan(c, "application/json", 0, errOpen, body); !got.Complete {
		t.Errorf("%+v", got)
	}
	if got := scan(c, "application/json", 0, errOpen, body[:len(body)-1]); got.Complete {
		t.Errorf("%+v", got)
	}
	plain := Call{Judge: audioJudge{plain: true}}
	if got := scan(plain, "text/plain", 0, errOpen, "half a sen"); got.Complete {
		t.Errorf("%+v", got)
	}
	if got := scan(plain, "text/plain", 0, errCut, "half a sen"); got.Complete {
		t.Errorf("%+v", got)
	}
}

func TestAssessLooksAtStatusAndHeader(t *testing.T) {
	c := Call{Judge: chatJudge{}}
	body := []byte(`{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}`)
	for status, want := range map[int]bool{200: true, 201: true, 206: false, 204: true, 199: false, 301: false, 429: false, 500: false, 529: false} {
		if got := c.Assess(status, nil, body); got.Complete != want {
			t.Errorf("%d: %+v", status, got)
		}
	}
	if got := c.Assess(200, http.Header{"Content-Encoding": {"gzip"}}, body); got.Complete {
		t.Errorf("%+v", got)
	}
	if got := (Call{}).Assess(200, nil, body); got.Complete {
		t.Errorf("%+v", got)
	}
}

func TestWhyNot(t *testing.T) {
	for _, tc := range []struct {
		o                               Outcome
		run, shared, sharedWithRefusals string
	}{
		{Outcome{Complete: true}, "", "", ""},
		{Outcome{Reason: "r"}, "r", "r", "r"},
		{Outcome{Complete: true, Empty: true}, "empty", "empty", "empty"},
		{Outcome{Complete: true, Truncated: true}, "", "cut off by length", "cut off by length"},
		{Outcome{Complete: true, Perishable: true}, "", "holds links that expire", "holds links that expire"},
		{Outcome{Complete: true, Refused: true}, "refused", "refused", ""},
	} {
		got := [3]string{tc.o.WhyNot(false, false), tc.o.WhyNot(true, false), tc.o.WhyNot(true, true)}
		if want := [3]string{tc.run, tc.shared, tc.sharedWithRefusals}; got != want {
			t.Errorf("%+v: %q, want %q", tc.o, got, want)
		}
	}
}

func TestUnknownAPIHasNoJudge(t *testing.T) {
	if j := JudgeOf("soap", 1); j != nil {
		t.Errorf("%#v", j)
	}
}
