package notify

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"
)

// Report is what there is to say about a run that ended. All fields but RunID may
// be zero; what is zero is left out of the message. Texts come from strangers as
// often as not: builders escape them, cut them, and take out what looks like a
// password or an API key.
type Report struct {
	RunID    string
	Title    string        // what the run was for, in a line
	Took     time.Duration // from the first attempt to the end
	Attempts int
	// Phase is the phase that failed, or the last that ran; Done of Phases were
	// finished.
	Phase  string
	Done   int
	Phases int
	// Error is why the run failed.
	Error string
	Cost  Cost
	// Link leads to the run; http or https.
	Link string
	// Thread is the message to answer, see [Content].
	Thread string
	// Details are added as they are, at most six.
	Details []Detail
}

// Cost is what a run paid for its calls.
type Cost struct {
	USD    float64
	Saved  float64 // USD that were not paid again
	Calls  int64
	Tokens int64
}

// Detail is one more line of a message.
type Detail struct{ Label, Value string }

// Builder makes a message of a report. [RunFinished] and [RunFailed] are
// builders, [ParseTemplate] makes one, and any function may be one.
type Builder func(Report) (Content, error)

// RunFinished says that a run finished: what, how long it took and what it cost,
// with a link. The error is always nil.
func RunFinished(r Report) (Content, error) { return build("✅ Run finished", r, false), nil }

// RunFailed says that a run failed, in which phase and why. The error is always
// nil.
func RunFailed(r Report) (Content, error) { return build("❌ Run failed", r, true), nil }

// Lengths of the parts, in characters: one look is enough for each.
const (
	maxTitle = 300
	maxLabel = 60
	maxValue = 300
	maxError = 1500
)

// line is one labelled line of a message, not yet escaped.
type line struct{ label, value string }

func build(what string, r Report, failed bool) Content {
	r = r.presentable()
	if r.Title == "" {
		r.Title = r.RunID
	}
	if !failed {
		r.Error = ""
	}
	lines := r.lines(failed)
	return Content{
		Text:   r.plainText(what, lines),
		Blocks: r.slackBlocks(what, lines),
		Thread: r.Thread,
		Link:   r.Link,
	}
}

// lines are the facts that fit on a line each.
func (r Report) lines(failed bool) []line {
	var all []line
	add := func(label, value string) {
		if value != "" {
			all = append(all, line{label, value})
		}
	}
	phase := r.Phase
	if r.Phases > 0 {
		phase = strings.TrimSpace(fmt.Sprintf("%s (%d of %d done)", phase, r.Done, r.Phases))
	}
	if failed || r.Phases == 0 || r.Done < r.Phases {
		add("Phase", phase)
	}
	add("Took", took(r.Took))
	if r.Attempts > 1 {
		add("Attempts", fmt.Sprint(r.Attempts))
	}
	add("Cost", r.Cost.String())
	for _, d := range r.Details {
		add(d.Label, d.Value)
	}
	return all
}

// plainText is the message without blocks. The link is not in it: destinations
// without blocks add [Content].Link.
func (r Report) plainText(what string, lines []line) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", what, r.Title)
	if r.RunID != r.Title {
		fmt.Fprintf(&b, "\nRun: %s", r.RunID)
	}
	for _, l := range lines {
		fmt.Fprintf(&b, "\n%s: %s", l.label, l.value)
	}
	if r.Error != "" {
		fmt.Fprintf(&b, "\nError: %s", r.Error)
	}
	return b.String()
}

// slackBlocks is the message as Slack blocks.
func (r Report) slackBlocks(what string, lines []line) json.RawMessage {
	about := EscapeSlack(r.Title)
	if r.RunID != r.Title {
		about += "\n`" + inCode(r.RunID) + "`"
	}
	blocks := []any{
		map[string]any{"type": "header", "text": map[string]any{"type": "plain_text", "text": what}},
	}
	if about != "" {
		blocks = append(blocks, section(about))
	}
	if len(lines) > 0 {
		fields := make([]any, len(lines))
		for i, l := range lines {
			fields[i] = mrkdwn("*" + EscapeSlack(l.label) + "*\n" + EscapeSlack(l.value))
		}
		blocks = append(blocks, map[string]any{"type": "section", "fields": fields})
	}
	if r.Error != "" {
		blocks = append(blocks, section("*Error*\n```\n"+inCode(r.Error)+"\n```"))
	}
	if l, ok := slackLink(r.Link, "Open the run"); ok {
		blocks = append(blocks, section(l))
	}
	raw, err := json.Marshal(blocks)
	if err != nil { // strings in maps always encode
		return nil
	}
	return raw
}

func section(text string) map[string]any {
	return map[string]any{"type": "section", "text": mrkdwn(text)}
}

// mrkdwn is verbatim: else Slack turns @here and #general in a stranger's words
// into mentions and links.
func mrkdwn(text string) map[string]any {
	return map[string]any{"type": "mrkdwn", "text": cut(text, slackField), "verbatim": true}
}

// inCode escapes text for a code span or block, which it cannot leave.
func inCode(s string) string { return strings.ReplaceAll(EscapeSlack(s), "`", "'") }

// oneLine is a redacted text without line breaks.
func oneLine(s string, limit int) string {
	return cut(strings.Join(strings.Fields(redact(s, limit)), " "), limit)
}

// took words a duration for people.
func took(d time.Duration) string {
	switch {
	case d <= 0:
		return ""
	case d < time.Second:
		return "under a second"
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm %ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh %dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd %dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// String words the cost for people, for example "$1.23 (14 calls, 120,000
// tokens; $0.40 saved)"; it is empty for the zero value. What is no amount (not above
// 0, infinite, no number) is left out.
func (c Cost) String() string {
	c.USD, c.Saved = amount(c.USD), amount(c.Saved)
	var parts []string
	if c.Calls > 0 {
		parts = append(parts, plural(c.Calls, "call"))
	}
	if c.Tokens > 0 {
		parts = append(parts, plural(c.Tokens, "token"))
	}
	detail := strings.Join(parts, ", ")
	if c.Saved > 0 {
		if detail != "" {
			detail += "; "
		}
		detail += usd(c.Saved) + " saved"
	}
	switch {
	case c.USD == 0:
		return detail
	case detail == "":
		return usd(c.USD)
	}
	return usd(c.USD) + " (" + detail + ")"
}

// amount is v, or 0 where it is none.
func amount(v float64) float64 {
	if v > 0 && !math.IsInf(v, 0) { // NaN is not above 0
		return v
	}
	return 0
}

func usd(v float64) string {
	switch {
	case v < 0.01:
		return "under $0.01"
	case v >= 1e9:
		return "over $1,000,000,000"
	}
	return fmt.Sprintf("$%.2f", v)
}

func plural(n int64, what string) string {
	s := group(n) + " " + what
	if n != 1 {
		s += "s"
	}
	return s
}

// group writes a number with commas.
func group(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
