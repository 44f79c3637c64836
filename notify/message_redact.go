package notify

import (
	"net/url"
	"regexp"
	"strings"
)

// secrets are shapes that errors of SDKs and drivers carry. The list can never be
// complete: it is the last net, not a reason to put a secret into an error.
var secrets = []struct {
	re   *regexp.Regexp
	with string
}{
	// user:password@ in a URL or DSN
	{regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://[^\s/:@]*):[^\s/@]+@`), "${1}:[hidden]@"},
	{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[a-z0-9._~+/=-]{8,}`), "${1} [hidden]"},
	// key=value and "key": "value" of telling names
	{regexp.MustCompile(`(?i)\b((?:[a-z0-9]+[_-])*(?:password|passwd|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|client[_-]?secret|authorization|x-api-key|sig|signature))(["']?\s*[:=]\s*["']?)[^\s"'&,;)}]{4,}`), "${1}${2}[hidden]"},
	// keys of OpenAI, Anthropic, Slack, GitHub, Google, AWS, Stripe; JWTs; webhook URLs
	{regexp.MustCompile(`\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{8,}[A-Za-z0-9*_-]*`), "[hidden]"},
	{regexp.MustCompile(`\bxox[a-z](?:\.[a-z]+)?-[A-Za-z0-9-]{4,}`), "[hidden]"},
	{regexp.MustCompile(`\bxapp-[A-Za-z0-9-]{4,}`), "[hidden]"},
	{regexp.MustCompile(`\bgh[a-z]_[A-Za-z0-9]{16,}|\bgithub_pat_[A-Za-z0-9_]{16,}|\bglpat-[A-Za-z0-9_-]{16,}`), "[hidden]"},
	{regexp.MustCompile(`\bAIza[A-Za-z0-9_-]{20,}|\bya29\.[A-Za-z0-9._-]{16,}`), "[hidden]"},
	{regexp.MustCompile(`\b(?:AKIA|ASIA)[A-Z0-9]{16}\b`), "[hidden]"},
	{regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*`), "[hidden]"},
	{regexp.MustCompile(`(?i)hooks\.slack\.com/\S+`), "hooks.slack.com/[hidden]"},
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)`), "[hidden]"},
}

// redact hides what looks like a secret in the beginning of s, enough of it to
// show limit characters.
func redact(s string, limit int) string {
	// Eight bytes for each: hiding shortens, and what is not searched is not shown.
	if n := 8 * limit; len(s) > n {
		s = s[:n]
		// The last word may be half a secret that no pattern knows.
		if i := strings.LastIndexAny(s, " \t\r\n"); i >= 0 && n-i < 1000 {
			s = s[:i]
		}
		s += cutNote
	}
	s = clean(s)
	for _, secret := range secrets {
		s = secret.re.ReplaceAllString(s, secret.with)
	}
	return s
}

// safeLink returns a link that is http or https, without a password.
func safeLink(raw string) (string, bool) {
	u, err := url.Parse(strings.TrimSpace(raw))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || len(raw) > slackField {
		return "", false
	}
	u.User = nil
	return u.String(), true
}

// slackLink is a link in Slack's notation, with what would end it taken out.
func slackLink(raw, label string) (string, bool) {
	link, ok := safeLink(raw)
	if !ok {
		return "", false
	}
	link = strings.NewReplacer("<", "%3C", ">", "%3E", "|", "%7C", "&", "&amp;").Replace(link)
	if label == "" {
		return "<" + link + ">", true
	}
	return "<" + link + "|" + label + ">", true
}
