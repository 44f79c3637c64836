package notify

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// slackCodes says what Slack's error codes mean for a message. Codes that are
// missing here are uncertain, and so are fatal_error and internal_error: Slack
// says of both that some of the operation may have succeeded.
var slackCodes = func() map[string]Kind {
	codes := map[string]Kind{
		"ratelimited":       KindNotSent,
		"rate_limited":      KindNotSent,
		"request_timeout":   KindNotSent, // the POST arrived truncated
		"team_added_to_org": KindNotSent, // the workspace is being moved
	}
	for _, c := range strings.Fields(`
		access_denied account_inactive as_user_not_supported cannot_reply_to_message
		channel_not_found channel_type_not_supported deprecated_endpoint ekm_access_denied
		enterprise_is_restricted invalid_arg_name invalid_arguments invalid_array_arg invalid_auth
		invalid_charset invalid_form_data invalid_metadata_format invalid_metadata_schema
		invalid_post_type is_archived messages_tab_disabled metadata_must_be_sent_from_app
		metadata_too_large method_deprecated missing_post_type missing_scope msg_too_long
		no_permission no_text not_allowed_token_type not_authed not_in_channel org_login_required
		team_access_not_granted thread_not_found too_many_attachments two_factor_setup_required
		unknown_method`) {
		codes[c] = KindPermanent
	}
	return codes
}()

// slackKind classifies an error code, families of codes by their beginning.
func slackKind(code string) Kind {
	if k, ok := slackCodes[code]; ok {
		return k
	}
	for _, family := range []string{"token_", "invalid_blocks", "invalid_attachments", "restricted_action"} {
		if strings.HasPrefix(code, family) {
			return KindPermanent
		}
	}
	return KindUncertain
}

// slackHints tell an operator what to do, where the code alone does not.
var slackHints = map[string]string{
	"not_in_channel":    "invite the app to the channel",
	"channel_not_found": "no such channel, or a private one that the app is not in",
	"is_archived":       "the channel is archived",
	"invalid_auth":      "the token is wrong or revoked",
	"missing_scope":     "add the scope and reinstall the app",
}

// slackVerdict says what a reply to chat.postMessage means.
func slackVerdict(r reply) (Receipt, error) {
	body, err := parseSlack(r)
	if err != nil {
		return Receipt{}, err
	}
	// Without a ts it is not on record that anything was posted.
	if !slackTS.MatchString(body.TS) {
		return Receipt{}, &SendError{Kind: KindUncertain, Err: errors.New("ok without a ts")}
	}
	return Receipt{ID: body.TS, Channel: body.Channel}, nil
}

// parseSlack returns a reply that says ok, or what its failure means.
func parseSlack(r reply) (slackReply, error) {
	var body slackReply
	undecodable := json.Unmarshal(r.body, &body)
	if r.cut != nil {
		undecodable = r.cut
	}
	switch {
	case r.status == http.StatusTooManyRequests:
		return body, r.rateLimited()
	case undecodable == nil && body.Error != "" && !body.OK && r.status < 500:
		return body, r.slackError(body)
	case r.status >= 500:
		return body, r.failed(KindUncertain)
	case r.status == http.StatusRequestEntityTooLarge:
		return body, r.failed(KindPermanent)
	case r.status >= 300: // turned away before Slack read it, by Slack or a proxy
		return body, r.failed(KindNotSent)
	case r.status != http.StatusOK:
		return body, r.failed(KindUncertain)
	case undecodable != nil:
		return body, &SendError{Kind: KindUncertain, Err: fmt.Errorf("undecodable reply: %w", undecodable)}
	case !body.OK:
		return body, &SendError{Kind: KindUncertain, Err: errors.New("reply is neither ok nor an error")}
	}
	return body, nil
}

// slackError is the error for a reply that says why it is not ok.
func (r reply) slackError(body slackReply) error {
	e := &SendError{Kind: slackKind(body.Error)}
	if body.Error == "ratelimited" || body.Error == "rate_limited" {
		e.RateLimited, e.RetryAfter = true, retryAfter(r.header, time.Now())
	}
	text := excerpt([]byte(body.Error))
	if hint := slackHints[body.Error]; hint != "" {
		text += ": " + hint
	}
	if body.Needed != "" {
		text += fmt.Sprintf(" (needed: %s; provided: %s)", excerpt([]byte(body.Needed)), excerpt([]byte(body.Provided)))
	}
	for _, detail := range body.Metadata.Messages[:min(len(body.Metadata.Messages), 3)] {
		text += "; " + excerpt([]byte(detail))
	}
	e.Err = errors.New(text)
	return e
}
