package notifytest

import (
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// maxRequest bounds a request body: more than any message may have.
const maxRequest = 4 << 20

// answer is a JSON object that goes back to the caller.
type answer map[string]any

func refuse(code string) answer { return answer{"ok": false, "error": code} }

// methods are what the server answers, "webhook" for incoming webhooks.
var methods = []string{"auth.test", "chat.postMessage", "conversations.history", "conversations.replies", "webhook"}

// handler routes and wraps every method in its faults.
func (s *Slack) handler() http.Handler {
	mux := http.NewServeMux()
	for method, do := range map[string]func(url.Values) answer{
		"auth.test":             s.authTest,
		"chat.postMessage":      s.postMessage,
		"conversations.history": s.history,
		"conversations.replies": s.replies,
	} {
		mux.Handle("/api/"+method, s.method(method, do))
	}
	mux.HandleFunc("/services/T0FAKE/B0FAKE/{channel}", s.webhook)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		write(w, None, encode(refuse("unknown_method")))
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		if s.closed { // Close may be past waiting
			s.mu.Unlock()
			panic(http.ErrAbortHandler)
		}
		s.serves.Add(1)
		s.mu.Unlock()
		defer s.serves.Done()
		mux.ServeHTTP(w, r)
	})
}

// method is one Web API method.
func (s *Slack) method(name string, do func(url.Values) answer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		args, err := arguments(r)
		if err != nil {
			write(w, None, encode(refuse("invalid_form_data")))
			return
		}
		s.run(w, r, name, args.Get("channel"), func() []byte {
			if args.Get("token") == "" {
				return encode(refuse("not_authed"))
			}
			if args.Get("token") != Token {
				return encode(refuse("invalid_auth"))
			}
			return encode(do(args))
		})
	})
}

// run applies the call's fault around do, which makes the call take effect and
// returns the reply.
func (s *Slack) run(w http.ResponseWriter, r *http.Request, method, channel string, do func() []byte) {
	f := s.fault(method, channel)
	if f.Delay > 0 && !s.sleep(r, f.Delay) {
		panic(http.ErrAbortHandler)
	}
	var body []byte
	if over, ok := s.limited(method); ok {
		f, body = over, nil
	} else if f.Apply || !f.replaces() && !f.Drop && !f.Hang {
		body = do()
	}
	switch {
	case f.Hang:
		select {
		case <-r.Context().Done():
		case <-s.done:
		}
		panic(http.ErrAbortHandler)
	case f.Drop:
		panic(http.ErrAbortHandler) // closes the connection
	case f.replaces():
		body = []byte(f.Body)
	}
	write(w, f, body)
}

// sleep waits and says whether anybody still does.
func (s *Slack) sleep(r *http.Request, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-r.Context().Done():
	case <-s.done:
	}
	return false
}

// write sends the reply with the fault's status, headers and cut.
func write(w http.ResponseWriter, f Fault, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json; charset=utf-8")
	if len(body) > 0 && body[0] != '{' {
		h.Set("Content-Type", "text/html")
	}
	for k, v := range f.Header {
		h[k] = v
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(max(f.Status, http.StatusOK))
	if f.Cut > 0 && f.Cut < len(body) {
		_, _ = w.Write(body[:f.Cut])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(body) // a caller that has gone does not matter
}

func encode(a answer) []byte {
	b, err := json.Marshal(a)
	if err != nil { // a Raw message of Say that is no JSON
		return []byte(`{"ok":false,"error":"internal_error"}`)
	}
	return b
}

// arguments reads a call's arguments from the query, a form or a JSON object,
// and the token from wherever it is.
func arguments(r *http.Request) (url.Values, error) {
	args := r.URL.Query()
	raw, err := io.ReadAll(io.LimitReader(r.Body, maxRequest))
	if err != nil {
		return nil, err
	}
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if kind == "application/json" {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(raw, &object); err != nil {
			return nil, err
		}
		for k, v := range object {
			var text string
			if json.Unmarshal(v, &text) != nil {
				text = string(v)
			}
			args.Set(k, text)
		}
	} else {
		form, err := url.ParseQuery(string(raw))
		if err != nil {
			return nil, err
		}
		for k, v := range form {
			args[k] = v
		}
	}
	if bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		args.Set("token", bearer)
	}
	return args, nil
}

func (s *Slack) authTest(url.Values) answer {
	return answer{
		"ok": true, "url": "https://fake.slack.test/", "team": "Fake", "team_id": "T0FAKE",
		"user": "bot", "user_id": BotUser, "bot_id": "B0FAKE",
	}
}

// needs refuses a token without the scope.
func (s *Slack) needs(scope string) answer {
	if slices.Contains(s.scopes, scope) {
		return nil
	}
	a := refuse("missing_scope")
	a["needed"], a["provided"] = scope, strings.Join(s.scopes, ",")
	return a
}

func (s *Slack) postMessage(args url.Values) answer {
	if no := s.needs("chat:write"); no != nil {
		return no
	}
	m := Message{
		User:      BotUser,
		Text:      args.Get("text"),
		ThreadTS:  args.Get("thread_ts"),
		Parse:     args.Get("parse"),
		Broadcast: args.Get("reply_broadcast") == "true",
	}
	if raw := args.Get("metadata"); raw != "" {
		if err := json.Unmarshal([]byte(raw), &m.Metadata); err != nil || m.Metadata.EventType == "" || m.Metadata.EventPayload == nil {
			return refuse("invalid_metadata_format")
		}
	}
	if raw := args.Get("blocks"); raw != "" && raw != "[]" {
		m.Blocks = json.RawMessage(raw)
	}
	return s.accept(args.Get("channel"), m)
}

// accept checks a message as Slack would and puts it into the channel.
func (s *Slack) accept(id string, m Message) answer {
	switch {
	case m.Text == "" && m.Blocks == nil:
		return refuse("no_text")
	case utf8.RuneCountInString(m.Text) > maxText:
		return refuse("msg_too_long")
	}
	if m.Blocks != nil {
		if err := checkBlocks(m.Blocks); err != nil {
			a := refuse("invalid_blocks")
			a["errors"] = []string{err.Error()}
			a["response_metadata"] = answer{"messages": []string{"[ERROR] " + err.Error()}}
			return a
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.channels[id]
	switch {
	case c == nil, c.left && c.private:
		return refuse("channel_not_found")
	case c.left:
		return refuse("not_in_channel")
	case c.archived:
		return refuse("is_archived")
	}
	ts := s.add(c, m)
	return answer{"ok": true, "channel": id, "ts": ts, "message": c.messages[len(c.messages)-1].view(true)}
}
