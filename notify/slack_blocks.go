package notify

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/slack-go/slack"
)

// Slack's limits, in characters and items.
const (
	slackText       = 4000
	slackBlocks     = 50
	slackSection    = 3000
	slackHeader     = 150
	slackFields     = 10
	slackField      = 2000
	slackElements   = 10
	slackBlocksSize = 100 << 10 // ours, in bytes: 50 full sections of plain ASCII are 150 KB and nobody reads them
)

var errNoBlocks = errors.New("blocks are no JSON array of Slack blocks")

// fitBlocks cuts blocks to what Slack takes. It fails on what is no list of
// blocks or is too large even so.
func fitBlocks(raw json.RawMessage) ([]json.RawMessage, error) {
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, errNoBlocks
	}
	if dropped := len(list) - (slackBlocks - 1); len(list) > slackBlocks {
		note := fmt.Sprintf(`{"type":"context","elements":[{"type":"plain_text","text":"… (cut, %d more blocks)"}]}`, dropped)
		list = append(list[:slackBlocks-1:slackBlocks-1], json.RawMessage(note))
	}
	size := 0
	for i, b := range list {
		fitted, err := fitBlock(b)
		if err != nil {
			return nil, fmt.Errorf("block %d: %w", i, err)
		}
		list[i] = fitted
		size += len(fitted)
	}
	if size > slackBlocksSize {
		return nil, fmt.Errorf("blocks have %d bytes, %d are allowed", size, slackBlocksSize)
	}
	return list, nil
}

// fitBlock cuts the texts of one block; a block without long texts comes back
// byte for byte, whatever its type.
func fitBlock(raw json.RawMessage) (json.RawMessage, error) {
	var b map[string]any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber() // a block that we change keeps its numbers
	if err := d.Decode(&b); err != nil {
		return nil, errNoBlocks
	}
	kind, _ := b["type"].(string)
	changed := false
	text := func(v any, limit int) {
		object, _ := v.(map[string]any)
		s, _ := object["text"].(string)
		if short := cut(s, limit); short != s {
			object["text"] = short
			changed = true
		}
	}
	list := func(key string, items, limit int) {
		all, _ := b[key].([]any)
		if len(all) > items {
			all = all[:items]
			b[key] = all
			changed = true
		}
		for _, v := range all {
			text(v, limit)
		}
	}
	switch kind {
	case "":
		return nil, errNoBlocks
	case "header":
		text(b["text"], slackHeader)
	case "section":
		text(b["text"], slackSection)
		list("fields", slackFields, slackField)
	case "context":
		list("elements", slackElements, slackSection)
	}
	if !changed {
		return raw, nil
	}
	return json.Marshal(b)
}

// slackBody is text and blocks as Slack takes them. Blocks that Slack cannot
// take are left out if there is a text to send in their place: a plain message
// is better than none.
func slackBody(m Message) (text string, blocks []json.RawMessage, err error) {
	text = EscapeSlack(m.Text)
	if len(m.Blocks) > 0 && !bytes.Equal(m.Blocks, []byte("null")) {
		blocks, err = fitBlocks(m.Blocks)
	}
	if len(blocks) == 0 && m.Link != "" {
		text = joinLink(text, m.Link)
	} else {
		text = cut(text, slackText)
	}
	if len(blocks) > 0 || text != "" {
		return text, blocks, nil
	}
	if err == nil {
		err = errors.New("message has neither text nor blocks")
	}
	return "", nil, err
}

// joinLink puts the link below the text, which is cut to leave room for it.
func joinLink(text, link string) string {
	link, ok := slackLink(link, "")
	if !ok || len(link) > slackText/2 {
		return cut(text, slackText)
	}
	if text == "" {
		return link
	}
	return cut(text, slackText-len(link)-1) + "\n" + link
}

// rawBlock passes a block through slack-go as it is, of types that it does not
// know, too.
type rawBlock struct{ json.RawMessage }

func (rawBlock) BlockType() slack.MessageBlockType { return "" }
func (rawBlock) ID() string                        { return "" }
