package main

import (
	"io"
	"os"
	"strings"
	"testing"
)

func TestArgumentsAreRefused(t *testing.T) {
	if _, err := parse([]string{"-kills", "2", "worker"}); err == nil || !strings.Contains(err.Error(), `"worker": there are flags`) {
		t.Errorf("%v, want the argument refused", err)
	}
}

// Nothing has happened that could be summed up.
func TestABrokerThatIsNoneHasNoSummary(t *testing.T) {
	wasOut, wasErr := os.Stdout, os.Stderr
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	os.Stdout, os.Stderr = w, w
	s, err := parse([]string{"-redis", "foo", "-dir", t.TempDir()})
	ok := err == nil && run(t.Context(), s)
	os.Stdout, os.Stderr = wasOut, wasErr
	_ = w.Close()
	out, _ := io.ReadAll(r)
	if want := "crashresume: -redis: redis: invalid URL scheme: \n"; err != nil || ok || string(out) != want {
		t.Errorf("ok %v, %v, output %q; want %q", ok, err, out, want)
	}
}
