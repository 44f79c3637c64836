package checkpoint

import (
	"bytes"
	"testing"
)

// What is stored, and the identity by which kept steps know it, outlive a deploy.
func TestStoredFormIsStable(t *testing.T) {
	type s struct{ Goal string }
	cfg := defaults()
	e := envelope{Done: []string{"a", "b"}, LastDone: "b", Token: 7, SavedAt: 946684800000, Stamp: "1", Fingerprint: "f"}
	got, id, err := cfg.encode(e, &s{"<a boat>"}, nil)
	want := "\x00" + `{"schema_version":1,"codec":"json","shape":"RP6xj95xWLw","done":["a","b"],"last_done":"b","token":7,` +
		`"saved_at":946684800000,"stamp":"1","fingerprint":"f","state":{"Goal":"<a boat>"},"sum":"374b85c0"}`
	if err != nil || string(got) != want {
		t.Errorf("stored %q, %v; want %q", got, err, want)
	}
	if want := "641dc631c701"; id != want {
		t.Errorf("identity %s, want %s", id, want)
	}
	if _, read, err := cfg.decode(got, nil); err != nil || read != id {
		t.Errorf("read back as %s, %v; want %s", read, err, id)
	}

	// Compressed, the identity is that of what was compressed.
	large := s{string(bytes.Repeat([]byte("x"), compressAbove))}
	got, id, err = cfg.encode(envelope{}, &large, nil)
	if want := "a7ad1493de8020"; err != nil || got[0] != formZstd || id != want {
		t.Errorf("form %d, identity %s, %v; want %d, %s", got[0], id, err, formZstd, want)
	}
	if _, read, err := cfg.decode(got, nil); err != nil || read != id {
		t.Errorf("read back as %s, %v; want %s", read, err, id)
	}

	// Another codec's bytes are a string.
	cfg.codec = plainBytes{}
	got, _, err = cfg.encode(envelope{}, &s{}, nil)
	if want := "\x00" + `{"schema_version":1,"codec":"upper","state":"AAH/","sum":"589634ea"}`; err != nil || string(got) != want {
		t.Errorf("stored %q, %v; want %q", got, err, want)
	}
}

// plainBytes is a codec that is not JSON.
type plainBytes struct{}

func (plainBytes) Name() string                { return "upper" }
func (plainBytes) Marshal(any) ([]byte, error) { return []byte{0, 1, 255}, nil }
func (plainBytes) Unmarshal([]byte, any) error { return nil }
