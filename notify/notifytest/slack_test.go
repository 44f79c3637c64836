package notifytest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/slack-go/slack"

	"github.com/nexuscore/onceq/internal/setting"
	"github.com/nexuscore/onceq/notify/notifytest"
)

func start(t *testing.T, opts ...notifytest.Option) (*notifytest.Slack, *slack.Client) {
	t.Helper()
	fake, err := notifytest.NewSlack(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	return fake, slack.New(notifytest.Token, slack.OptionAPIURL(fake.URL()), slack.OptionHTTPClient(fake.HTTPClient()))
}

func post(api *slack.Client, text string, opts ...slack.MsgOption) (string, error) {
	_, ts, err := api.PostMessage(notifytest.Channel, append(opts, slack.MsgOptionText(text, false))...)
	return ts, err
}

func texts(messages []notifytest.Message) []string {
	var all []string
	for _, m := range messages {
		all = append(all, m.Text)
	}
	return all
}

func meta(key string) slack.MsgOption {
	return slack.MsgOptionMetadata(slack.SlackMetadata{EventType: "test", EventPayload: map[string]any{"key": key}})
}

func TestSlackGoClientPostsAndReadsBack(t *testing.T) {
	fake, api := start(t)
	me, err := api.AuthTest()
	if err != nil || me.UserID != notifytest.BotUser {
		t.Fatalf("AuthTest = %+v, %v", me, err)
	}
	root, err := post(api, "root", meta("k1"), slack.MsgOptionBlocks(
		slack.NewSectionBlock(slack.NewTextBlockObject("mrkdwn", "a &amp; b", false, false), nil, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := post(api, "reply", meta("k2"), slack.MsgOptionTS(root)); err != nil {
		t.Fatal(err)
	}
	if _, err := post(api, "shown", slack.MsgOptionTS(root), slack.MsgOptionBroadcast()); err != nil {
		t.Fatal(err)
	}

	seen := fake.Seen(notifytest.Channel)
	if diff := cmp.Diff([]string{"root", "reply", "shown"}, texts(seen)); diff != "" {
		t.Errorf("seen: %s", diff)
	}
	if got := seen[0].Visible(); got != "a & b" {
		t.Errorf("Visible = %q", got)
	}
	if seen[0].TS != root || seen[1].ThreadTS != root || seen[1].Metadata.EventPayload["key"] != "k2" {
		t.Errorf("seen = %+v", seen)
	}

	page, err := api.GetConversationHistory(&slack.GetConversationHistoryParameters{ChannelID: notifytest.Channel, IncludeAllMetadata: true})
	if err != nil {
		t.Fatal(err)
	}
	var history []string
	for _, m := range page.Messages {
		history = append(history, m.Text)
	}
	if diff := cmp.Diff([]string{"shown", "root"}, history); diff != "" {
		t.Errorf("history is newest first and without replies: %s", diff)
	}
	if got := page.Messages[1].Metadata.EventPayload["key"]; got != "k1" {
		t.Errorf("metadata key = %v", got)
	}
	thread, _, _, err := api.GetConversationReplies(&slack.GetConversationRepliesParameters{ChannelID: notifytest.Channel, Timestamp: root})
	if err != nil {
		t.Fatal(err)
	}
	var replies []string
	for _, m := range thread {
		replies = append(replies, m.Text)
		if m.Metadata.EventType != "" {
			t.Errorf("metadata given although nobody asked: %+v", m.Metadata)
		}
	}
	if diff := cmp.Diff([]string{"root", "reply", "shown"}, replies); diff != "" {
		t.Errorf("replies: %s", diff)
	}
}

func TestRefusals(t *testing.T) {
	long := strings.Repeat("ä", 4001)
	section := func(n int) slack.Block {
		return slack.NewSectionBlock(slack.NewTextBlockObject("mrkdwn", strings.Repeat("x", n), false, false), nil, nil)
	}
	many := make([]slack.Block, 51)
	for i := range many {
		many[i] = slack.NewDividerBlock()
	}
	for _, c := range []struct {
		name    string
		token   string
		channel string
		prepare func(*notifytest.Slack)
		opts    []slack.MsgOption
		want    string
	}{
		{name: "no text", opts: nil, want: "no_text"},
		{name: "long", opts: []slack.MsgOption{slack.MsgOptionText(long, false)}, want: "msg_too_long"},
		{name: "long section", opts: []slack.MsgOption{slack.MsgOptionBlocks(section(3001))}, want: "invalid_blocks"},
		{name: "many blocks", opts: []slack.MsgOption{slack.MsgOptionBlocks(many...)}, want: "invalid_blocks"},
		{name: "metadata without payload", opts: []slack.MsgOption{slack.MsgOptionText("x", false), slack.MsgOptionMetadata(slack.SlackMetadata{EventType: "t"})}, want: "invalid_metadata_format"},
		{name: "token", token: "xoxb-other", want: "invalid_auth"},
		{name: "channel", channel: "C0NONE", opts: []slack.MsgOption{slack.MsgOptionText("x", false)}, want: "channel_not_found"},
		{name: "name", channel: "#general", opts: []slack.MsgOption{slack.MsgOptionText("x", false)}, want: "channel_not_found"},
		{name: "archived", prepare: func(s *notifytest.Slack) { s.Archive(notifytest.Channel) }, opts: []slack.MsgOption{slack.MsgOptionText("x", false)}, want: "is_archived"},
		{name: "kicked", prepare: func(s *notifytest.Slack) { s.Kick(notifytest.Channel) }, opts: []slack.MsgOption{slack.MsgOptionText("x", false)}, want: "not_in_channel"},
	} {
		t.Run(c.name, func(t *testing.T) {
			fake, api := start(t)
			if c.token != "" {
				api = slack.New(c.token, slack.OptionAPIURL(fake.URL()), slack.OptionHTTPClient(fake.HTTPClient()))
			}
			if c.prepare != nil {
				c.prepare(fake)
			}
			channel := notifytest.Channel
			if c.channel != "" {
				channel = c.channel
			}
			_, _, err := api.PostMessage(channel, c.opts...)
			if err == nil || err.Error() != c.want {
				t.Errorf("error = %v, want %s", err, c.want)
			}
			if n := len(fake.Seen(notifytest.Channel)); n != 0 {
				t.Errorf("%d messages in the channel", n)
			}
		})
	}
}

func TestScopes(t *testing.T) {
	_, api := start(t, notifytest.WithScopes("chat:write"), notifytest.WithChannel("G0PRIVATE"))
	for channel, needed := range map[string]string{notifytest.Channel: "channels:history", "G0PRIVATE": "groups:history"} {
		_, err := api.GetConversationHistory(&slack.GetConversationHistoryParameters{ChannelID: channel})
		var no slack.SlackErrorResponse
		if !errors.As(err, &no) || no.Err != "missing_scope" || no.Needed != needed || no.Provided != "chat:write" {
			t.Errorf("%s: %#v", channel, err)
		}
	}
	_, api = start(t, notifytest.WithScopes())
	if _, err := post(api, "x"); err == nil || err.Error() != "missing_scope" {
		t.Errorf("post = %v", err)
	}
}

func TestPagesSpanAndForeignMessages(t *testing.T) {
	fake, _ := start(t, notifytest.WithMaxPage(2))
	var ts []string
	for i := range 5 {
		id, err := fake.Say(notifytest.Channel, notifytest.Message{User: "U1", Text: fmt.Sprint("m", i)})
		if err != nil {
			t.Fatal(err)
		}
		ts = append(ts, id)
	}
	if _, err := fake.Say("C0NONE", notifytest.Message{}); err == nil {
		t.Error("said something in a channel that does not exist")
	}
	odd, err := fake.Say(notifytest.Channel, notifytest.Message{Raw: json.RawMessage(`{"type":"message","text":7,"odd":[]}`)})
	if err != nil {
		t.Fatal(err)
	}
	get := func(args string) (list []string, cursor string) {
		t.Helper()
		resp, err := fake.HTTPClient().Get(fake.URL() + "conversations.history?token=" + notifytest.Token + "&channel=" + notifytest.Channel + args)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var page struct {
			OK       bool
			Messages []struct {
				TS   string
				Text any
			}
			HasMore bool `json:"has_more"`
			Meta    struct {
				Cursor string `json:"next_cursor"`
			} `json:"response_metadata"`
		}
		if err := json.NewDecoder(resp.Body).Decode(&page); err != nil || !page.OK {
			t.Fatalf("page %+v, %v", page, err)
		}
		if page.HasMore != (page.Meta.Cursor != "") {
			t.Errorf("has_more %v with cursor %q", page.HasMore, page.Meta.Cursor)
		}
		for _, m := range page.Messages {
			list = append(list, m.TS)
		}
		return list, page.Meta.Cursor
	}
	first, cursor := get("&oldest=" + ts[1])
	if _, err := fake.Say(notifytest.Channel, notifytest.Message{Text: "a new one does not shift the pages"}); err != nil {
		t.Fatal(err)
	}
	second, cursor := get("&oldest=" + ts[1] + "&cursor=" + url.QueryEscape(cursor))
	if cursor != "" {
		t.Errorf("cursor after the last page")
	}
	if diff := cmp.Diff([]string{odd, ts[4], ts[3], ts[2]}, append(first, second...)); diff != "" {
		t.Errorf("two pages: %s", diff)
	}
	if list, _ := get("&inclusive=true&limit=9&latest=" + ts[1]); len(list) != 2 || list[0] != ts[1] {
		t.Errorf("inclusive latest = %v", list)
	}
	fake.Delete(notifytest.Channel, ts[0])
	if list, _ := get("&latest=" + ts[1]); len(list) != 0 {
		t.Errorf("deleted message is still there: %v", list)
	}
}

func TestDownAndUp(t *testing.T) {
	for _, opts := range [][]notifytest.Option{nil, {notifytest.WithMemory()}} {
		fake, api := start(t, opts...)
		fake.Down()
		fake.Down()
		if _, err := post(api, "x"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("down: %v", err)
		}
		for range 2 {
			if err := fake.Up(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := post(api, "x"); err != nil {
			t.Errorf("up: %v", err)
		}
		if n := fake.Calls("chat.postMessage"); n != 1 {
			t.Errorf("calls = %d", n)
		}
	}
}

func TestVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, err := notifytest.NewSlack(notifytest.WithMemory(), notifytest.WithHistoryLag(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		defer fake.Close()
		client := *fake.HTTPClient()
		client.Timeout = 10 * time.Second
		api := slack.New(notifytest.Token, slack.OptionAPIURL(fake.URL()), slack.OptionHTTPClient(&client))
		begin := time.Now()

		fake.Limit("chat.postMessage", 1, 1500*time.Millisecond)
		if _, err := post(api, "one"); err != nil {
			t.Fatal(err)
		}
		_, err = post(api, "two")
		var over *slack.RateLimitedError
		if !errors.As(err, &over) || over.RetryAfter != 2*time.Second {
			t.Fatalf("second in a second and a half: %v", err)
		}
		time.Sleep(over.RetryAfter)
		if _, err := post(api, "two"); err != nil {
			t.Fatal(err)
		}
		fake.Limit("chat.postMessage", 0, 0)

		history := func() int {
			page, err := api.GetConversationHistory(&slack.GetConversationHistoryParameters{ChannelID: notifytest.Channel})
			if err != nil {
				t.Fatal(err)
			}
			return len(page.Messages)
		}
		if n := history(); n != 0 {
			t.Errorf("history shows %d messages before its lag", n)
		}
		time.Sleep(time.Minute)
		if n := history(); n != 2 {
			t.Errorf("history shows %d messages", n)
		}

		at := time.Now()
		fake.Script("chat.postMessage", notifytest.Slow(5*time.Second), notifytest.AcceptThenHang, notifytest.Hang)
		if _, err := post(api, "slow"); err != nil || time.Since(at) != 5*time.Second {
			t.Errorf("slow: %v after %s", err, time.Since(at))
		}
		for range 2 {
			if _, err := post(api, "hang"); err == nil {
				t.Error("a hanging call came back")
			}
		}
		if n := len(fake.Seen(notifytest.Channel)); n != 4 {
			t.Errorf("seen %d", n)
		}
		if d := time.Since(begin); d != 87*time.Second {
			t.Errorf("took %s", d)
		}
	})
}

func TestCloseEndsHangingCalls(t *testing.T) {
	fake, api := start(t)
	fake.Script("chat.postMessage", notifytest.AcceptThenHang, notifytest.Slow(time.Hour))
	errs := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := post(api, "x")
			errs <- err
		}()
	}
	for fake.Calls("chat.postMessage") < 2 {
		time.Sleep(time.Millisecond) // the calls are made by others; nothing signals them
	}
	fake.Close()
	fake.Close()
	for range 2 {
		if err := <-errs; err == nil {
			t.Error("a hanging call succeeded")
		}
	}
}

func TestWebhook(t *testing.T) {
	fake, _ := start(t)
	send := func(url, body string) string {
		t.Helper()
		resp, err := fake.HTTPClient().Post(url, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(resp.StatusCode, " ", string(b))
	}
	hook := fake.WebhookURL(notifytest.Channel)
	var got []string
	got = append(got, send(hook, `{"text":"hi <!here>"}`), send(hook, `nonsense`), send(hook, `{}`), send(fake.WebhookURL("C0NONE"), `{"text":"x"}`))
	fake.Script("webhook", notifytest.AcceptThenStatus(500))
	got = append(got, send(hook, `{"text":"two"}`)[:3])
	fake.Archive(notifytest.Channel)
	got = append(got, send(hook, `{"text":"x"}`))
	want := []string{"200 ok", "400 invalid_payload", "400 no_text", "404 no_service", "500", "410 channel_is_archived"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	seen := fake.Seen(notifytest.Channel)
	if diff := cmp.Diff([]string{"hi <!here>", "two"}, texts(seen)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"<!here>"}, seen[0].Mentions()); diff != "" || !seen[0].Webhook {
		t.Errorf("%s %+v", diff, seen[0])
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, opt := range []notifytest.Option{notifytest.WithChannel("general"), notifytest.WithMaxPage(0), notifytest.WithHistoryLag(-1), nil} {
		s, err := notifytest.NewSlack(opt)
		if err == nil {
			s.Close()
		}
		if !errors.Is(err, setting.ErrInvalid) {
			t.Errorf("got %v, want ErrInvalid", err)
		}
	}
}
