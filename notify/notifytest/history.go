package notifytest

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// history is conversations.history: newest first, without replies to threads
// unless they were broadcast.
func (s *Slack) history(args url.Values) answer {
	return s.read(args, func(c *channel, all []stored) ([]stored, string) {
		list := slices.DeleteFunc(all, func(m stored) bool {
			return m.ThreadTS != "" && m.ThreadTS != m.TS && !m.Broadcast
		})
		slices.Reverse(list)
		return list, ""
	})
}

// replies is conversations.replies: the thread's first message and its
// replies, oldest first.
func (s *Slack) replies(args url.Values) answer {
	root := args.Get("ts")
	return s.read(args, func(c *channel, all []stored) ([]stored, string) {
		if !c.has(root) {
			return nil, "thread_not_found"
		}
		return slices.DeleteFunc(all, func(m stored) bool {
			return m.TS != root && m.ThreadTS != root
		}), ""
	})
}

// read answers one page of what pick leaves of the messages in the asked span.
func (s *Slack) read(args url.Values, pick func(*channel, []stored) ([]stored, string)) answer {
	id := args.Get("channel")
	scope := "channels:history"
	switch {
	case strings.HasPrefix(id, "G"):
		scope = "groups:history"
	case strings.HasPrefix(id, "D"):
		scope = "im:history"
	}
	if no := s.needs(scope); no != nil {
		return no
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.channels[id]
	switch {
	case c == nil, c.left && c.private:
		return refuse("channel_not_found")
	case c.left:
		return refuse("not_in_channel")
	}
	in, ok := span(args)
	if !ok {
		return refuse("invalid_ts_oldest")
	}
	var all []stored
	now := time.Now()
	for _, m := range c.messages {
		// conversations.replies shows the first message of the thread always.
		if !m.shownAt.After(now) && (in(m.TS) || m.TS == args.Get("ts")) {
			all = append(all, m)
		}
	}
	list, code := pick(c, all)
	if code != "" {
		return refuse(code)
	}
	return s.page(args, list)
}

// page cuts the asked page out of the list. The cursor names the last message
// that was given, so that new ones do not shift the pages.
func (s *Slack) page(args url.Values, list []stored) answer {
	if raw := args.Get("cursor"); raw != "" {
		last, err := base64.URLEncoding.DecodeString(raw)
		at := slices.IndexFunc(list, func(m stored) bool { return m.TS == string(last) })
		if err != nil || at < 0 {
			return refuse("invalid_cursor")
		}
		list = list[at+1:]
	}
	limit, err := strconv.Atoi(args.Get("limit"))
	if err != nil || limit < 1 {
		limit = 100
	}
	limit = min(limit, s.maxPage)
	more := len(list) > limit
	if more {
		list = list[:limit]
	}
	views := make([]json.RawMessage, 0, len(list))
	for _, m := range list {
		views = append(views, m.view(args.Get("include_all_metadata") == "true" || args.Get("include_all_metadata") == "1"))
	}
	a := answer{"ok": true, "messages": views, "has_more": more}
	if more {
		cursor := base64.URLEncoding.EncodeToString([]byte(list[limit-1].TS))
		a["response_metadata"] = answer{"next_cursor": cursor}
	}
	return a
}

// span returns the test for oldest, latest and inclusive.
func span(args url.Values) (func(ts string) bool, bool) {
	var bounds [2]int64
	for i, name := range []string{"oldest", "latest"} {
		if args.Get(name) == "" {
			continue
		}
		n, ok := micros(args.Get(name))
		if !ok {
			return nil, false
		}
		bounds[i] = n
	}
	inclusive := args.Get("inclusive") == "true" || args.Get("inclusive") == "1"
	return func(ts string) bool {
		n, _ := micros(ts)
		if inclusive && (n == bounds[0] || n == bounds[1]) {
			return true
		}
		return n > bounds[0] && (bounds[1] == 0 || n < bounds[1])
	}, true
}

// micros reads a ts: seconds with up to six decimals.
func micros(ts string) (int64, bool) {
	whole, part, _ := strings.Cut(ts, ".")
	seconds, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || len(part) > 6 || seconds < 0 || seconds > 1<<40 {
		return 0, false
	}
	fraction, err := strconv.ParseInt((part + "000000")[:6], 10, 64)
	return seconds*1e6 + fraction, err == nil
}

func (c *channel) has(ts string) bool {
	return slices.ContainsFunc(c.messages, func(m stored) bool { return m.TS == ts })
}

// view is the message as the API shows it.
func (m stored) view(metadata bool) json.RawMessage {
	fields := map[string]any{}
	if m.Raw != nil && json.Unmarshal(m.Raw, &fields) != nil {
		fields = map[string]any{}
	}
	if m.Raw == nil {
		fields["type"], fields["user"], fields["text"] = "message", m.User, m.Text
		if m.User == BotUser {
			fields["bot_id"] = "B0FAKE"
		}
		if m.Blocks != nil {
			fields["blocks"] = m.Blocks
		}
		if metadata && m.Metadata.EventType != "" {
			fields["metadata"] = m.Metadata
		}
	}
	fields["ts"] = m.TS
	if m.ThreadTS != "" {
		fields["thread_ts"] = m.ThreadTS
	}
	b, err := json.Marshal(fields)
	if err != nil { // blocks that are no JSON were refused before
		return json.RawMessage(`{}`)
	}
	return b
}
