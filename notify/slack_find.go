package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// maxPage bounds one page of history in bytes.
	maxPage = 16 << 20
	// pageSize is what Slack recommends not to exceed.
	pageSize = 200
	// callTime is what a call needs to be worth waiting for.
	callTime = 2 * time.Second
	// clockSkew is how far our clock may be ahead of Slack's.
	clockSkew = 10 * time.Minute
)

// Find implements [Reconciler]: it reads the channel's history, and the replies
// of the thread for a message that answers one, from the first attempt on and
// looks for the message's ID in the metadata. A scope that is missing, a channel
// that cannot be read, a page that cannot be decoded or more history than
// [WithHistoryPages] are errors: the message may be there. When Slack limits the
// rate, Find waits as long as it is told if ctx leaves the time for it.
func (s *Slack) Find(ctx context.Context, m Message) (Receipt, bool, error) {
	since := m.FirstAttemptAt
	if since.IsZero() {
		since = m.CreatedAt
	}
	oldest := "0"
	if !since.IsZero() {
		oldest = strconv.FormatInt(max(since.Add(-clockSkew).Unix(), 0), 10)
	}
	search := slackSearch{s: s, id: m.ID, pages: s.cfg.pages, args: map[string]string{
		"channel":              s.channel,
		"oldest":               oldest,
		"limit":                strconv.Itoa(pageSize),
		"include_all_metadata": "true",
	}}
	if m.Thread != "" {
		r, found, err := search.read(ctx, "conversations.replies", m.Thread)
		if e, ok := errors.AsType[*slackCode](err); ok && e.code == "thread_not_found" {
			err = nil // nothing can be in a thread that does not exist
		}
		if found || err != nil {
			return r, found, cannotTell(err)
		}
	}
	// A reply is in the channel, too, when its thread was not there to take it.
	r, found, err := search.read(ctx, "conversations.history", "")
	return r, found, cannotTell(err)
}

// cannotTell words an error so that nobody takes it for "not there".
func cannotTell(err error) error {
	if err == nil {
		return nil
	}
	e := *classify(err)
	if e.Kind == KindNotSent {
		e.Kind = KindUncertain // the request was not; of the message it says nothing
	}
	e.Err = fmt.Errorf("notify: slack: cannot tell whether the message arrived: %w", e.Err)
	return &e
}

// slackSearch reads pages until it finds the id.
type slackSearch struct {
	s     *Slack
	id    string
	pages int // left
	args  map[string]string
}

// read reads one method's pages to the end. Only then is "not found" an answer.
func (q *slackSearch) read(ctx context.Context, method, thread string) (Receipt, bool, error) {
	delete(q.args, "ts")
	delete(q.args, "cursor")
	if thread != "" {
		q.args["ts"] = thread
	}
	for {
		if q.pages == 0 {
			return Receipt{}, false, fmt.Errorf("%d pages of history since the first attempt are not all of it", q.s.cfg.pages)
		}
		q.pages--
		page, err := q.s.patientCall(ctx, method, q.args)
		if err != nil {
			return Receipt{}, false, fmt.Errorf("%s: %w", method, err)
		}
		if page.Messages == nil {
			return Receipt{}, false, fmt.Errorf("%s: reply has no messages", method)
		}
		for _, raw := range page.Messages {
			if ts, ok := carries(raw, q.id); ok {
				return Receipt{ID: ts, Channel: q.s.channel}, true, nil
			}
		}
		next := page.Metadata.NextCursor
		switch {
		case next == "" && page.HasMore:
			return Receipt{}, false, fmt.Errorf("%s: there is more, and no cursor to it", method)
		case next == "":
			return Receipt{}, false, nil
		case next == q.args["cursor"]:
			return Receipt{}, false, fmt.Errorf("%s: the cursor does not move", method)
		}
		q.args["cursor"] = next
	}
}

// carries says whether a message is ours with the id. It decodes as little as it
// can: other apps' messages have any shape, and one that cannot be read is not
// ours.
func carries(raw json.RawMessage, id string) (ts string, ok bool) {
	var m struct {
		TS       string `json:"ts"`
		Metadata struct {
			EventType string `json:"event_type"`
			Payload   struct {
				Key string `json:"key"`
			} `json:"event_payload"`
		} `json:"metadata"`
	}
	if json.Unmarshal(raw, &m) != nil {
		return "", false
	}
	return m.TS, id != "" && m.Metadata.EventType == metadataType && m.Metadata.Payload.Key == id
}

// slackCode keeps the code that Slack gave for an error.
type slackCode struct {
	code string
	error
}

// Unwrap returns the classified error.
func (e *slackCode) Unwrap() error { return e.error }

// call makes one call of the Web API that posts nothing.
func (s *Slack) call(ctx context.Context, method string, args map[string]string) (slackReply, error) {
	form := url.Values{}
	for k, v := range args {
		form.Set(k, v)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.cfg.apiURL+method, strings.NewReader(form.Encode()))
	if err != nil {
		return slackReply{}, &SendError{Kind: KindPermanent, Err: withoutURL(err)}
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Authorization", "Bearer "+s.token())
	r, err := s.post.do(req, maxPage)
	if err != nil {
		return slackReply{}, err
	}
	body, err := parseSlack(r)
	if err != nil && body.Error != "" {
		err = &slackCode{body.Error, err}
	}
	return body, err
}

// patientCall is call, again after each rate limit that ctx leaves time for.
func (s *Slack) patientCall(ctx context.Context, method string, args map[string]string) (slackReply, error) {
	for {
		page, err := s.call(ctx, method, args)
		e, ok := errors.AsType[*SendError](err)
		if !ok || !e.RateLimited {
			return page, err
		}
		wait := max(e.RetryAfter, time.Second)
		end, bounded := ctx.Deadline()
		// Without a deadline nobody says how long a caller wants to stand here.
		if !bounded || time.Until(end) < wait+callTime {
			return page, err
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return page, err
		}
	}
}
