package llmcache

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

func sample() *record {
	return &record{
		kind: kindHTTP, model: "gpt-x", usage: Usage{InputTokens: 10, OutputTokens: 5, CachedTokens: 3}, status: 200,
		header: []headerField{{"Content-Type", "text/event-stream"}},
		cuts:   []cut{{3, 0}, {4, 1500 * time.Microsecond}},
		body:   []byte("abcdefg"),
	}
}

func seals(t testing.TB) Sealer {
	t.Helper()
	s, err := NewAESGCM(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func envelopes(t testing.TB, change func(*config)) *envelope {
	t.Helper()
	c := defaults()
	change(&c)
	e, err := newEnvelope(c)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// A worker of yesterday left this in Redis.
func TestGoldenRecord(t *testing.T) {
	t.Parallel()
	writes := sample()
	writes.usage.CacheWriteTokens = 2
	e := envelopes(t, func(*config) {})
	for stored, want := range map[string]*record{
		"010003056770742d780a0503c801010c436f6e74656e742d5479706511746578742f6576656e742d73747265616d02030004dc0b0761626364656667":   sample(),
		"020003056770742d780a050302c801010c436f6e74656e742d5479706511746578742f6576656e742d73747265616d02030004dc0b0761626364656667": writes,
	} {
		data, err := e.wrap(want, "k")
		if got := hex.EncodeToString(data); err != nil || got != stored {
			t.Errorf("wrap = %s, %v; want %s", got, err, stored)
		}
		b, _ := hex.DecodeString(stored)
		if r, err := e.open(b, "k"); err != nil || !reflect.DeepEqual(r, want) {
			t.Errorf("open = %+v, %v; want %+v", r, err, want)
		}
	}
}

func TestEnvelope(t *testing.T) {
	t.Parallel()
	large := sample()
	large.body, large.cuts = bytes.Repeat([]byte("data: {}\n\n"), 5000), nil
	for name, e := range map[string]*envelope{
		"plain":      envelopes(t, func(c *config) { c.compress = -1 }),
		"compressed": envelopes(t, func(c *config) { c.compress = 0 }),
		"sealed":     envelopes(t, func(c *config) { c.compress, c.sealer = -1, seals(t) }),
		"both":       envelopes(t, func(c *config) { c.sealer = seals(t) }),
	} {
		for _, r := range []*record{sample(), large} {
			data, err := e.wrap(r, "k")
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			got, err := e.open(data, "k")
			if err != nil || !reflect.DeepEqual(got, r) {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
			if r == large && name != "plain" && name != "sealed" && len(data) > 2000 {
				t.Errorf("%s: %d bytes for %d repeated ones", name, len(data), len(r.body))
			}
			if name == "sealed" || name == "both" {
				if bytes.Contains(data, []byte("abcdefg")) {
					t.Errorf("%s: the answer can be read", name)
				}
				if _, err := e.open(data, "k2"); err == nil {
					t.Errorf("%s: opened as another call's", name)
				}
				data[1] ^= flagCompressed
				if _, err := e.open(data, "k"); err == nil {
					t.Errorf("%s: opened with other flags", name)
				}
			}
		}
	}
	plain, _ := envelopes(t, func(*config) {}).wrap(sample(), "k")
	sealing := envelopes(t, func(c *config) { c.sealer = seals(t) })
	if _, err := sealing.open(plain, "k"); err == nil {
		t.Error("plain text was accepted once sealing is on")
	}
	sealed, _ := sealing.wrap(sample(), "k")
	if _, err := envelopes(t, func(*config) {}).open(sealed, "k"); err == nil {
		t.Error("a sealed record was read without a sealer")
	}
}

func TestDecoderIsBounded(t *testing.T) {
	t.Parallel()
	e := envelopes(t, func(c *config) { c.maxValue = 1000 })
	big := &record{kind: kindBytes, body: make([]byte, 1001)}
	if _, err := e.wrap(big, "k"); err == nil || !strings.Contains(err.Error(), "1001 bytes") {
		t.Errorf("wrap = %v, want the size refused", err)
	}
	large := envelopes(t, func(c *config) { c.maxValue = 8 << 20 })
	for _, size := range []int{1001, 6 << 20} { // the second is a bomb: a few KB stored
		data, err := large.wrap(&record{kind: kindBytes, body: make([]byte, size)}, "k")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.open(data, "k"); !errors.Is(err, errRecord) {
			t.Errorf("%d bytes: %v, want errRecord", size, err)
		}
	}
	header := sample()
	header.header[0].value = strings.Repeat("x", maxFieldSize+1)
	if _, err := large.wrap(header, "k"); err == nil {
		t.Error("an endless header field was stored")
	}
}

func FuzzRecord(f *testing.F) {
	e := envelopes(f, func(c *config) { c.maxValue = 1 << 16 })
	for _, r := range []*record{sample(), {kind: kindBytes}, {kind: kindJSON, body: []byte("{}")}} {
		data, err := e.wrap(r, "k")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		f.Add(data[:len(data)-1])
	}
	small := envelopes(f, func(c *config) { c.compress = 0 })
	data, _ := small.wrap(&record{kind: kindBytes, body: make([]byte, 5000)}, "k")
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := e.open(data, "k")
		if err != nil {
			return
		}
		again, err := e.wrap(r, "k")
		if err != nil {
			t.Fatalf("wrap what was opened: %v", err)
		}
		if r2, err := e.open(again, "k"); err != nil || !reflect.DeepEqual(r, r2) {
			t.Fatalf("%+v became %+v, %v", r, r2, err)
		}
	})
}
