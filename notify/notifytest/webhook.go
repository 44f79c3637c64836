package notifytest

import (
	"encoding/json"
	"io"
	"net/http"
)

// webhook is an incoming webhook: no token, no metadata, no ts in the reply.
func (s *Slack) webhook(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(io.LimitReader(r.Body, maxRequest))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	channel := r.PathValue("channel")
	status := http.StatusOK
	f := func() []byte {
		var in struct {
			Text     string          `json:"text"`
			Blocks   json.RawMessage `json:"blocks"`
			ThreadTS string          `json:"thread_ts"`
			Parse    string          `json:"parse"`
		}
		if json.Unmarshal(raw, &in) != nil {
			status = http.StatusBadRequest
			return []byte("invalid_payload")
		}
		a := s.accept(channel, Message{User: BotUser, Text: in.Text, Blocks: in.Blocks, ThreadTS: in.ThreadTS, Parse: in.Parse, Webhook: true})
		code, _ := a["error"].(string)
		if a["ok"] == true {
			return []byte("ok")
		}
		status = http.StatusBadRequest
		switch code {
		case "channel_not_found":
			status, code = http.StatusNotFound, "no_service"
		case "is_archived":
			status, code = http.StatusGone, "channel_is_archived"
		}
		return []byte(code)
	}
	s.run(statusWriter{w, &status}, r, "webhook", channel, f)
}

// statusWriter sends the status that the call came to unless a fault has one.
type statusWriter struct {
	http.ResponseWriter
	status *int
}

func (w statusWriter) WriteHeader(code int) {
	if code == http.StatusOK {
		code = *w.status
	}
	w.ResponseWriter.WriteHeader(code)
}

// Unwrap is for http.ResponseController.
func (w statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
