package notify

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/nexuscore/onceq/notify/notifytest"
)

// Two megabytes of anything are cut to what Slack takes, and say so.
func TestSlackTrims(t *testing.T) {
	big := strings.Repeat("ä&😀 ", 100_000)
	section := func(text string) string {
		b, _ := json.Marshal(text)
		return `{"type":"section","text":{"type":"mrkdwn","text":` + string(b) + `}}`
	}
	long := strings.Repeat("x", 3001)
	many := "[" + strings.Repeat(`{"type":"divider"},`, 99) + `{"type":"divider"}]`
	for _, c := range []struct {
		name   string
		text   string
		blocks string
		check  func(t *testing.T, m notifytest.Message)
	}{
		{"text", big, "", func(t *testing.T, m notifytest.Message) {
			if !strings.HasSuffix(m.Text, "… (cut)") || strings.Contains(m.Text, "\uFFFD") {
				t.Errorf("text ends %q", m.Text[len(m.Text)-60:])
			}
		}},
		{"section", "", "[" + section(long) + "]", func(t *testing.T, m notifytest.Message) {
			if v := m.Visible(); !strings.HasSuffix(v, "… (cut)") {
				t.Errorf("section ends %q", v[len(v)-60:])
			}
		}},
		{"header, fields, context", "", `[{"type":"header","n":12345678901234567890,"text":{"type":"plain_text","text":"` + long + `"}},
			{"type":"section","fields":[` + strings.Repeat(`{"type":"mrkdwn","text":"`+long+`"},`, 11) + `{"type":"mrkdwn","text":"y"}]},
			{"type":"context","elements":[` + strings.Repeat(`{"type":"mrkdwn","text":"`+long+`"},`, 11) + `{"type":"mrkdwn","text":"y"}]}]`,
			func(t *testing.T, m notifytest.Message) {
				if n := strings.Count(m.Visible(), "x… (cut)"); n != 21 {
					t.Errorf("%d texts say that they were cut", n)
				}
				if !strings.Contains(string(m.Blocks), "12345678901234567890") {
					t.Errorf("a number changed: %s", m.Blocks)
				}
			}},
		{"many blocks", "", many, func(t *testing.T, m notifytest.Message) {
			if m.Visible() != "… (cut, 51 more blocks)" {
				t.Errorf("visible %q", m.Visible())
			}
		}},
		{"blocks that Slack cannot take", "plain", `{"type":"section"}`, func(t *testing.T, m notifytest.Message) {
			if m.Visible() != "plain" || m.Blocks != nil {
				t.Errorf("%+v", m)
			}
		}},
		{"blocks that are huge", "plain", `[{"type":"rich_text","elements":["` + big + `"]}]`, func(t *testing.T, m notifytest.Message) {
			if m.Visible() != "plain" || m.Blocks != nil {
				t.Errorf("visible %q", m.Visible())
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			fake := fakeSlack(t)
			m := hello("id-1")
			m.Text, m.Blocks = c.text, json.RawMessage(c.blocks)
			if _, err := slackTo(t, fake).Send(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			c.check(t, fake.Seen(notifytest.Channel)[0])
		})
	}
}
