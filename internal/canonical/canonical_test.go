package canonical_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math/big"
	"reflect"
	"strings"
	"testing"

	"github.com/nexuscore/onceq/internal/canonical"
)

func TestGoldenForms(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ src, want string }{
		{` null `, `null`},
		{`[ true , false ]`, `[true,false]`},
		{`{"b":1,"a":2}`, `{"a":2,"b":1}`},
		{`{ "z" : {"d":1,"c":[{"y":1,"x":2}]} , "" : {} }`, `{"":{},"z":{"c":[{"x":2,"y":1}],"d":1}}`},
		{`{"aa":1,"a":2,"a\"":3}`, `{"a":2,"a\"":3,"aa":1}`},
		{`"\u00e9\/\u003c"`, `"é/<"`},
		{`"\n\t\u001F\b\u007f"`, "\"\\u000a\\u0009\\u001f\\u0008\x7f\""},
		{`"\ud83d\ude00"`, `"😀"`},
		{`"\uD83D\u0041"`, `"\ud83dA"`},
		{`"\ud83d"`, `"\ud83d"`},
		{`1`, `1`}, {`1.0`, `1`}, {`1e0`, `1`}, {`10e-1`, `1`}, {`0.1E+1`, `1`}, {`1e00000000000`, `1`},
		{`-0`, `0`}, {`0.000`, `0`}, {`0e5`, `0`}, {`-0.0e-3`, `0`},
		{`9007199254740993`, `9007199254740993`},
		{`9007199254740993.0`, `9007199254740993`},
		{`1000`, `1000`}, {`1e3`, `1000`},
		{`1e20`, `100000000000000000000`}, {`1e21`, `1e21`}, {`1000000000000000000000`, `1e21`},
		{`0.7`, `7e-1`}, {`-0.70`, `-7e-1`}, {`1.5`, `15e-1`}, {`12.340e1`, `1234e-1`}, {`7e-1`, `7e-1`},
		{`1e999999999`, `1e999999999`},
	} {
		got, err := canonical.JSON(nil, []byte(c.src))
		if err != nil || string(got) != c.want {
			t.Errorf("JSON(%s) = %s, %v; want %s", c.src, got, err, c.want)
		}
	}
}

func TestAppendsToDst(t *testing.T) {
	t.Parallel()
	got, err := canonical.JSON([]byte("x"), []byte(`{"b":1,"a":1}`))
	if err != nil || string(got) != `x{"a":1,"b":1}` {
		t.Errorf("JSON = %s, %v", got, err)
	}
	got, err = canonical.JSON([]byte("x"), []byte(`{"b":1,`))
	if err == nil || string(got) != "x" {
		t.Errorf("after an error JSON = %s, %v; want dst alone", got, err)
	}
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, c := range []struct{ src, want string }{
		{``, "ends where a value"}, {` `, "ends where a value"}, {`nul`, "not a value"}, {`'a'`, "not a value"},
		{`{}{}`, "follows"}, {`1 2`, "follows"}, {"null\x00", "follows"}, {`01`, "not a number"}, {`-`, "not a number"},
		{`1.`, "not a number"}, {`.5`, "not a value"}, {`+1`, "not a value"}, {`1e`, "not a number"}, {`NaN`, "not a value"},
		{`{"a":1,"a":1}`, "twice"}, {`{"a":1,"\u0061":2}`, "twice"}, {`[{"b":1,"a":1,"b":2}]`, "twice"},
		{`{"a" 1}`, "without ':'"}, {`{a:1}`, "member name"}, {`{"a":1,}`, "member name"}, {`[1,]`, "not a value"}, {`[1`, "without ',' or ']'"},
		{`"a`, "inside a string"}, {`"a\`, "inside a string"}, {`"\x"`, "unknown escape"}, {`"\u12g4"`, "bad \\u"}, {`"\u12`, "bad \\u"},
		{"\"a\nb\"", "control character"}, {"\"\xff\"", "invalid UTF-8"}, {"\xef\xbb\xbf{}", "not a value"},
		{`1e9999999999`, "nine digits"},
		{deep(257 + 1), "deeper than 256"},
	} {
		_, err := canonical.JSON(nil, []byte(c.src))
		var e *canonical.Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("JSON(%.40q) = %v, want *Error with %q", c.src, err, c.want)
		}
	}
	if _, err := canonical.JSON(nil, []byte(deep(256))); err != nil {
		t.Errorf("256 levels: %v", err)
	}
}

// A field boundary moved by one byte is another list.
func TestGoldenHashes(t *testing.T) {
	t.Parallel()
	sum := func(fields ...string) string {
		h := canonical.NewHasher("onceq test v1")
		for _, f := range fields {
			h.WriteString(f)
		}
		s := h.Sum()
		return hex.EncodeToString(s[:])
	}
	if got, want := sum("a|b", "c"), "9626ee5ca468604fe5dc6c4aa1c1e4520d4a6726e89fea27914076c84b53fb03"; got != want {
		t.Errorf("sum = %s, want %s", got, want)
	}
	seen := map[string][]string{}
	for _, fields := range [][]string{{}, {""}, {"", ""}, {"a|b", "c"}, {"a", "b|c"}, {"a", "b", "c"}, {"abc"}, {"a|bc"}} {
		s := sum(fields...)
		if other, ok := seen[s]; ok {
			t.Errorf("%q and %q have one hash", fields, other)
		}
		seen[s] = fields
	}
	h := canonical.NewHasher("onceq test v1")
	h.Write([]byte("a|b"))
	h.Write([]byte("c"))
	if s := h.Sum(); hex.EncodeToString(s[:]) != sum("a|b", "c") {
		t.Error("Write and WriteString differ")
	}
}

func FuzzJSON(f *testing.F) {
	for _, s := range []string{
		`{"b":[1,2.50,-3e7],"a":{"d":"\u00e9\ud83d","c":null}}`, `1e-5`, `0.0`, `"\ud83d\ude00"`, `[[[]]]`, `{"":0}`,
		`9007199254740993`, `{"a":1,"\u0061":2}`, "\"\x7f\"", ` [ ] `, `12e-0`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		got, err := canonical.JSON(nil, src)
		if err != nil {
			if got != nil {
				t.Fatalf("JSON(%q) = %q with %v", src, got, err)
			}
			return
		}
		again, err := canonical.JSON(nil, got)
		if err != nil || !bytes.Equal(again, got) {
			t.Fatalf("JSON(%q) = %q, whose form is %q, %v", src, got, again, err)
		}
		if bytes.Contains(got, []byte(`\ud`)) {
			return // half a surrogate pair: the standard library forgets which
		}
		a, errA := decode(src)
		b, errB := decode(got)
		if errA != nil || errB != nil || !reflect.DeepEqual(a, b) {
			t.Fatalf("JSON(%q) = %q: decoded %v, %v and %v, %v", src, got, a, errA, b, errB)
		}
	})
}

// decode reads a document as the standard library does, numbers as rationals
// where that is affordable.
func decode(src []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(src))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	return exact(v), nil
}

func exact(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = exact(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = exact(v[k])
		}
	case json.Number:
		m, e, _ := strings.Cut(strings.ToLower(string(v)), "e")
		if strings.Trim(m, "-0.") == "" {
			return "0"
		}
		if len(strings.TrimLeft(e, "+-0")) > 3 {
			return "large"
		}
		r, _ := new(big.Rat).SetString(string(v))
		return r.RatString()
	}
	return v
}

func BenchmarkJSON(b *testing.B) {
	var doc bytes.Buffer
	doc.WriteString(`{"model":"m","temperature":0.7,"messages":[`)
	for i := range 100 {
		if i > 0 {
			doc.WriteByte(',')
		}
		doc.WriteString(`{"role":"user","content":"` + strings.Repeat(`lorem ipsum \"dolor\" sit amet `, 35) + `"}`)
	}
	doc.WriteString(`]}`)
	b.SetBytes(int64(doc.Len()))
	b.ReportAllocs()
	var dst []byte
	for b.Loop() {
		var err error
		if dst, err = canonical.JSON(dst[:0], doc.Bytes()); err != nil {
			b.Fatal(err)
		}
	}
}
