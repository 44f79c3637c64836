package wire

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// The functions here read canonical JSON: valid, compact, no member twice. They
// find their way by brackets and quotes alone, which is several times faster
// than decoding a request of which only a few members matter.

// members calls f for each member of the object doc, until f returns false. Names
// are as in the document, so one with an escape in it equals no known name.
func members(doc []byte, f func(name, value []byte) bool) {
	if len(doc) == 0 || doc[0] != '{' {
		return
	}
	for i := 1; i < len(doc) && doc[i] == '"'; {
		colon := i + skip(doc[i:])
		if colon >= len(doc) {
			return
		}
		end := colon + 1 + skip(doc[colon+1:])
		if !f(doc[i+1:colon-1], doc[colon+1:end]) {
			return
		}
		i = end + 1
	}
}

// elements calls f for each element of the array doc, until f returns false.
func elements(doc []byte, f func(value []byte) bool) {
	if len(doc) < 2 || doc[0] != '[' || doc[1] == ']' {
		return
	}
	for i := 1; i < len(doc); {
		n := skip(doc[i:])
		if n == 0 || !f(doc[i:i+n]) {
			return
		}
		i += n + 1
	}
}

// skip returns the length of the value that doc begins with.
func skip(doc []byte) int {
	depth := 0
	for i := 0; i < len(doc); i++ {
		switch doc[i] {
		case '"':
			i += quoted(doc[i:]) - 1
			if depth == 0 {
				return min(i+1, len(doc))
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			} else if depth < 0 {
				return i // the bracket of what holds the value
			}
		case ',', ':':
			if depth == 0 {
				return i
			}
		}
	}
	return len(doc)
}

// quoted returns the length of the string that doc begins with.
func quoted(doc []byte) int {
	for i := 1; i < len(doc); i++ {
		j := bytes.IndexAny(doc[i:], `"\`)
		if j < 0 {
			break
		}
		if i += j; doc[i] == '"' {
			return i + 1
		}
		i++ // what a backslash escapes
	}
	return len(doc)
}

func isTrue(v []byte) bool { return string(v) == "true" }

// given reports whether a member says anything: null and emptiness do not.
func given(v []byte) bool {
	switch string(v) {
	case "", "null", `""`, "[]", "{}":
		return false
	}
	return true
}

// text returns the string v holds, "" if it is none.
func text(v []byte) string {
	var s string
	if len(v) < 2 || v[0] != '"' {
		return ""
	}
	if bytes.IndexByte(v, '\\') < 0 {
		return string(v[1 : len(v)-1])
	}
	_ = json.Unmarshal(v, &s) // canonical JSON decodes
	return s
}

// whole returns the number v holds, 0 if it is not a small whole one.
func whole(v []byte) int {
	n, err := strconv.Atoi(string(v))
	if err != nil || n < 0 || n > maxChoices {
		return 0
	}
	return n
}

// length returns how many elements the array v has, 0 if it is none.
func length(v []byte) int {
	n := 0
	elements(v, func([]byte) bool { n++; return true })
	return n
}
