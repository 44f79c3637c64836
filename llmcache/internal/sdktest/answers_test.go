package sdktest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream"
	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream/eventstreamapi"
)

// The answers of the providers, as they document them. n makes each different,
// as sampling does.

const (
	mediaJSON = "application/json"
	mediaSSE  = "text/event-stream; charset=utf-8"
)

func sse(events ...string) string {
	return "data: " + strings.Join(events, "\n\ndata: ") + "\n\n"
}

func named(events ...string) string {
	var b strings.Builder
	for _, e := range events {
		b.WriteString("event: " + typeOf(e) + "\ndata: " + e + "\n\n")
	}
	return b.String()
}

func typeOf(event string) string {
	var e struct{ Type string }
	if err := json.Unmarshal([]byte(event), &e); err != nil {
		panic(err)
	}
	return e.Type
}

func chatWhole(n int) string {
	return fmt.Sprintf(`{"id":"chatcmpl-%d","object":"chat.completion","created":1700000000,"model":"gpt-4o-2024-08-06",
 "choices":[{"index":0,"message":{"role":"assistant","content":"answer %d: <b>&","refusal":null},"logprobs":null,"finish_reason":"stop"}],
 "usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29,"prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":0}}}`, n, n)
}

func chatToolWhole(n int) string {
	return fmt.Sprintf(`{"id":"chatcmpl-%d","object":"chat.completion","created":1700000000,"model":"gpt-4o",
 "choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"call_%d","type":"function","function":{"name":"get_weather","arguments":"{\"city\":\"K\u00f6ln %d\"}"}}]},"finish_reason":"tool_calls"}],
 "usage":{"prompt_tokens":82,"completion_tokens":17,"total_tokens":99}}`, n, n, n)
}

func chatChunk(n int, delta, finish string) string {
	return fmt.Sprintf(`{"id":"chatcmpl-%d","object":"chat.completion.chunk","created":1700000000,"model":"gpt-4o","system_fingerprint":"fp","choices":[{"index":0,"delta":%s,"logprobs":null,"finish_reason":%s}]}`, n, delta, finish)
}

func chatUsage(n int) string {
	return fmt.Sprintf(`{"id":"chatcmpl-%d","object":"chat.completion.chunk","created":1700000000,"model":"gpt-4o","choices":[],"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29}}`, n)
}

func chatStream(n int) string {
	return sse(
		chatChunk(n, `{"role":"assistant","content":""}`, "null"),
		chatChunk(n, fmt.Sprintf(`{"content":"answer %d"}`, n), "null"),
		chatChunk(n, `{"content":": Grüße"}`, "null"),
		chatChunk(n, `{}`, `"stop"`), chatUsage(n), "[DONE]")
}

func chatToolStream(n int) string {
	return sse(
		chatChunk(n, fmt.Sprintf(`{"role":"assistant","content":null,"tool_calls":[{"index":0,"id":"call_%d","type":"function","function":{"name":"get_weather","arguments":""}}]}`, n), "null"),
		chatChunk(n, `{"tool_calls":[{"index":0,"function":{"arguments":"{\"city\":"}}]}`, "null"),
		chatChunk(n, fmt.Sprintf(`{"tool_calls":[{"index":0,"function":{"arguments":"\"Köln %d\"}"}}]}`, n), "null"),
		chatChunk(n, `{}`, `"tool_calls"`), "[DONE]")
}

func responseBody(n int, status string) string {
	return fmt.Sprintf(`{"id":"resp_%d","object":"response","created_at":1700000000,"status":%q,"error":null,"incomplete_details":null,"model":"gpt-5","output":[{"id":"msg_%d","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"answer %d","annotations":[]}]}],"usage":{"input_tokens":37,"input_tokens_details":{"cached_tokens":5},"output_tokens":11,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":48}}`, n, status, n, n)
}

func responsesWhole(n int) string { return responseBody(n, "completed") }

func responsesStream(n int) string {
	return named(
		fmt.Sprintf(`{"type":"response.created","sequence_number":0,"response":{"id":"resp_%d","object":"response","status":"in_progress","model":"gpt-5","output":[]}}`, n),
		fmt.Sprintf(`{"type":"response.output_text.delta","sequence_number":1,"item_id":"msg_1","output_index":0,"content_index":0,"delta":"answer %d"}`, n),
		fmt.Sprintf(`{"type":"response.completed","sequence_number":2,"response":%s}`, responseBody(n, "completed")))
}

func embeddingsWhole(n int) string {
	return fmt.Sprintf(`{"object":"list","model":"text-embedding-3-small","data":[{"object":"embedding","index":0,"embedding":[0.%d,-0.25]},{"object":"embedding","index":1,"embedding":[0.5,0.125]}],"usage":{"prompt_tokens":8,"total_tokens":8}}`, n)
}

func transcriptionWhole(n int) string {
	return fmt.Sprintf(`{"text":"answer %d","usage":{"type":"tokens","input_tokens":14,"output_tokens":45,"total_tokens":59}}`, n)
}

func imagesWhole(n int) string {
	return fmt.Sprintf(`{"created":1700000000,"data":[{"b64_json":"aGVsbG8g%04d"}],"usage":{"input_tokens":50,"output_tokens":100,"total_tokens":150}}`, n)
}

func anthropicWhole(n int) string {
	return fmt.Sprintf(`{"id":"msg_%d","type":"message","role":"assistant","model":"claude-sonnet-4-5-20250929",
 "content":[{"type":"thinking","thinking":"thought %d","signature":"EqQBCgIYAhIM"},{"type":"text","text":"answer %d"},{"type":"tool_use","id":"toolu_%d","name":"get_weather","input":{"city":"Köln"}}],
 "stop_reason":"tool_use","stop_sequence":null,"usage":{"input_tokens":25,"cache_creation_input_tokens":0,"cache_read_input_tokens":100,"output_tokens":15}}`, n, n, n, n)
}

func anthropicEvents(n int) []string {
	return []string{
		fmt.Sprintf(`{"type":"message_start","message":{"id":"msg_%d","type":"message","role":"assistant","content":[],"model":"claude-sonnet-4-5-20250929","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":25,"cache_creation_input_tokens":0,"cache_read_input_tokens":100,"output_tokens":1}}}`, n),
		`{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}`,
		`{"type":"ping"}`,
		fmt.Sprintf(`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"thought %d"}}`, n),
		`{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"EqQBCgIYAhIM"}}`,
		`{"type":"content_block_stop","index":0}`,
		`{"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}`,
		fmt.Sprintf(`{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"answer %d"}}`, n),
		`{"type":"content_block_stop","index":1}`,
		fmt.Sprintf(`{"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"toolu_%d","name":"get_weather","input":{}}}`, n),
		`{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"city\":"}}`,
		`{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"\"Köln\"}"}}`,
		`{"type":"content_block_stop","index":2}`,
		`{"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":15}}`,
		`{"type":"message_stop"}`,
	}
}

func anthropicStream(n int) string { return named(anthropicEvents(n)...) }

// anthropicText is a stream without thoughts, which langchaingo does not know.
func anthropicText(n int) string {
	e := anthropicEvents(n)
	return named(e[0], strings.Replace(e[6], `"index":1`, `"index":0`, 1), strings.Replace(e[7], `"index":1`, `"index":0`, 1),
		e[5], strings.Replace(e[13], "tool_use", "end_turn", 1), e[14])
}

func anthropicTextWhole(n int) string {
	return fmt.Sprintf(`{"id":"msg_%d","type":"message","role":"assistant","model":"claude","content":[{"type":"text","text":"answer %d"}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":25,"output_tokens":15}}`, n, n)
}

// bedrockStream is framed by the encoder of the AWS SDK.
func bedrockStream(n int) string {
	var b bytes.Buffer
	for _, e := range anthropicEvents(n) {
		chunkFrame(&b, e)
	}
	return b.String()
}

// bedrockException is a stream with an exception before its end.
func bedrockException(n int) string {
	var b bytes.Buffer
	events := anthropicEvents(n)
	for i, e := range events {
		if i == len(events)-2 {
			frame(&b, []byte(`{"message":"Too many requests"}`), eventstreamapi.ExceptionTypeHeader, "throttlingException", eventstreamapi.ExceptionMessageType)
		}
		chunkFrame(&b, e)
	}
	return b.String()
}

func chunkFrame(b *bytes.Buffer, event string) {
	payload, err := json.Marshal(map[string]any{"bytes": []byte(event), "p": "abcdefghijkl"})
	if err != nil {
		panic(err)
	}
	frame(b, payload, eventstreamapi.EventTypeHeader, "chunk", eventstreamapi.EventMessageType)
}

func frame(b *bytes.Buffer, payload []byte, header, value, messageType string) {
	m := eventstream.Message{Payload: payload}
	m.Headers.Set(header, eventstream.StringValue(value))
	m.Headers.Set(eventstreamapi.ContentTypeHeader, eventstream.StringValue("application/json"))
	m.Headers.Set(eventstreamapi.MessageTypeHeader, eventstream.StringValue(messageType))
	if err := eventstream.NewEncoder().Encode(b, m); err != nil {
		panic(err)
	}
}

func geminiChunk(n int, text, finish string) string {
	return fmt.Sprintf(`{"candidates":[{"content":{"parts":[{"text":%q}],"role":"model"},%s"index":0}],"usageMetadata":{"promptTokenCount":8,"candidatesTokenCount":%d,"totalTokenCount":%d},"modelVersion":"gemini-2.5-flash","responseId":"r%d"}`, text, finish, n, 8+n, n)
}

func geminiWhole(n int) string {
	return geminiChunk(n, fmt.Sprintf("answer %d", n), `"finishReason":"STOP",`)
}

func geminiEvents(n int) []string {
	return []string{geminiChunk(n, "ans", ""), geminiChunk(n, fmt.Sprintf("wer %d", n), ""), geminiChunk(n, " {\"]\\", `"finishReason":"STOP",`)}
}

func geminiStream(n int) string {
	return strings.ReplaceAll(sse(geminiEvents(n)...), "\n", "\r\n")
}

// geminiArray is how the Google API client asks for a stream: an array, enums as
// numbers.
func geminiArray(n int) string {
	return "[" + strings.ReplaceAll(strings.Join(geminiEvents(n), "\n,\r\n"), `"STOP"`, "1") + "\n]\n"
}

func geminiEmbeddings(n int) string {
	return fmt.Sprintf(`{"embeddings":[{"values":[0.%d,-0.25]}]}`, n)
}

func ollamaStream(n int) string {
	return `{"model":"llama3.2","created_at":"2024-01-01T00:00:00Z","message":{"role":"assistant","content":"ans"},"done":false}` + "\n" +
		fmt.Sprintf(`{"model":"llama3.2","created_at":"2024-01-01T00:00:00Z","message":{"role":"assistant","content":"wer %d"},"done":false}`, n) + "\n" +
		`{"model":"llama3.2","created_at":"2024-01-01T00:00:01Z","message":{"role":"assistant","content":""},"done_reason":"stop","done":true,"total_duration":4,"prompt_eval_count":26,"eval_count":282}` + "\n"
}

func ollamaWhole(n int) string {
	return fmt.Sprintf(`{"model":"llama3.2","created_at":"2024-01-01T00:00:00Z","message":{"role":"assistant","content":"answer %d"},"done_reason":"stop","done":true,"prompt_eval_count":26,"eval_count":282}`, n) + "\n"
}
