package idempotent_test

import (
	"testing"

	"github.com/nexuscore/onceq/idempotent"
)

// P3: the same document is the same payload, at any size of number.
func TestFingerprint(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{`{"a":1,"b":[1,2]}`, `{ "b": [1, 2], "a": 1 }`, true},
		{`{"id":9007199254740993}`, `{"id":9007199254740992}`, false},
		{`{"a":"\u0041"}`, `{"a":"A"}`, true},
		{`{"a":[1,2]}`, `{"a":[2,1]}`, false},
		{`not json`, `not  json`, false},
		{`"x"`, `x`, false},
		{``, `null`, false},
	} {
		if got := idempotent.Fingerprint("t", []byte(c.a)) == idempotent.Fingerprint("t", []byte(c.b)); got != c.same {
			t.Errorf("Fingerprint(%s) == Fingerprint(%s): %v, want %v", c.a, c.b, got, c.same)
		}
	}
	if idempotent.Fingerprint("ab", []byte("c")) == idempotent.Fingerprint("a", []byte("bc")) {
		t.Error("type and payload run together")
	}
	// Golden: a changed fingerprint turns every queued run into a mismatch.
	if got, want := idempotent.Fingerprint("orchestrator:run", []byte(`{"b":1,"a":"x"}`)), goldenFingerprint; got != want {
		t.Errorf("Fingerprint = %s, want %s", got, want)
	}
}

func FuzzFingerprint(f *testing.F) {
	for _, s := range []string{"", "{}", `{"a":1}`, `[1e400]`, "\xff", `{"a":{"a":{"a":null}}}`} {
		f.Add("t", []byte(s))
	}
	f.Fuzz(func(t *testing.T, typ string, payload []byte) {
		a := idempotent.Fingerprint(typ, payload)
		if len(a) != 32 || a != idempotent.Fingerprint(typ, payload) || a == idempotent.Fingerprint(typ+"x", payload) {
			t.Fatalf("Fingerprint(%q, %q) = %s", typ, payload, a)
		}
	})
}
