package wire

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"testing"
)

func headerOf(media string) http.Header {
	h := http.Header{}
	if media != "" {
		h.Set("Content-Type", media)
	}
	return h
}

// scan writes the pieces and says that the body ended, unless err is errOpen.
func scan(c Call, media string, limit int, err error, pieces ...string) Outcome {
	s := NewScanner(c, 200, headerOf(media), limit)
	for _, p := range pieces {
		if n, err := s.Write([]byte(p)); n != len(p) || err != nil {
			panic("a scanner that does not take what it is given")
		}
	}
	if err != errOpen {
		s.End(err)
	}
	return s.Outcome()
}

var (
	errOpen = errors.New("the body is still open")
	errCut  = errors.New("unexpected EOF")
)

func TestCompleteStreams(t *testing.T) {
	for _, s := range streams {
		t.Run(s.name, func(t *testing.T) {
			if got := scan(s.call, s.media, 0, nil, s.body); got != s.want {
				t.Errorf("got  %+v\nwant %+v", got, s.want)
			}
		})
	}
}

// TestStreamCutAtEveryByte: no prefix is complete once the body has ended there,
// in order or not, and none is while it is open before the terminal event.
func TestStreamCutAtEveryByte(t *testing.T) {
	for _, s := range streams {
		t.Run(s.name, func(t *testing.T) {
			terminal := len(s.body)
			if s.terminal != "" {
				terminal = strings.Index(s.body, s.terminal) + len(s.terminal)
			}
			for cut := range len(s.body) {
				part := s.body[:cut]
				if got := scan(s.call, s.media, 0, nil, part); got.Complete {
					t.Fatalf("ended after byte %d: complete: %+v", cut, got)
				}
				if got := scan(s.call, s.media, 0, errCut, part); got.Complete {
					t.Fatalf("cut after byte %d: complete: %+v", cut, got)
				}
				if got := scan(s.call, s.media, 0, errOpen, part); got.Complete && cut < terminal {
					t.Fatalf("open after byte %d: complete: %+v", cut, got)
				}
			}
		})
	}
}

// TestCompleteAtTheTerminalEvent: clients that stop there must not lose their
// answer. Gemini has no such event when it sends events, and a last CR may be half
// a line end.
func TestCompleteAtTheTerminalEvent(t *testing.T) {
	for _, s := range streams {
		if s.call.API == GeminiGenerate && strings.HasPrefix(s.media, "text/event-stream") || strings.HasSuffix(s.body, "\r") {
			continue
		}
		end := len(s.body)
		if s.terminal != "" {
			end = strings.Index(s.body, s.terminal) + len(s.terminal)
		}
		if got := scan(s.call, s.media, 0, errOpen, s.body[:end]); !got.Complete {
			t.Errorf("%s: %+v", s.name, got)
		}
		if got := scan(s.call, s.media, 0, errCut, s.body); !got.Complete {
			t.Errorf("%s, broken off behind it: %+v", s.name, got)
		}
	}
}

// TestDoneMarkThatGoesOn: the mark counts before its empty line only while it is
// all there is of the event.
func TestDoneMarkThatGoesOn(t *testing.T) {
	c, head := streaming(OpenAIChat, 1), sse(chatText, chatStop)
	for tail, want := range map[string]bool{
		"data: [DONE]": false, "data: [DONE]\n": true, "data: [DONE]\nda": false, "data: [DONE]\ndata: x\n": false, "data: [DONE] \n": false,
	} {
		if got := scan(c, eventStream, 0, errOpen, head+tail); got.Complete != want {
			t.Errorf("%q: %+v", tail, got)
		}
	}
}

func TestAnySplitGivesTheSameVerdict(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, s := range streams {
		for cut := range len(s.body) {
			if got := scan(s.call, s.media, 0, nil, s.body[:cut], s.body[cut:]); got != s.want {
				t.Fatalf("%s cut at %d: %+v", s.name, cut, got)
			}
		}
		if got := scan(s.call, s.media, 0, nil, strings.Split(s.body, "")...); got != s.want {
			t.Fatalf("%s byte by byte: %+v", s.name, got)
		}
		for range 50 {
			if got := scan(s.call, s.media, 0, nil, splitAt(s.body, r)...); got != s.want {
				t.Fatalf("%s cut anywhere: %+v", s.name, got)
			}
		}
	}
}

func splitAt(s string, r *rand.Rand) (pieces []string) {
	for len(s) > 0 {
		n := 1 + r.IntN(min(len(s), 40))
		pieces, s = append(pieces, s[:n]), s[n:]
	}
	return pieces
}

func TestIncompleteStreams(t *testing.T) {
	chat, anthropic := streaming(OpenAIChat, 1), streaming(AnthropicMessages, 1)
	gemini, ollama := streaming(GeminiGenerate, 1), streaming(OllamaChat, 1)
	for _, tc := range []struct {
		name  string
		call  Call
		media string
		body  string
		want  string
	}{
		{"nothing at all", chat, eventStream, "", reasonNoEnd},
		{"bare [DONE]", chat, eventStream, sse("[DONE]"), reasonNoFinish},
		{"[DONE] without a finish reason", chat, eventStream, sse(chatHello, chatText, "[DONE]"), reasonNoFinish},
		{"finish reason without [DONE]", chat, eventStream, sse(chatText, chatStop), reasonNoEnd},
		{"one of two choices finished", streaming(OpenAIChat, 2), eventStream, sse(chatText, strings.Replace(chatText, `"index":0`, `"index":1`, 1), chatStop, "[DONE]"), reasonNoFinish},
		{"one of two choices began", streaming(OpenAIChat, 2), eventStream, sse(chatText, chatStop, "[DONE]"), reasonNoFinish},
		{"a second choice not asked for", chat, eventStream, sse(chatText, chatStop, strings.Replace(chatText, `"index":0`, `"index":7`, 1), "[DONE]"), reasonNoFinish},
		{"an error after the text", chat, eventStream, sse(chatText, `{"error":{"message":"overloaded","type":"server_error"}}`, "[DONE]"), reasonError},
		{"an error after all", chat, eventStream, sse(chatText, chatStop, "[DONE]", `{"error":"boom"}`), reasonError},
		{"an error event", chat, eventStream, sse(chatText, chatStop) + "event: error\ndata: {}\n\n" + sse("[DONE]"), reasonError},
		{"finish reason error", chat, eventStream, sse(chatText, strings.Replace(chatStop, `"stop"`, `"error"`, 1), "[DONE]"), reasonError},
		{"damaged event", chat, eventStream, sse(chatText, chatStop[:40], chatStop, "[DONE]"), "an event is not JSON"},
		{"negative choice", chat, eventStream, sse(strings.Replace(chatText, `"index":0`, `"index":-1`, 1), chatStop, "[DONE]"), "a choice out of range"},
		{"huge choice", chat, eventStream, sse(strings.Replace(chatText, `"index":0`, `"index":1000000000`, 1), chatStop, "[DONE]"), "a choice out of range"},
		{"no message_stop", anthropic, eventStream, named(messageStart, textStart, textDelta, blockStop, messageEnd), reasonNoEnd},
		{"no stop reason", anthropic, eventStream, named(messageStart, textStart, textDelta, blockStop, messageStop), reasonNoFinish},
		{"overloaded", anthropic, eventStream, named(messageStart, textStart, textDelta, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`, messageEnd, messageStop), reasonError},
		{"Bedrock exception", anthropic, "application/vnd.amazon.eventstream", chunkFrames(messageStart, textStart, textDelta) + frame(`{"message":"slow down"}`, ":exception-type", "throttlingException", ":message-type", "exception") + chunkFrames(messageEnd, messageStop), reasonError},
		{"Bedrock damaged frame", anthropic, "application/vnd.amazon.eventstream", strings.Replace(chunkFrames(messageStart, textStart, textDelta, messageEnd, messageStop), "abcdefgh", "abcdefgi", 1), "a frame is damaged"},
		{"response failed", streaming(OpenAIResponses, 1), eventStream, named(responseCreated, responseDelta, `{"type":"response.failed","response":{"status":"failed","error":{"code":"server_error"}}}`), reasonError},
		{"response error event", streaming(OpenAIResponses, 1), eventStream, named(responseDelta, `{"type":"error","code":"ERR","message":"x","param":null}`, responseCompleted), reasonError},
		{"response incomplete for an unknown reason", streaming(OpenAIResponses, 1), eventStream, named(responseDelta, `{"type":"response.incomplete","response":{"incomplete_details":{"reason":"???"}}}`), "incomplete"},
		{"gemini without finish reason", gemini, eventStream, sse(geminiText), reasonNoFinish},
		{"gemini, cut behind the last candidate", gemini, eventStream, sse(geminiStop) + "data: {\"usage", reasonNoEnd},
		{"gemini malformed call", gemini, eventStream, sse(strings.Replace(geminiStop, "STOP", "MALFORMED_FUNCTION_CALL", 1)), "a candidate failed"},
		{"gemini error", gemini, "application/json", "[" + geminiText + `,{"error":{"code":503,"message":"overloaded"}}]`, reasonError},
		{"gemini, something behind the array", gemini, "application/json", "[" + geminiStop + "]]", "something follows the end of the array"},
		{"gemini, one of two candidates", streaming(GeminiGenerate, 2), "application/json", "[" + geminiStop + "]", reasonNoFinish},
		{"ollama error", ollama, "application/x-ndjson", ollamaText + "\n" + `{"error":"an error was encountered while running the model"}` + "\n", reasonError},
		{"ollama not done", ollama, "application/x-ndjson", ollamaText + "\n", reasonNoEnd},
		{"ollama damaged line", ollama, "application/x-ndjson", ollamaText[:30] + "\n" + ollamaDone + "\n", "a line is not JSON"},
		{"images, one of two", streaming(OpenAIImages, 2), eventStream, named(`{"type":"image_generation.completed","b64_json":"aGk="}`), reasonNoEnd},
		{"embeddings do not stream", streaming(OpenAIEmbeddings, 1), eventStream, sse("{}"), "this API does not stream"},
		{"a plain error for a stream", chat, "application/json", `{"error":{"message":"bad key"}}`, reasonError},
		{"a web page for a stream", chat, "text/html", "<html>sign in</html>\n\n", reasonNoEnd},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := scan(tc.call, tc.media, 0, nil, tc.body)
			if got.Complete || got.Reason != tc.want {
				t.Errorf("got %+v, want the reason %q", got, tc.want)
			}
			if bytewise := scan(tc.call, tc.media, 0, nil, strings.Split(tc.body, "")...); bytewise != got {
				t.Errorf("byte by byte %+v, at once %+v", bytewise, got)
			}
		})
	}
}

func TestStreamsOfNoUse(t *testing.T) {
	for _, tc := range []struct {
		name string
		call Call
		body string
		want Outcome
	}{
		{"no text", streaming(OpenAIChat, 1), sse(chatHello, chatStop, "[DONE]"), Outcome{Complete: true, Empty: true, Model: "gpt-4o-2024-08-06"}},
		{"reasoning only", streaming(OpenAIChat, 1), sse(`{"choices":[{"delta":{"reasoning_content":"hm","content":null}}]}`, chatLength, "[DONE]"), Outcome{Complete: true, Empty: true, Truncated: true, Model: "gpt-4o-2024-08-06"}},
		{"refusal", streaming(OpenAIChat, 1), sse(`{"choices":[{"delta":{"refusal":"I cannot"}}]}`, chatStop, "[DONE]"), Outcome{Complete: true, Refused: true, Model: "gpt-4o-2024-08-06"}},
		{"response refusal", streaming(OpenAIResponses, 1), named(`{"type":"response.refusal.delta","delta":"no"}`, `{"type":"response.completed","response":{"output":[{"type":"message","content":[{"type":"refusal","refusal":"no"}]}]}}`), Outcome{Complete: true, Refused: true}},
		{"response of nothing", streaming(OpenAIResponses, 1), named(`{"type":"response.completed","response":{"output":[{"type":"reasoning"}]}}`), Outcome{Complete: true, Empty: true}},
		{"thinking only", streaming(AnthropicMessages, 1), named(`{"type":"content_block_start","content_block":{"type":"thinking"}}`, strings.Replace(messageEnd, "end_turn", "max_tokens", 1), messageStop), Outcome{Complete: true, Truncated: true, Empty: true, Usage: Usage{Known: true, Output: 15}}},
		{"anthropic refusal", streaming(AnthropicMessages, 1), named(strings.Replace(messageEnd, "end_turn", "refusal", 1), messageStop), Outcome{Complete: true, Refused: true, Usage: Usage{Known: true, Output: 15}}},
		{"gemini blocked prompt", streaming(GeminiGenerate, 1), sse(`{"promptFeedback":{"blockReason":"SAFETY"}}`), Outcome{Complete: true, Refused: true}},
		{"gemini safety", streaming(GeminiGenerate, 1), sse(`{"candidates":[{"finishReason":"SAFETY"}]}`), Outcome{Complete: true, Refused: true}},
		{"gemini thought only", streaming(GeminiGenerate, 1), sse(`{"candidates":[{"content":{"parts":[{"text":"hm","thought":true}]},"finishReason":"STOP"}]}`), Outcome{Complete: true, Empty: true}},
	} {
		if got := scan(tc.call, eventStream, 0, nil, tc.body); got != tc.want {
			t.Errorf("%s:\ngot  %+v\nwant %+v", tc.name, got, tc.want)
		}
	}
}

func TestScannerRefusesWhatItCannotJudge(t *testing.T) {
	c := streaming(OpenAIChat, 1)
	body := sse(chatText, chatStop, "[DONE]")
	for want, s := range map[string]*Scanner{
		"status 429":                        NewScanner(c, 429, headerOf(eventStream), 0),
		"status 206":                        NewScanner(c, 206, headerOf(eventStream), 0),
		"no judge":                          NewScanner(Call{Stream: true}, 200, headerOf(eventStream), 0),
		"the answer is encoded as br":       NewScanner(c, 200, http.Header{"Content-Encoding": {"br"}}, 0),
		"an event is longer than the limit": NewScanner(c, 200, headerOf(eventStream), len(chatText)),
	} {
		_, _ = s.Write([]byte(body))
		s.End(nil)
		if got := s.Outcome(); got.Complete || got.Reason != want {
			t.Errorf("got %+v, want the reason %q", got, want)
		}
	}
}

// TestLimit: an event of exactly the limit is read, one more is not, wherever the
// body is cut; the usage in later events is still found.
func TestLimit(t *testing.T) {
	long := func(n int, head, tail string) string { return head + strings.Repeat("x", n-len(head)-len(tail)) + tail }
	const limit = 600
	for _, tc := range []struct {
		name   string
		call   Call
		media  string
		event  func(n int) string // n bytes as the framing counts them
		others func(event string) string
	}{
		{
			"sse", streaming(OpenAIChat, 1), eventStream,
			func(n int) string { return long(n, `data: {"choices":[{"delta":{"content":"`, `"}}]}`) },
			func(e string) string { return e + "\n\n" + sse(chatStop, chatUsage, "[DONE]") },
		},
		{
			"ndjson", streaming(OllamaChat, 1), "application/x-ndjson",
			func(n int) string { return long(n, `{"message":{"content":"`, `"}}`) },
			func(e string) string { return e + "\n" + ollamaDone + "\n" },
		},
		{
			"array", streaming(GeminiGenerate, 1), "application/json",
			func(n int) string { return long(n, `{"candidates":[{"content":{"parts":[{"text":"`, `"}]}}]}`) },
			func(e string) string { return "[" + e + "," + geminiStop + "]" },
		},
	} {
		for _, n := range []int{limit, limit + 1, 3 * limit} {
			body := tc.others(tc.event(n))
			whole := scan(tc.call, tc.media, limit, nil, body)
			if whole.Complete != (n <= limit) || !whole.Usage.Known {
				t.Errorf("%s, %d bytes: %+v", tc.name, n, whole)
			}
			for cut := range len(body) {
				if got := scan(tc.call, tc.media, limit, nil, body[:cut], body[cut:]); got != whole {
					t.Fatalf("%s, %d bytes, cut at %d: %+v, not %+v", tc.name, n, cut, got, whole)
				}
			}
		}
	}
}

// TestMemoryIsBounded: lines of 100 MB, of every kind, in every framing.
func TestMemoryIsBounded(t *testing.T) {
	piece := []byte(strings.Repeat("x", 1<<20))
	for _, tc := range []struct{ name, media, begin string }{
		{"data", eventStream, "data: "},
		{"comment", eventStream, ": "},
		{"event name", eventStream, "event: "},
		{"no field", eventStream, ""},
		{"ndjson", "application/x-ndjson", `{"a":"`},
		{"array", "application/json", `[{"a":"`},
		{"frame", "application/vnd.amazon.eventstream", frame(strings.Repeat("y", 1<<21), ":message-type", "event")[:1<<20]},
		{"whole", "text/plain", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := streaming(GeminiGenerate, 1)
			c.Stream = tc.name != "whole"
			s := NewScanner(c, 200, headerOf(tc.media), 1<<20)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, _ = s.Write([]byte(tc.begin))
			for range 100 {
				_, _ = s.Write(piece)
			}
			runtime.ReadMemStats(&after)
			s.End(nil)
			if got := after.TotalAlloc - before.TotalAlloc; got > 8<<20 {
				t.Errorf("%d bytes for a line of 100 MB", got)
			}
			if s.Outcome().Complete {
				t.Error("complete")
			}
		})
	}
}

// TestManyDataLinesAreBounded: an event may be long by its lines, too.
func TestManyDataLinesAreBounded(t *testing.T) {
	s := NewScanner(streaming(OpenAIChat, 1), 200, headerOf(eventStream), 1<<16)
	line := []byte("data: " + strings.Repeat("x", 1000) + "\n")
	for range 10_000 {
		_, _ = s.Write(line)
	}
	f := s.framing.(*sseFraming)
	if got := cap(f.data) + cap(f.line); got > 1<<18 {
		t.Errorf("%d bytes are kept", got)
	}
}

func TestScannerLeavesItsInputAlone(t *testing.T) {
	for _, s := range streams {
		p := []byte(s.body)
		sc := NewScanner(s.call, 200, headerOf(s.media), 0)
		_, _ = sc.Write(p)
		if string(p) != s.body {
			t.Errorf("%s: changed", s.name)
		}
		clear(p) // and keeps no part of it
		sc.End(nil)
		if got := sc.Outcome(); got != s.want {
			t.Errorf("%s: %+v", s.name, got)
		}
	}
}

func TestEmptyArrayAndLoneObject(t *testing.T) {
	c := streaming(GeminiGenerate, 1)
	for body, want := range map[string]bool{
		"[]": false, "[ ]": false, "": false, "[": false, geminiStop: true, " " + geminiStop + "\n": true,
		geminiStop + geminiStop: false, "[" + geminiStop: false, "[1]": false, `["a"]`: false, "{}": false,
		"[" + geminiText + geminiStop + "]": true, // lenient between elements: each is judged by itself
	} {
		if got := scan(c, "application/json", 0, nil, body); got.Complete != want {
			t.Errorf("%q: %+v", body, got)
		}
	}
}

func TestStreamed(t *testing.T) {
	for _, tc := range []struct {
		api    API
		stream bool
		media  string
		want   bool
	}{
		{OpenAIChat, true, eventStream, true},
		{OpenAIChat, false, eventStream, true},
		{OpenAIChat, true, "application/json", false},
		{OpenAIChat, true, "", true},
		{OpenAIChat, false, "", false},
		{GeminiGenerate, true, "application/json", true},
		{GeminiGenerate, false, "application/json", false},
		{OllamaChat, true, "application/json", true},
		{OllamaChat, false, "application/json", false},
		{AnthropicMessages, true, "application/vnd.amazon.eventstream", true},
	} {
		if got := Streamed(Call{API: tc.api, Stream: tc.stream}, headerOf(tc.media)); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
}
