package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// SlackWebhook posts to one channel through a Slack incoming webhook. Slack says
// no more than "ok" about it: there is no ts and no metadata, so a message whose
// reply was lost cannot be looked for. It is uncertain, and the outbox's
// [Policy] decides; use [Slack] where that is not good enough. Construct it with
// [NewSlackWebhook]. It is safe for concurrent use.
type SlackWebhook struct {
	cfg  *destinationConfig
	post poster
	// url is a closure, so that no %+v of a destination prints it: who has a
	// webhook's URL may post.
	url func() string
}

// NewSlackWebhook returns a destination that posts to an incoming webhook's URL,
// which is a secret and shows in no error or log line.
//
// Options: [WithName] (defaults to "slack-webhook"), [WithTimeout],
// [WithHTTPClient]. The error wraps [ErrInvalid].
func NewSlackWebhook(url string, opts ...DestinationOption) (*SlackWebhook, error) {
	if _, err := checkURL("NewSlackWebhook", url); err != nil {
		return nil, err
	}
	cfg, err := newDestinationConfig("NewSlackWebhook", "slack-webhook", opts)
	if err != nil {
		return nil, err
	}
	return &SlackWebhook{
		cfg:  cfg,
		post: newPoster(cfg.client, cfg.timeout),
		url:  func() string { return url },
	}, nil
}

// Name implements [Destination].
func (w *SlackWebhook) Name() string { return w.cfg.name }

// Send implements [Destination] with one POST. Text, blocks and thread are as in
// [Slack.Send].
func (w *SlackWebhook) Send(ctx context.Context, m Message) (Receipt, error) {
	body, err := webhookBody(m)
	if err != nil {
		return Receipt{}, &SendError{Kind: KindPermanent, Err: fmt.Errorf("notify: slack webhook: %w", err)}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url(), bytes.NewReader(body))
	if err != nil {
		return Receipt{}, &SendError{Kind: KindPermanent, Err: fmt.Errorf("notify: slack webhook: %w", withoutURL(err))}
	}
	req.Header.Set("Content-Type", "application/json; charset=utf-8")
	r, err := w.post.do(req, maxReply)
	if err == nil {
		err = webhookVerdict(r)
	}
	if err != nil {
		return Receipt{}, prefixed("notify: slack webhook", err)
	}
	return Receipt{}, nil
}

func webhookBody(m Message) ([]byte, error) {
	text, blocks, err := slackBody(m)
	if err == nil && m.Thread != "" && !slackTS.MatchString(m.Thread) {
		err = fmt.Errorf("thread %q is no Slack ts", cut(m.Thread, 80))
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(struct {
		Text        string            `json:"text,omitempty"`
		Blocks      []json.RawMessage `json:"blocks,omitempty"`
		Thread      string            `json:"thread_ts,omitempty"`
		Parse       string            `json:"parse"`
		UnfurlLinks bool              `json:"unfurl_links"`
		UnfurlMedia bool              `json:"unfurl_media"`
	}{text, blocks, m.Thread, "none", false, false})
}

// webhookVerdict says what a reply means; nil is sent. Only Slack's own words
// and statuses that it uses for them are believed to be final.
func webhookVerdict(r reply) error {
	body := strings.TrimSpace(string(r.body))
	switch {
	case r.status == http.StatusOK && body == "ok" && r.cut == nil:
		return nil
	case r.status == http.StatusTooManyRequests:
		return r.rateLimited()
	case r.status < 300 || r.status >= 500:
		return r.failed(KindUncertain)
	case r.status == http.StatusRequestEntityTooLarge || webhookFinal(body):
		return r.failed(KindPermanent)
	}
	return r.failed(KindNotSent)
}

// webhookFinal says whether a body of a 4xx is one of Slack's final refusals.
func webhookFinal(body string) bool {
	switch body {
	case "action_prohibited", "channel_is_archived", "channel_not_found", "invalid_payload", "invalid_token",
		"no_active_hooks", "no_service", "no_service_id", "no_team", "no_text", "posting_to_general_channel_denied",
		"team_disabled", "too_many_attachments", "user_not_found":
		return true
	}
	return strings.HasPrefix(body, "invalid_blocks")
}
