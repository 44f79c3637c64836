package notify

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Slack acts on &, < and > only, and wants these three escaped, nothing else.
// Beside them, some settings of a message (parse, link_names, a text object that
// is not verbatim) look for bare mentions: a word joiner, which nobody sees, keeps
// the three that call everybody from being found.
var slackEscaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;",
	"@channel", "@\u2060channel", "@here", "@\u2060here", "@everyone", "@\u2060everyone")

// EscapeSlack makes a stranger's words safe inside Slack text: nothing in them
// becomes a mention, a call to a whole channel or a link with a false label. It
// also replaces what is no UTF-8 and drops control characters other than newline
// and tab.
func EscapeSlack(s string) string { return slackEscaper.Replace(clean(s)) }

// clean drops what no text should have.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || !unicode.IsControl(r) {
			return r
		}
		return -1
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

// width is the length of a text as Slack may count it: characters outside the
// basic plane (emoji) count twice in some of its clients.
func width(s string) int {
	n := 0
	for _, r := range s {
		n += runeWidth(r)
	}
	return n
}

func runeWidth(r rune) int {
	if r > 0xFFFF {
		return 2
	}
	return 1
}

// cutNote is at the end of whatever was shortened.
const cutNote = "… (cut)"

// cut shortens s to limit characters and says so at its end. It cuts between
// runes, outside escapes (&amp;) and control sequences (<url|text>), and closes a
// code block that it cut open. Limits under 20 leave no room to say it.
func cut(s string, limit int) string {
	// A string of no more bytes than limit has no more characters either.
	if len(s) <= limit || width(s) <= limit {
		return s
	}
	const fence = "\n```\n"
	note, room := "", limit
	if limit >= 20 {
		note, room = cutNote, limit-width(cutNote)-len(fence)
	}
	end, n := 0, 0
	for i, r := range s {
		if n += runeWidth(r); n > room {
			break
		}
		_, size := utf8.DecodeRuneInString(s[i:]) // 1 for a byte that is no UTF-8
		end = i + size
	}
	head := s[:end]
	if i := strings.LastIndexByte(head, '&'); i >= 0 && len(head)-i < len("&amp;") && !strings.Contains(head[i:], ";") {
		head = head[:i]
	}
	// A "<" further back is no link but somebody's arithmetic.
	if i := strings.LastIndexByte(head, '<'); i >= 0 && len(head)-i < 512 && !strings.Contains(head[i:], ">") && strings.Contains(s[i:], ">") {
		head = head[:i]
	}
	if note != "" && strings.Count(head, "```")%2 == 1 {
		note = fence + note
	}
	return head + note
}
