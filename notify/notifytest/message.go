package notifytest

import (
	"encoding/json"
	"regexp"
	"strings"
)

// Message is one message in a channel.
type Message struct {
	// TS is the message's id and time, as Slack writes it: "1700000000.000100".
	// The server sets it.
	TS string
	// ThreadTS is the TS of the message that this one replies to; empty for a
	// message in the channel itself.
	ThreadTS string
	// Broadcast says that a reply is shown in the channel, too.
	Broadcast bool
	// User is who wrote it: [BotUser] for messages posted through the API.
	User string
	// Text is the text as it was posted, with Slack's control sequences.
	Text string
	// Blocks is the JSON array of blocks as it was posted, or nil.
	Blocks json.RawMessage
	// Metadata is the message's metadata; its EventType is empty without.
	Metadata Metadata
	// Raw, for [Slack.Say], replaces what the history shows of this message: a
	// JSON object of any shape, as other apps write them. Its "ts" and
	// "thread_ts" are set by the server.
	Raw json.RawMessage
	// Parse is the parse argument: unless it is "none", Slack looks for bare
	// names in Text, too.
	Parse string
	// Webhook says that the message came through an incoming webhook.
	Webhook bool
}

// Metadata is the metadata of a message.
type Metadata struct {
	EventType    string         `json:"event_type"`
	EventPayload map[string]any `json:"event_payload"`
}

// Visible is what a person reads: the text of all blocks, or Text when there
// are none, with &amp;, &lt; and &gt; decoded.
func (m Message) Visible() string {
	text := m.Text
	if len(m.Blocks) > 0 {
		var parts []string
		eachText(m.Blocks, func(kind, s string) { parts = append(parts, s) })
		text = strings.Join(parts, "\n")
	}
	return unescape.Replace(text)
}

var (
	unescape = strings.NewReplacer("&lt;", "<", "&gt;", ">", "&amp;", "&")
	control  = regexp.MustCompile(`<[!@#][^>]*>`)
)

// Mentions lists the control sequences in text and blocks that Slack would act
// on, such as <!channel>, <!here>, <@U123> and <#C123>. A message built from
// strangers' words should have none.
func (m Message) Mentions() []string {
	found := control.FindAllString(m.Text, -1)
	if len(m.Blocks) > 0 {
		eachText(m.Blocks, func(kind, s string) {
			if kind == "mrkdwn" {
				found = append(found, control.FindAllString(s, -1)...)
			}
		})
	}
	return found
}

// eachText calls f for every text object within blocks, in order.
func eachText(blocks json.RawMessage, f func(kind, text string)) {
	var list []block
	if json.Unmarshal(blocks, &list) != nil {
		return
	}
	for _, b := range list {
		for _, t := range b.texts() {
			f(t.Type, t.Text)
		}
	}
}
