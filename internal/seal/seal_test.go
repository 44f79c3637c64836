package seal_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/nexuscore/onceq/internal/seal"
)

func TestSeal(t *testing.T) {
	t.Parallel()
	old, fresh := bytes.Repeat([]byte{1}, 16), bytes.Repeat([]byte{2}, 32)
	before, err := seal.New(old)
	if err != nil {
		t.Fatal(err)
	}
	now, err := seal.New(fresh, old)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []seal.AESGCM{before, now} {
		sealed, err := s.Seal([]byte("secret"), []byte("here"))
		if err != nil || bytes.Contains(sealed, []byte("secret")) {
			t.Fatalf("Seal = %q, %v", sealed, err)
		}
		if plain, err := now.Open(sealed, []byte("here")); err != nil || string(plain) != "secret" {
			t.Errorf("Open = %q, %v", plain, err)
		}
		if _, err := now.Open(sealed, []byte("there")); err == nil {
			t.Error("opened at another place")
		}
		sealed[len(sealed)-1]++
		if _, err := now.Open(sealed, []byte("here")); err == nil {
			t.Error("opened though changed")
		}
	}
	sealed, _ := now.Seal([]byte("secret"), nil)
	if _, err := before.Open(sealed, nil); err == nil {
		t.Error("opened with a key it was not sealed with")
	}
	if _, err := before.Open([]byte("x"), nil); err == nil {
		t.Error("opened what is too short")
	}
	if _, err := seal.New([]byte("short")); err == nil || !strings.Contains(err.Error(), "5 bytes") {
		t.Errorf("New = %v, want the key's length", err)
	}
}

type panics struct{}

func (panics) Seal(_, _ []byte) ([]byte, error)            { panic("no key") }
func (panics) Open(sealed, _ []byte) (p []byte, err error) { return sealed[100:], nil }

func TestAHostsPanicIsAnError(t *testing.T) {
	if b, err := seal.Seal(panics{}, []byte("x"), nil); b != nil || err == nil || err.Error() != "panic: no key" {
		t.Errorf("Seal = %q, %v", b, err)
	}
	if b, err := seal.Open(panics{}, []byte("x"), nil); b != nil || err == nil {
		t.Errorf("Open = %q, %v; want an error", b, err)
	}
}
