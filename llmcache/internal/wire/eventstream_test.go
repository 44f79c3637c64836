package wire

import (
	"encoding/binary"
	"hash/crc32"
	"testing"
)

// rawFrame makes a frame of these lengths and headers whose sums are right.
func rawFrame(total, headerLen uint32, headers, payload string) string {
	f := binary.BigEndian.AppendUint32(nil, total)
	f = binary.BigEndian.AppendUint32(f, headerLen)
	f = binary.BigEndian.AppendUint32(f, crc32.ChecksumIEEE(f))
	f = append(f, headers+payload...)
	return string(binary.BigEndian.AppendUint32(f, crc32.ChecksumIEEE(f)))
}

func fitted(headers, payload string) string {
	return rawFrame(uint32(16+len(headers)+len(payload)), uint32(len(headers)), headers, payload)
}

const (
	messageEvent = "\x0d:message-type\x07\x00\x05event"
	eventChunk   = "\x0b:event-type\x07\x00\x05chunk"
)

func TestFrames(t *testing.T) {
	const media = "application/vnd.amazon.eventstream"
	flip := func(s string, i int) string { b := []byte(s); b[i] ^= 1; return string(b) }
	good := fitted(messageEvent+eventChunk, `{"bytes":"e30="}`)
	// Values of every other type, which are skipped.
	others := "\x01a\x00" + "\x01b\x01" + "\x01c\x02x" + "\x01d\x03xx" + "\x01e\x04xxxx" + "\x01f\x05xxxxxxxx" +
		"\x01g\x06\x00\x03xxx" + "\x01h\x08xxxxxxxx" + "\x01i\x09xxxxxxxxxxxxxxxx" + "\x0d:message-type\x06\x00\x05wrong"
	for _, tc := range []struct{ name, body, want string }{
		{"good", good, ""},
		{"headers of every type", fitted(others+messageEvent, `{}`), ""},
		{"no payload", fitted(messageEvent, ``), "a frame's payload is not JSON"},
		{"prelude damaged", flip(good, 3), "a frame's prelude is damaged"},
		{"sum of the prelude damaged", flip(good, 8), "a frame's prelude is damaged"},
		{"header damaged", flip(good, 20), "a frame is damaged"},
		{"sum damaged", flip(good, len(good)-1), "a frame is damaged"},
		{"as long as the limit", fitted(messageEvent, pad(1000-16-len(messageEvent))), ""},
		{"longer than the limit", fitted(messageEvent, pad(1001-16-len(messageEvent))), faultTooLong},
		{"4 GB", rawFrame(0xffffffff, 0, "", ""), faultTooLong},
		{"too short", rawFrame(15, 0, "", ""), "a frame's lengths do not fit"},
		{"headers longer than the frame", rawFrame(20, 5, "", "xxxx"), "a frame's lengths do not fit"},
		{"no message type", fitted(eventChunk, `{}`), reasonError},
		{"header name too long", fitted("\x7fabc", `{}`), "a frame's headers are damaged"},
		{"header of unknown type", fitted("\x01a\x0a", `{}`), "a frame's headers are damaged"},
		{"header value without length", fitted("\x01a\x07\x00", `{}`), "a frame's headers are damaged"},
		{"header value too long", fitted("\x01a\x07\x00\x09xx", `{}`), "a frame's headers are damaged"},
		{"chunk is no base64", fitted(messageEvent, `{"bytes":"***"}`), "a frame's chunk is not base64"},
		{"exception", fitted("\x0d:message-type\x07\x00\x09exception", `{"message":"x"}`), reasonError},
	} {
		// The frames behind a good one are read, too.
		body := tc.body + chunkFrames(messageEnd, messageStop)
		got := scan(streaming(AnthropicMessages, 1), media, 1000, nil, body)
		if got.Reason != tc.want {
			t.Errorf("%s: %+v, want the reason %q", tc.name, got, tc.want)
		}
	}
}

func pad(n int) string {
	b := []byte(`{"a":"`)
	for len(b) < n-2 {
		b = append(b, 'x')
	}
	return string(append(b, `"}`...))
}
