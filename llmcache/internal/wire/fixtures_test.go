package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"strings"
)

// stream is one streamed answer as a provider sends it.
type stream struct {
	name     string
	call     Call
	media    string
	body     string
	terminal string // the first bytes at whose end the answer is complete; "" when that is its end
	want     Outcome
}

func sse(data ...string) string {
	return "data: " + strings.Join(data, "\n\ndata: ") + "\n\n"
}

// named writes events as Anthropic and the Responses API do: with the type of the
// data as the name of the event.
func named(data ...string) string {
	var b strings.Builder
	for _, d := range data {
		var e struct{ Type string }
		_ = json.Unmarshal([]byte(d), &e)
		b.WriteString("event: " + e.Type + "\ndata: " + d + "\n\n")
	}
	return b.String()
}

// frame writes one AWS frame with string headers, given as name, value, ...
func frame(payload string, headers ...string) string {
	var h bytes.Buffer
	for i := 0; i < len(headers); i += 2 {
		h.WriteByte(byte(len(headers[i])))
		h.WriteString(headers[i])
		h.WriteByte(7)
		_ = binary.Write(&h, binary.BigEndian, uint16(len(headers[i+1])))
		h.WriteString(headers[i+1])
	}
	var f []byte
	f = binary.BigEndian.AppendUint32(f, uint32(16+h.Len()+len(payload)))
	f = binary.BigEndian.AppendUint32(f, uint32(h.Len()))
	f = binary.BigEndian.AppendUint32(f, crc32.ChecksumIEEE(f))
	f = append(f, h.Bytes()...)
	f = append(f, payload...)
	return string(binary.BigEndian.AppendUint32(f, crc32.ChecksumIEEE(f)))
}

func chunkFrames(data ...string) string {
	var b strings.Builder
	for _, d := range data {
		b.WriteString(frame(`{"bytes":"`+base64.StdEncoding.EncodeToString([]byte(d))+`","p":"abcdefgh"}`,
			":event-type", "chunk", ":content-type", "application/json", ":message-type", "event"))
	}
	return b.String()
}

func streaming(api API, choices int) Call {
	return Call{API: api, Stream: true, Judge: JudgeOf(api, choices)}
}

const (
	eventStream = "text/event-stream; charset=utf-8"

	chatHello  = `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-4o-2024-08-06","choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}]}`
	chatText   = `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-4o-2024-08-06","choices":[{"index":0,"delta":{"content":"Grüße"},"logprobs":null,"finish_reason":null}]}`
	chatStop   = `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-4o-2024-08-06","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}`
	chatLength = `{"id":"chatcmpl-1","model":"gpt-4o-2024-08-06","choices":[{"index":0,"delta":{},"finish_reason":"length"}]}`
	chatUsage  = `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-4o-2024-08-06","choices":[],"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29,"prompt_tokens_details":{"cached_tokens":4,"audio_tokens":0}}}`

	messageStart = `{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"model":"claude-sonnet-4-5-20250929","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":25,"cache_creation_input_tokens":7,"cache_read_input_tokens":100,"output_tokens":1}}}`
	textStart    = `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`
	textDelta    = `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}`
	blockStop    = `{"type":"content_block_stop","index":0}`
	messageEnd   = `{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":15}}`
	messageStop  = `{"type":"message_stop"}`

	geminiText = `{"candidates":[{"content":{"parts":[{"text":"Hel"}],"role":"model"},"index":0}],"usageMetadata":{"promptTokenCount":8,"totalTokenCount":8},"modelVersion":"gemini-2.5-flash"}`
	geminiStop = `{"candidates":[{"content":{"parts":[{"text":"lo {\"]\\"}],"role":"model"},"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":8,"candidatesTokenCount":3,"thoughtsTokenCount":20,"cachedContentTokenCount":2,"totalTokenCount":31},"modelVersion":"gemini-2.5-flash"}`

	ollamaText = `{"model":"llama3.2","created_at":"2024-01-01T00:00:00Z","message":{"role":"assistant","content":"The"},"done":false}`
	ollamaDone = `{"model":"llama3.2","created_at":"2024-01-01T00:00:01Z","message":{"role":"assistant","content":""},"done_reason":"stop","done":true,"total_duration":4,"prompt_eval_count":26,"eval_count":282}`

	responseCreated   = `{"type":"response.created","sequence_number":0,"response":{"id":"resp_1","object":"response","status":"in_progress","error":null,"incomplete_details":null,"model":"gpt-5-2025-08-07","output":[],"usage":null}}`
	responseDelta     = `{"type":"response.output_text.delta","sequence_number":4,"item_id":"msg_1","output_index":0,"content_index":0,"delta":"Hi"}`
	responseCompleted = `{"type":"response.completed","sequence_number":9,"response":{"id":"resp_1","object":"response","status":"completed","error":null,"incomplete_details":null,"model":"gpt-5-2025-08-07","output":[{"id":"rs_1","type":"reasoning","summary":[]},{"id":"msg_1","type":"message","status":"completed","content":[{"type":"output_text","text":"Hi","annotations":[]}],"role":"assistant"}],"usage":{"input_tokens":37,"input_tokens_details":{"cached_tokens":5},"output_tokens":11,"output_tokens_details":{"reasoning_tokens":3},"total_tokens":48}}}`
)

var (
	chatTokens      = Usage{Known: true, Input: 19, Output: 10, Cached: 4}
	anthropicTokens = Usage{Known: true, Input: 132, Output: 15, Cached: 100, CacheWrite: 7}
	geminiTokens    = Usage{Known: true, Input: 8, Output: 23, Cached: 2}
)

// streams are complete answers. What any of them lacks at its end makes it
// incomplete.
var streams = []stream{
	{
		name: "chat", call: streaming(OpenAIChat, 1), media: eventStream,
		body:     sse(chatHello, chatText, chatStop, chatUsage, "[DONE]"),
		terminal: "[DONE]\n",
		want:     Outcome{Complete: true, Model: "gpt-4o-2024-08-06", Usage: chatTokens},
	},
	{
		name: "chat without usage, with comments and CRLF", call: streaming(OpenAIChat, 1), media: eventStream,
		body:     strings.ReplaceAll(": PROCESSING\n\n"+sse(chatHello)+": PROCESSING\n\n"+sse(chatText, chatStop, "[DONE]"), "\n", "\r\n"),
		terminal: "[DONE]\r\n",
		want:     Outcome{Complete: true, Model: "gpt-4o-2024-08-06"},
	},
	{
		name: "chat, two choices", call: streaming(OpenAIChat, 2), media: eventStream,
		body: sse(chatText, strings.Replace(chatText, `"index":0`, `"index":1`, 1), chatStop,
			strings.Replace(chatLength, `"index":0`, `"index":1`, 1), "[DONE]"),
		terminal: "[DONE]\n",
		want:     Outcome{Complete: true, Truncated: true, Model: "gpt-4o-2024-08-06"},
	},
	{
		name: "chat, tool calls, byte order mark, no media type", call: streaming(OpenAIChat, 1),
		body: "\xef\xbb\xbf" + sse(
			`{"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":null,"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"get_weather","arguments":""}}]},"finish_reason":null}]}`,
			`{"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"city\":\"Köln\"}"}}]},"finish_reason":null}]}`,
			`{"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}`, "[DONE]"),
		terminal: "[DONE]\n",
		want:     Outcome{Complete: true, Model: "m"},
	},
	{
		name: "chat, Azure with filter results and a data event over two lines", call: streaming(OpenAIChat, 1), media: eventStream,
		body: sse(`{"choices":[],"model":"","prompt_filter_results":[{"prompt_index":0}]}`) +
			"data: {\"model\":\"gpt-4o\",\ndata: \"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},\"finish_reason\":null}]}\n\n" +
			sse(`{"choices":[{"index":0,"delta":{},"finish_reason":"content_filter"}]}`,
				`{"choices":[{"index":0,"finish_reason":null,"content_filter_offsets":{"check_offset":4}}]}`, "[DONE]"),
		terminal: "[DONE]\n",
		want:     Outcome{Complete: true, Refused: true, Model: "gpt-4o"},
	},
	{
		name: "chat, every kind of line end, byte order mark", call: streaming(OpenAIChat, 1), media: eventStream,
		body:     "\xef\xbb\xbfdata: " + chatText + "\r\n\n" + "data: " + chatStop + "\r\r" + "data: " + chatUsage + "\n\r\n" + "id: 7\rdata: [DONE]\r\n\n",
		terminal: "[DONE]\r\n",
		want:     Outcome{Complete: true, Model: "gpt-4o-2024-08-06", Usage: chatTokens},
	},
	{
		name: "chat, lines that end in CR", call: streaming(OpenAIChat, 1), media: eventStream,
		body: strings.ReplaceAll(sse(chatText, chatStop, "[DONE]"), "\n", "\r"),
		want: Outcome{Complete: true, Model: "gpt-4o-2024-08-06"},
	},
	{
		name: "legacy completion", call: streaming(OpenAIChat, 1), media: eventStream,
		body:     sse(`{"object":"text_completion","choices":[{"text":"a","index":0,"finish_reason":null}],"model":"i"}`, `{"choices":[{"text":"","index":0,"finish_reason":"stop"}],"model":"i"}`, "[DONE]"),
		terminal: "[DONE]\n",
		want:     Outcome{Complete: true, Model: "i"},
	},
	{
		name: "responses", call: streaming(OpenAIResponses, 1), media: eventStream,
		body: named(responseCreated, responseDelta, responseCompleted),
		want: Outcome{Complete: true, Model: "gpt-5-2025-08-07", Usage: Usage{Known: true, Input: 37, Output: 11, Cached: 5}},
	},
	{
		name: "responses, cut by length", call: streaming(OpenAIResponses, 1), media: eventStream,
		body: named(responseCreated, responseDelta, `{"type":"response.incomplete","response":{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"model":"g","output":[]}}`),
		want: Outcome{Complete: true, Truncated: true, Model: "g"},
	},
	{
		name: "responses, a function call", call: streaming(OpenAIResponses, 1), media: eventStream,
		body: named(`{"type":"response.output_item.done","output_index":0,"item":{"type":"function_call","name":"f","arguments":"{}"}}`,
			`{"type":"response.completed","response":{"model":"g","output":[]}}`),
		want: Outcome{Complete: true, Model: "g"},
	},
	{
		name: "anthropic", call: streaming(AnthropicMessages, 1), media: eventStream,
		body: named(messageStart, `{"type":"ping"}`, textStart, textDelta, blockStop, messageEnd, messageStop),
		want: Outcome{Complete: true, Model: "claude-sonnet-4-5-20250929", Usage: anthropicTokens},
	},
	{
		name: "anthropic, thinking and a tool", call: streaming(AnthropicMessages, 1), media: eventStream,
		body: named(messageStart, `{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}`,
			`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Hm"}}`,
			`{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"EqQB"}}`, blockStop,
			`{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"toolu_1","name":"f","input":{}}}`,
			`{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"a\":"}}`,
			`{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"1}"}}`,
			`{"type":"content_block_stop","index":1}`,
			`{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"input_tokens":25,"cache_creation_input_tokens":7,"cache_read_input_tokens":100,"output_tokens":15}}`, messageStop),
		want: Outcome{Complete: true, Model: "claude-sonnet-4-5-20250929", Usage: anthropicTokens},
	},
	{
		name: "anthropic on Bedrock", call: streaming(AnthropicMessages, 1), media: "application/vnd.amazon.eventstream",
		body: frame(`{}`, ":event-type", "initial-response", ":message-type", "event") +
			chunkFrames(messageStart, textStart, textDelta, blockStop, messageEnd,
				`{"type":"message_stop","amazon-bedrock-invocationMetrics":{"inputTokenCount":25,"outputTokenCount":15}}`),
		want: Outcome{Complete: true, Model: "claude-sonnet-4-5-20250929", Usage: anthropicTokens},
	},
	{
		name: "gemini as events", call: streaming(GeminiGenerate, 1), media: "text/event-stream",
		body: strings.ReplaceAll(sse(geminiText, geminiStop), "\n", "\r\n"),
		want: Outcome{Complete: true, Model: "gemini-2.5-flash", Usage: geminiTokens},
	},
	{
		name: "gemini as an array", call: streaming(GeminiGenerate, 1), media: "application/json; charset=UTF-8",
		body: "[" + geminiText + "\n,\r\n" + geminiStop + "\n]",
		want: Outcome{Complete: true, Model: "gemini-2.5-flash", Usage: geminiTokens},
	},
	{
		name: "gemini with enums as numbers", call: streaming(GeminiGenerate, 1), media: "application/json",
		body: `[{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","args":{}}}]},"finishReason":2}]}]`,
		want: Outcome{Complete: true, Truncated: true},
	},
	{
		name: "ollama", call: streaming(OllamaChat, 1), media: "application/x-ndjson",
		body: ollamaText + "\n" + ollamaDone + "\n",
		want: Outcome{Complete: true, Model: "llama3.2", Usage: Usage{Known: true, Input: 26, Output: 282}},
	},
	{
		name: "ollama generate", call: streaming(OllamaChat, 1), media: "application/json",
		body: `{"model":"l",` + "\r" + `"response":"a","done":false}` + "\r\n" + `{"model":"l","response":"","done":true,"done_reason":"length","context":[1,2]}` + "\r\n",
		want: Outcome{Complete: true, Truncated: true, Model: "l"},
	},
	{
		name: "images", call: streaming(OpenAIImages, 1), media: eventStream,
		body: named(`{"type":"image_generation.partial_image","b64_json":"aGk=","partial_image_index":0}`,
			`{"type":"image_generation.completed","b64_json":"aGk=","usage":{"total_tokens":100,"input_tokens":50,"output_tokens":50}}`),
		want: Outcome{Complete: true, Usage: Usage{Known: true, Input: 50, Output: 50}},
	},
	{
		name: "transcription", call: streaming(OpenAIAudio, 1), media: eventStream,
		body: sse(`{"type":"transcript.text.delta","delta":"I see"}`,
			`{"type":"transcript.text.done","text":"I see","usage":{"type":"tokens","input_tokens":14,"output_tokens":45}}`),
		want: Outcome{Complete: true, Usage: Usage{Known: true, Input: 14, Output: 45}},
	},
}
