package notifytest

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// Limits of Slack, in characters and items.
const (
	maxText     = 4000 // Slack advises it, and cuts or refuses above
	maxBlocks   = 50
	maxSection  = 3000
	maxHeader   = 150
	maxFields   = 10
	maxField    = 2000
	maxElements = 10
)

// block is what the limits and a reader need to know of a block.
type block struct {
	Type     string          `json:"type"`
	Text     *textObject     `json:"text"`
	Fields   []textObject    `json:"fields"`
	Elements json.RawMessage `json:"elements"`
}

type textObject struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// texts returns the block's text objects. Elements that are no text (buttons,
// images) show as their label, if they have one.
func (b block) texts() []textObject {
	var all []textObject
	if b.Text != nil {
		all = append(all, *b.Text)
	}
	all = append(all, b.Fields...)
	var elements []struct {
		Type string          `json:"type"`
		Text json.RawMessage `json:"text"`
	}
	if len(b.Elements) == 0 || json.Unmarshal(b.Elements, &elements) != nil {
		return all
	}
	for _, e := range elements {
		var plain string
		var object textObject
		switch {
		case json.Unmarshal(e.Text, &plain) == nil:
			all = append(all, textObject{e.Type, plain})
		case json.Unmarshal(e.Text, &object) == nil:
			all = append(all, object)
		}
	}
	return all
}

// checkBlocks says why Slack would refuse the blocks.
func checkBlocks(raw json.RawMessage) error {
	var list []block
	if err := json.Unmarshal(raw, &list); err != nil {
		return fmt.Errorf("blocks are no JSON array of blocks: %w", err)
	}
	if len(list) > maxBlocks {
		return fmt.Errorf("no more than %d items allowed [json-pointer:/blocks]", maxBlocks)
	}
	for i, b := range list {
		if err := b.check(); err != nil {
			return fmt.Errorf("%w [json-pointer:/blocks/%d]", err, i)
		}
	}
	return nil
}

func (b block) check() error {
	limit := maxSection
	switch b.Type {
	case "":
		return fmt.Errorf("missing required field: type")
	case "header":
		limit = maxHeader
	case "section":
		if b.Text == nil && len(b.Fields) == 0 {
			return fmt.Errorf("missing required field: text or fields")
		}
	}
	if b.Text != nil {
		if n := utf8.RuneCountInString(b.Text.Text); n == 0 || n > limit {
			return fmt.Errorf("text must have 1 to %d characters, has %d", limit, n)
		}
	}
	if len(b.Fields) > maxFields {
		return fmt.Errorf("no more than %d fields allowed", maxFields)
	}
	for _, f := range b.Fields {
		if n := utf8.RuneCountInString(f.Text); n == 0 || n > maxField {
			return fmt.Errorf("field must have 1 to %d characters, has %d", maxField, n)
		}
	}
	var elements []json.RawMessage
	if b.Type == "context" && json.Unmarshal(b.Elements, &elements) == nil && len(elements) > maxElements {
		return fmt.Errorf("no more than %d elements allowed", maxElements)
	}
	return nil
}
