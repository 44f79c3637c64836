// Package runkey turns the name of a run into the Redis keys that belong to it.
//
// All keys of a run share the hash tag "{<escaped key>}", so that a script
// over any of them runs on one Redis Cluster slot. A changed result of this
// package is a data migration: see the golden tests.
package runkey

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxLen is the longest run key in bytes. It bounds what a stranger who names
// runs can store in Redis keys and task headers.
const MaxLen = 512

const hex = "0123456789ABCDEF"

// escaped holds the bytes with a meaning in keys or task IDs: braces move the
// slot, ':' separates parts of a Redis key, '~' parts of a task ID, '%' escapes.
func escaped(c byte) bool {
	return c < 0x21 || c == 0x7f || c == '{' || c == '}' || c == ':' || c == '~' || c == '%'
}

// Escape returns key with every separator percent-encoded. It is injective.
func Escape(key string) string {
	n := 0
	for i := range len(key) {
		if escaped(key[i]) {
			n++
		}
	}
	if n == 0 {
		return key
	}
	var b strings.Builder
	b.Grow(len(key) + 2*n)
	for i := range len(key) {
		if c := key[i]; escaped(c) {
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// Unescape reverses Escape.
func Unescape(s string) (string, error) {
	if !strings.Contains(s, "%") {
		return s, nil
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b = append(b, s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", fmt.Errorf("runkey: %q ends inside an escape", s)
		}
		hi, lo := strings.IndexByte(hex, s[i+1]), strings.IndexByte(hex, s[i+2])
		if hi < 0 || lo < 0 {
			return "", fmt.Errorf("runkey: %q has a bad escape at byte %d", s, i)
		}
		b = append(b, byte(hi<<4|lo))
		i += 2
	}
	return string(b), nil
}

// Validate reports why key cannot name a run, or nil.
func Validate(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("run key is empty")
	case len(key) > MaxLen:
		return fmt.Errorf("run key has %d bytes, at most %d are allowed", len(key), MaxLen)
	case !utf8.ValidString(key):
		return fmt.Errorf("run key %q is not valid UTF-8", key)
	}
	return nil
}

// ValidatePrefix reports why prefix cannot name a tenant, or nil.
func ValidatePrefix(prefix string) error {
	switch {
	case prefix == "":
		return fmt.Errorf("prefix is empty")
	case len(prefix) > 64:
		return fmt.Errorf("prefix has %d bytes, at most 64 are allowed", len(prefix))
	}
	for _, c := range prefix {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("-_./", c) {
			return fmt.Errorf("prefix %q has %q; use ASCII letters, digits, '-', '_', '.' or '/'", prefix, c)
		}
	}
	return nil
}

// Base is what every Redis key of a run starts with: "<prefix>:{<escaped key>}".
func Base(prefix, key string) string {
	return prefix + ":{" + Escape(key) + "}"
}

// Lock is the key of the run's lease. Its value is the owner, whole.
func Lock(base string) string { return base + ":lock" }

// Checkpoint is the key of the run's snapshot.
func Checkpoint(base string) string { return base + ":ckpt" }

// Steps is the key of the memoised steps of one phase.
func Steps(base, phase string) string { return base + ":steps:" + Escape(phase) }
