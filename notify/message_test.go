package notify

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/nexuscore/onceq/notify/notifytest"
)

var failedReport = Report{
	RunID: "orchestrator-run-42", Title: "Add a login page", Took: 12*time.Minute + 3*time.Second, Attempts: 3,
	Phase: "testing", Done: 5, Phases: 7, Error: "tests failed:\n  TestLogin: want <200>, got 500",
	Cost: Cost{USD: 1.234, Saved: 0.4, Calls: 14, Tokens: 120_000},
	Link: "https://example.com/runs/42?a=1&b=2", Thread: "1700000000.000100",
	Details: []Detail{{"Branch", "feature/login"}, {"Empty", ""}},
}

func TestRunFailedText(t *testing.T) {
	c, err := RunFailed(failedReport)
	if err != nil {
		t.Fatal(err)
	}
	want := `❌ Run failed: Add a login page
Run: orchestrator-run-42
Phase: testing (5 of 7 done)
Took: 12m 3s
Attempts: 3
Cost: $1.23 (14 calls, 120,000 tokens; $0.40 saved)
Branch: feature/login
Error: tests failed:
  TestLogin: want <200>, got 500`
	if diff := cmp.Diff(want, c.Text); diff != "" {
		t.Error(diff)
	}
	if c.Link != failedReport.Link || c.Thread != failedReport.Thread {
		t.Errorf("%+v", c)
	}
}

// What a builder makes is taken by Slack and shows there what it should.
func TestReportsInSlack(t *testing.T) {
	fake := fakeSlack(t)
	s := slackTo(t, fake)
	finished := failedReport
	finished.Done, finished.Error, finished.Thread, finished.Attempts = 7, "left over", "", 1
	for _, build := range []func() (Content, error){
		func() (Content, error) { return RunFinished(finished) },
		func() (Content, error) { return RunFailed(failedReport) },
		func() (Content, error) { return RunFinished(Report{RunID: "bare"}) },
	} {
		c, err := build()
		if err != nil {
			t.Fatal(err)
		}
		c.Thread = ""
		m := hello("id-1")
		m.Content = c
		if _, err := s.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{`✅ Run finished
Add a login page
` + "`orchestrator-run-42`" + `
*Took*
12m 3s
*Cost*
$1.23 (14 calls, 120,000 tokens; $0.40 saved)
*Branch*
feature/login
<https://example.com/runs/42?a=1&b=2|Open the run>`, `❌ Run failed
Add a login page
` + "`orchestrator-run-42`" + `
*Phase*
testing (5 of 7 done)
*Took*
12m 3s
*Attempts*
3
*Cost*
$1.23 (14 calls, 120,000 tokens; $0.40 saved)
*Branch*
feature/login
*Error*
` + "```" + `
tests failed:
  TestLogin: want <200>, got 500
` + "```" + `
<https://example.com/runs/42?a=1&b=2|Open the run>`, `✅ Run finished
bare`}
	var got []string
	for _, m := range fake.Seen(notifytest.Channel) {
		got = append(got, m.Visible())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Strangers' words mention nobody, break out of nothing and carry no secrets.
func TestReportsFromStrangers(t *testing.T) {
	evil := "<!channel> <!here|x> <@U123> @everyone ```out``` `x` <https://evil.test|click> &lt;!channel&gt; \x00\x1b[31m \xff"
	secret := "sk-proj-abcdefghijklmnop"
	long := strings.Repeat("😀<", 10_000)
	r := Report{
		RunID: evil + long, Title: evil + secret + long, Phase: evil, Phases: 3, Error: secret + "\n" + evil + long,
		Link: "javascript:alert(1)", Took: 1, Details: []Detail{{evil, long}, {long, evil}, {"k", secret}, {"a", "b"}, {"a", "b"}, {"a", "b"}, {"too", "many"}},
	}
	for name, build := range map[string]Builder{"finished": RunFinished, "failed": RunFailed, "template": mustParse(t,
		`{{.Title}} {{.Error}} {{.Link}}{{define "blocks"}}[{"type":"section","text":{"type":"mrkdwn","text":{{json (slack .Error)}}}}]{{end}}`)} {
		c, err := build(r)
		if err != nil {
			t.Fatal(err)
		}
		shown := c.Text + string(c.Blocks)
		if strings.Contains(shown, secret[:12]) || strings.Contains(shown, "javascript") || c.Link != "" {
			t.Errorf("%s shows a secret or a link that is none: %s", name, shown)
		}
		fake := fakeSlack(t)
		m := hello("id-1")
		m.Content = c
		if _, err := slackTo(t, fake).Send(t.Context(), m); err != nil {
			t.Fatalf("%s: Slack refuses it: %v", name, err)
		}
		seen := fake.Seen(notifytest.Channel)[0]
		if mentions := seen.Mentions(); len(mentions) != 0 {
			t.Errorf("%s mentions %q", name, mentions)
		}
		if strings.Contains(seen.Text+string(seen.Blocks), "@everyone") {
			t.Errorf("%s calls everyone", name)
		}
		if b := string(seen.Blocks); name != "template" && strings.Count(b, "mrkdwn") != strings.Count(b, `"verbatim":true`) {
			t.Errorf("%s lets Slack look for names: %s", name, b)
		}
		if seen.Blocks == nil {
			t.Errorf("%s: blocks were left out", name)
		}
		if name == "failed" && strings.Count(seen.Visible(), "'''out'''") != 2 { // in the run's ID and the error
			t.Errorf("the error leaves its code block: %s", seen.Blocks)
		}
	}
}

func mustParse(t *testing.T, text string) Builder {
	t.Helper()
	b, err := ParseTemplate(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRedact(t *testing.T) {
	for in, want := range map[string]string{
		"dial postgres://app:s3cr3t@db:5432/x failed":                             "dial postgres://app:[hidden]@db:5432/x failed",
		"redis://:hunter2@cache:6379":                                             "redis://:[hidden]@cache:6379",
		"401: Incorrect API key provided: sk-proj-abc***wxyz":                     "401: Incorrect API key provided: [hidden]",
		"sk-ant-api03-AbCdEf_123-456":                                             "[hidden]",
		"Authorization: Bearer abcdefghijkl":                                      "Authorization: [hidden] [hidden]",
		"header bearer abcdefghijkl.mnop":                                         "header bearer [hidden]",
		`{"api_key": "12345678", "user": "ann"}`:                                  `{"api_key": "[hidden]", "user": "ann"}`,
		"DB_PASSWORD=hunter22 HOME=/root":                                         "DB_PASSWORD=[hidden] HOME=/root",
		"password: p4ssw0rd; host=db":                                             "password: [hidden]; host=db",
		"https://x.test/?token=abcdef&page=2":                                     "https://x.test/?token=[hidden]&page=2",
		"xoxb-123456-abcdef and ghp_abcdefghijklmnopqrst":                         "[hidden] and [hidden]",
		"AKIAIOSFODNN7EXAMPLE":                                                    "[hidden]",
		"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-_":                              "[hidden]",
		"post https://hooks.slack.com/services/T/B/x: timeout":                    "post https://hooks.slack.com/[hidden] timeout",
		"-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----\nok": "[hidden]\nok",
		"risk-taking task-based 120,000 tokens: fine":                             "risk-taking task-based 120,000 tokens: fine",
		"input_tokens: 1234":                                                      "input_tokens: 1234",
		"":                                                                        "",
	} {
		if got := redact(in, 1000); got != want {
			t.Errorf("redact(%q)\n got %q\nwant %q", in, got, want)
		}
	}
}

func TestSlackLink(t *testing.T) {
	for in, want := range map[string]string{
		"https://example.com/a?b=1&c=<d>|e":                "<https://example.com/a?b=1&amp;c=%3Cd%3E%7Ce|x>",
		"https://ann:s3cret@example.com/":                  "<https://example.com/|x>",
		"javascript:alert(1)":                              "",
		"//example.com":                                    "",
		"https://":                                         "",
		"https://example.com/" + strings.Repeat("a", 2000): "",
		"": "",
	} {
		got, ok := slackLink(in, "x")
		if got != want || ok != (want != "") {
			t.Errorf("slackLink(%q) = %q, %v", in, got, ok)
		}
	}
}

func TestTook(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "", -1: "", time.Millisecond: "under a second", 59900 * time.Millisecond: "59s", 60 * time.Second: "1m 0s",
		3*time.Hour + 5*time.Minute + 50*time.Second: "3h 5m", 49 * time.Hour: "2d 1h",
	} {
		if got := took(d); got != want {
			t.Errorf("took(%d) = %q, want %q", d, got, want)
		}
	}
}

func TestCost(t *testing.T) {
	for want, c := range map[string]Cost{
		"":                                       {},
		"$1.50":                                  {USD: 1.5},
		"under $0.01 (1 call)":                   {USD: 0.001, Calls: 1},
		"1,234,567 tokens":                       {Tokens: 1_234_567},
		"$0.40 saved":                            {Saved: 0.4},
		"$12.00 (2 calls, 1 token; $0.10 saved)": {USD: 12, Saved: 0.1, Calls: 2, Tokens: 1},
		"3 calls":                                {USD: math.NaN(), Saved: math.Inf(1), Calls: 3},
		"4 calls":                                {USD: math.Inf(1), Saved: math.NaN(), Calls: 4},
		"5 calls":                                {USD: math.Inf(-1), Saved: -1, Calls: 5},
		"over $1,000,000,000 (over $1,000,000,000 saved)": {USD: 1e308, Saved: 1e9},
		"$999999999.00": {USD: 999_999_999},
	} {
		if got := c.String(); got != want {
			t.Errorf("%+v = %q, want %q", c, got, want)
		}
	}
}

func TestParseTemplate(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"syntax":          {"{{.Title", "ParseTemplate: template: message:1"},
		"unknown field":   {"{{.Titel}}", "Titel"},
		"prints nothing":  {"  {{- if .Failed}}x{{end}}", "Failed"},
		"nothing":         {" ", "prints nothing"},
		"blocks, no JSON": {`x{{define "blocks"}}[{]{{end}}`, "blocks are no JSON array"},
		"endless":         {`{{define "a"}}xxxxxxxxxxxxxxxx{{template "a"}}{{end}}{{template "a"}}`, "more than 65536 bytes"},
	} {
		if _, err := ParseTemplate(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	b := mustParse(t, `Run {{.RunID}} took {{took .Took}}{{range .Details}}, {{.Label}}={{.Value}}{{end}}`)
	c, err := b(failedReport)
	if err != nil {
		t.Fatal(err)
	}
	want := Content{Text: "Run orchestrator-run-42 took 12m 3s, Branch=feature/login, Empty=", Thread: failedReport.Thread, Link: failedReport.Link}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Error(diff)
	}
}

func TestCut(t *testing.T) {
	for _, c := range []struct {
		in    string
		limit int
		want  string
	}{
		{"short", 40, "short"},
		{"äöü", 3, "äöü"},
		{"äöüß", 3, "äöü"},
		{"a😀b", 2, "a"},
		{"ab&amp;cd", 5, "ab"},
		{"ab & cd", 5, "ab "}, // for all we know it begins an escape
		{"ab <https://x.test|y> cd", 8, "ab "},
		{"1 < 2 and more", 8, "1 < 2 an"},
		{strings.Repeat("x", 21), 20, "xxxxxxxx… (cut)"},
		{"```" + strings.Repeat("x", 100), 20, "```xxxxx\n```\n… (cut)"},
	} {
		if got := cut(c.in, c.limit); got != c.want {
			t.Errorf("cut(%q, %d) = %q, want %q", c.in, c.limit, got, c.want)
		}
	}
}

// Whatever the text: what is posted fits, is valid, and escapes stay whole.
func FuzzCutEscaped(f *testing.F) {
	for _, s := range []string{"", "plain", "<!channel> & ```code", "\xff\xfe", "😀😀😀", strings.Repeat("a&", 50), "@here", "&amp;amp;", "```\n<https://x|y>"} {
		for _, n := range []int{1, 5, 20, 21, 60} {
			f.Add(s, n)
		}
	}
	f.Fuzz(func(t *testing.T, s string, limit int) {
		if limit < 1 || limit > 5000 {
			t.Skip()
		}
		escaped := EscapeSlack(s)
		got := cut(escaped, limit)
		if width(got) > limit {
			t.Errorf("%d characters, %d allowed: %q", width(got), limit, got)
		}
		if !utf8.ValidString(got) {
			t.Errorf("no UTF-8: %q", got)
		}
		if strings.ContainsAny(got, "<>") || strings.Contains(got, "@channel") || strings.Contains(got, "@here") || strings.Contains(got, "@everyone") {
			t.Errorf("not escaped: %q", got)
		}
		rest := strings.NewReplacer("&amp;", "", "&lt;", "", "&gt;", "").Replace(got)
		if strings.Contains(rest, "&") {
			t.Errorf("an escape is cut: %q", got)
		}
		if limit >= 20 && strings.Count(escaped, "```")%2 == 0 && strings.Count(got, "```")%2 != 0 {
			t.Errorf("an open code block: %q", got)
		}
		if width(escaped) <= limit && got != escaped {
			t.Errorf("cut although it fits: %q", got)
		}
	})
}

// Whatever the blocks: what is posted is a list that Slack's limits allow.
func FuzzFitBlocks(f *testing.F) {
	f.Add([]byte(`[{"type":"section","text":{"type":"mrkdwn","text":"x"}}]`))
	f.Add([]byte(`[{"type":"header","text":7},{"type":"context","elements":{}},{"type":"section","fields":[null,1]}]`))
	f.Add([]byte(fmt.Sprintf(`[{"type":"section","text":{"text":%q}}]`, strings.Repeat("é&", 4000))))
	f.Fuzz(func(t *testing.T, raw []byte) {
		blocks, err := fitBlocks(json.RawMessage(raw))
		if err != nil {
			return
		}
		out, err := json.Marshal(blocks)
		if err != nil || len(blocks) > slackBlocks || len(out) > 2*slackBlocksSize {
			t.Errorf("%d blocks, %d bytes, %v", len(blocks), len(out), err)
		}
		again, err := fitBlocks(out)
		if err != nil {
			t.Fatal(err)
		}
		twice, err := json.Marshal(again)
		if err != nil || string(twice) != string(out) {
			t.Errorf("fitting twice differs: %v\n%s\n%s", err, out, twice)
		}
	})
}
