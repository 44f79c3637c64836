package runkey

import (
	"strings"
	"testing"
)

func TestGoldenKeys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ key, base string }{
		{"orchestrator-run-42", "onceq:{orchestrator-run-42}"},
		{"a}b{c:d", "onceq:{a%7Db%7Bc%3Ad}"},
		{"50%~g2", "onceq:{50%25%7Eg2}"},
		{"tab\tnl\n sp", "onceq:{tab%09nl%0A%20sp}"},
		{"größe", "onceq:{größe}"},
	} {
		if got := Base("onceq", c.key); got != c.base {
			t.Errorf("Base(onceq, %q) = %q, want %q", c.key, got, c.base)
		}
	}
	if got, want := Lock("p:{k}"), "p:{k}:lock"; got != want {
		t.Errorf("Lock = %q, want %q", got, want)
	}
	if got, want := Checkpoint("p:{k}"), "p:{k}:ckpt"; got != want {
		t.Errorf("Checkpoint = %q, want %q", got, want)
	}
	if got, want := Steps("p:{k}", "a:b"), "p:{k}:steps:a%3Ab"; got != want {
		t.Errorf("Steps = %q, want %q", got, want)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ key, want string }{
		{"", "empty"},
		{strings.Repeat("x", 513), "513 bytes, at most 512"},
		{"\xff", "UTF-8"},
		{strings.Repeat("x", 512), ""},
	} {
		err := Validate(c.key)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("Validate(%.8q) = %v, want %q", c.key, err, c.want)
		}
	}
	for _, p := range []string{"", "a:b", "a{b", "a}b", "a b", strings.Repeat("p", 65)} {
		if ValidatePrefix(p) == nil {
			t.Errorf("ValidatePrefix(%q) = nil, want an error", p)
		}
	}
	if err := ValidatePrefix("team-a/onceq_2.x"); err != nil {
		t.Errorf("ValidatePrefix: %v", err)
	}
}

func FuzzEscape(f *testing.F) {
	for _, s := range []string{"", "a", "{", "}", ":", "%", "~", "%7B", "a{b}c:d", "\x00\x7f", "ü"} {
		f.Add(s, s+"x")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		ea := Escape(a)
		if strings.ContainsAny(ea, "{}:~ \n\x00") {
			t.Fatalf("Escape(%q) = %q keeps a separator", a, ea)
		}
		back, err := Unescape(ea)
		if err != nil || back != a {
			t.Fatalf("Unescape(Escape(%q)) = %q, %v", a, back, err)
		}
		if a != b && ea == Escape(b) {
			t.Fatalf("Escape(%q) == Escape(%q)", a, b)
		}
	})
}
