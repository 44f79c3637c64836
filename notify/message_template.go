package notify

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/template"

	"github.com/nexuscore/onceq/internal/setting"
)

// maxTemplate bounds what a template may write, in bytes.
const maxTemplate = 64 << 10

// ParseTemplate returns a builder that runs a text/template over the [Report].
// What it prints is the plain text. A template named "blocks" inside it, if there
// is one, prints the JSON array of Slack blocks. Reports come to the template with
// their texts cut and without what looks like a secret, not yet escaped. Functions
// beside the usual ones:
//
//	took     a duration for people: {{took .Took}}
//	slack    text escaped for Slack's mrkdwn: {{slack .Title}}
//	json     a value as JSON, quotes included: {{json (slack .Title)}}
//
// An unknown field is an error when the template is parsed where Go can know,
// else when it is built. The error wraps [ErrInvalid].
func ParseTemplate(text string) (Builder, error) {
	t, err := template.New("message").Funcs(template.FuncMap{
		"took":  took,
		"slack": EscapeSlack,
		"json": func(v any) (string, error) {
			b, err := json.Marshal(v)
			return string(b), err
		},
	}).Option("missingkey=error").Parse(text)
	if err != nil {
		return nil, setting.Invalidf("ParseTemplate: %w", err)
	}
	b := func(r Report) (Content, error) { return buildTemplate(t, r) }
	// A template that cannot work is found out now, not when a run ends.
	if _, err := b(Report{RunID: "run", Title: "title", Details: []Detail{{"label", "value"}}}); err != nil {
		return nil, setting.Invalidf("ParseTemplate: %w", err)
	}
	return b, nil
}

func buildTemplate(t *template.Template, r Report) (Content, error) {
	r = r.presentable()
	text, err := execute(t, r)
	if err != nil {
		return Content{}, err
	}
	c := Content{Text: strings.TrimSpace(text), Thread: r.Thread, Link: r.Link}
	if blocks := t.Lookup("blocks"); blocks != nil {
		raw, err := execute(blocks, r)
		if err != nil {
			return Content{}, err
		}
		if _, err := fitBlocks(json.RawMessage(raw)); err != nil {
			return Content{}, fmt.Errorf("notify: template %q: %w", "blocks", err)
		}
		c.Blocks = json.RawMessage(raw)
	}
	if c.Text == "" && c.Blocks == nil {
		return Content{}, errors.New("notify: template prints nothing")
	}
	return c, nil
}

// presentable is the report with its texts fit to be shown.
func (r Report) presentable() Report {
	r.RunID, r.Title, r.Phase = oneLine(r.RunID, maxValue), oneLine(r.Title, maxTitle), oneLine(r.Phase, maxValue)
	r.Error = cut(strings.TrimSpace(redact(r.Error, maxError)), maxError)
	link, ok := safeLink(r.Link)
	if !ok {
		link = ""
	}
	r.Link = link
	details := r.Details[:min(len(r.Details), 6)]
	r.Details = make([]Detail, len(details))
	for i, d := range details {
		r.Details[i] = Detail{oneLine(d.Label, maxLabel), oneLine(d.Value, maxValue)}
	}
	return r
}

func execute(t *template.Template, r Report) (string, error) {
	w := &boundedBuffer{}
	if err := t.Execute(w, r); err != nil {
		return "", fmt.Errorf("notify: run template: %w", err)
	}
	return w.String(), nil
}

// boundedBuffer ends a template that does not end.
type boundedBuffer struct{ bytes.Buffer }

func (b *boundedBuffer) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxTemplate {
		return 0, fmt.Errorf("more than %d bytes", maxTemplate)
	}
	return b.Buffer.Write(p)
}
