package checkpoint

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"reflect"
	"testing"
)

// FuzzSnapshot looks for bytes that make the decoder panic, take more memory
// than allowed, or accept what it did not write. Raw bytes seldom get past the
// checksum, so each input is tried again with a right one.
func FuzzSnapshot(f *testing.F) {
	cfg := defaults()
	cfg.maxSize = 1 << 20
	bound := []byte("b")
	value := state{Trail: []string{"1", "ü"}, Notes: map[string]int{"a": 1}}
	good, _, err := cfg.encode(envelope{Done: []string{"1"}, LastDone: "1", Token: 7, SavedAt: 1}, &value, bound)
	if err != nil {
		f.Fatal(err)
	}
	plain := good[1 : len(good)-sumLen]
	f.Add(good)
	f.Add(good[1:])
	f.Add(plain)
	f.Add(append([]byte{formZstd}, encoder().EncodeAll(good[1:], nil)...))
	f.Add([]byte("\x01\x78\x9c\x01\x00\x00\xff\xff\x00\x00\x00\x01"))
	for _, s := range []string{"", "null", "{}", "\x00{}", `{"schema_version":1,"codec":"json","state":null`, `{"schema_version":1,"codec":"json","done":["1"],"last_done":"1","state":{"Trail":"x"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		try := func(b []byte) {
			e, id, err := cfg.decode(b, bound)
			if err != nil {
				return
			}
			if id == "" || e.Version != 1 || e.Codec != "json" {
				t.Fatalf("accepted %q as %+v", b, e)
			}
			var s state
			if cfg.decodeState(e, &s) != nil {
				return
			}
			again, _, err := cfg.encode(*e, &s, bound)
			if err != nil {
				t.Fatalf("accepted %q, but %v", b, err)
			}
			e2, _, err := cfg.decode(again, bound)
			if err != nil {
				t.Fatal(err)
			}
			var s2 state
			if err := cfg.decodeState(e2, &s2); err != nil || !reflect.DeepEqual(s, s2) {
				t.Fatalf("%+v came back as %+v, %v", s, s2, err)
			}
		}
		try(b)
		try(append([]byte{formRaw}, fmt.Appendf(bytes.Clone(b), `,"sum":"%08x"}`, crc32.Checksum(b, castagnoli))...))
	})
}
