package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/slack-go/slack"

	"github.com/nexuscore/onceq/internal/setting"
)

// metadataType marks our messages in a channel's history. A changed value
// makes messages in flight at the deploy unfindable.
const metadataType = "onceq_notification"

var (
	channelIDs = regexp.MustCompile(`^[CGD][A-Z0-9]{2,63}$`)
	slackTS    = regexp.MustCompile(`^[0-9]{1,12}\.[0-9]{6}$`)
)

// Slack posts to one channel through Slack's Web API and can find what it posted
// in the channel's history, so that a message whose reply was lost is not sent
// twice. Construct it with [NewSlack]. It is safe for concurrent use.
type Slack struct {
	cfg     *destinationConfig
	channel string
	post    poster
	// token is a closure, so that no %+v of a destination prints it.
	token func() string
}

// NewSlack returns a destination that posts to a channel as the bot of the
// token. It needs the scopes chat:write and, to find its own messages,
// channels:history for a public channel, groups:history for a private one or
// im:history for direct messages; [Slack.Check] says whether they are there.
//
// channelID is the channel's ID (C…, G… or D…), not its name: names change, and
// history can be asked for IDs only. It stands at the end of "View channel
// details" in Slack.
//
// Options: [WithName] (defaults to "slack-" and the channel), [WithTimeout],
// [WithHTTPClient], [WithAPIURL], [WithHistoryPages]. The error wraps [ErrInvalid].
func NewSlack(token, channelID string, opts ...DestinationOption) (*Slack, error) {
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, setting.Invalidf("NewSlack: the token is empty or has characters that no token has")
	}
	if !channelIDs.MatchString(channelID) {
		return nil, setting.Invalidf("NewSlack: channel %q is no channel ID such as C0123456789: "+
			"an ID begins with C, G or D; a name would work for posting until somebody renames the channel, "+
			"and never for finding out whether a message arrived", channelID)
	}
	cfg, err := newDestinationConfig("NewSlack", "slack-"+channelID, opts, "WithAPIURL", "WithHistoryPages")
	if err != nil {
		return nil, err
	}
	if _, err := checkURL("NewSlack", cfg.apiURL); err != nil {
		return nil, err
	}
	if !strings.HasSuffix(cfg.apiURL, "/") {
		cfg.apiURL += "/"
	}
	return &Slack{
		cfg:     cfg,
		channel: channelID,
		post:    newPoster(cfg.client, cfg.timeout),
		token:   func() string { return token },
	}, nil
}

// Name implements [Destination].
func (s *Slack) Name() string { return s.cfg.name }

// Send implements [Destination] with one chat.postMessage. Text is plain: it is
// escaped, so it cannot mention anybody. Blocks are posted as they are. Both are
// cut to Slack's limits, and say so. Thread is the ts of the message to reply to.
func (s *Slack) Send(ctx context.Context, m Message) (Receipt, error) {
	text, blocks, err := slackBody(m)
	if err == nil && m.Thread != "" && !slackTS.MatchString(m.Thread) {
		err = fmt.Errorf("thread %q is no Slack ts", cut(m.Thread, 80))
	}
	if err != nil {
		return Receipt{}, &SendError{Kind: KindPermanent, Err: fmt.Errorf("notify: slack: %w", err)}
	}
	opts := []slack.MsgOption{
		slack.MsgOptionMetadata(slack.SlackMetadata{EventType: metadataType, EventPayload: map[string]any{"key": m.ID}}),
		slack.MsgOptionDisableLinkUnfurl(), // previews of a link to the run tell nobody anything
		slack.MsgOptionDisableMediaUnfurl(),
		slack.MsgOptionParse(false), // no mentions but those written as such
	}
	if text != "" {
		opts = append(opts, slack.MsgOptionText(text, false))
	}
	for _, b := range blocks {
		opts = append(opts, slack.MsgOptionBlocks(rawBlock{b}))
	}
	if m.Thread != "" {
		opts = append(opts, slack.MsgOptionTS(m.Thread))
	}
	shot := &slackShot{post: s.post}
	api := slack.New(s.token(), slack.OptionAPIURL(s.cfg.apiURL), slack.OptionHTTPClient(shot))
	// slack-go's own verdict is not used: it takes {} for a success and loses the
	// difference between 429s.
	_, _, err = api.PostMessageContext(ctx, s.channel, opts...)
	if !shot.fired {
		return Receipt{}, &SendError{Kind: KindPermanent, Err: fmt.Errorf("notify: slack: build message: %w", err)}
	}
	if shot.err != nil {
		return Receipt{}, prefixed("notify: slack", shot.err)
	}
	r, err := slackVerdict(shot.reply)
	if err != nil {
		return Receipt{}, prefixed("notify: slack", err)
	}
	if r.Channel == "" {
		r.Channel = s.channel
	}
	return r, nil
}

// slackShot is the HTTP client of one chat.postMessage. It keeps what came back
// and makes no second request, whatever slack-go wants.
type slackShot struct {
	post  poster
	fired bool
	reply reply
	err   error
}

// Do implements slack-go's HTTP client.
func (s *slackShot) Do(req *http.Request) (*http.Response, error) {
	if s.fired {
		return nil, errors.New("notify: a second request for one message")
	}
	s.fired = true
	s.reply, s.err = s.post.do(req, maxReply)
	return nil, errNotNeeded
}

// errNotNeeded ends slack-go's part: the reply is ours to read.
var errNotNeeded = errors.New("reply is read by its caller")

// prefixed says which destination an error came from and keeps its class.
func prefixed(what string, err error) error {
	e := *classify(err)
	e.Err = fmt.Errorf("%s: %w", what, e.Err)
	return &e
}

// Check asks Slack whether the token is valid and the channel's history can be
// read, which reconciliation needs. Call it at start, to hear of a missing scope
// before a message hangs on it. It posts nothing, so it cannot tell whether the
// channel may be written to.
func (s *Slack) Check(ctx context.Context) error {
	if _, err := s.call(ctx, "auth.test", nil); err != nil {
		return prefixed("notify: slack: auth.test", err)
	}
	_, err := s.call(ctx, "conversations.history", map[string]string{"channel": s.channel, "limit": "1"})
	if err != nil {
		return prefixed("notify: slack: read history of "+s.channel, err)
	}
	return nil
}

// slackReply is what we read of any reply of the Web API.
type slackReply struct {
	OK       bool   `json:"ok"`
	Error    string `json:"error"`
	Needed   string `json:"needed"`
	Provided string `json:"provided"`
	TS       string `json:"ts"`
	Channel  string `json:"channel"`

	Messages []json.RawMessage `json:"messages"`
	HasMore  bool              `json:"has_more"`
	Metadata struct {
		NextCursor string   `json:"next_cursor"`
		Messages   []string `json:"messages"`
	} `json:"response_metadata"`
}
