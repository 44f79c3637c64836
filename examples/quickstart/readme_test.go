package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The README's section on testing shows lines of handler_test.go.
func TestReadmeShowsHandlerTest(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("handler_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(readme), "\n## Testing your handler\n")
	_, shown, _ := strings.Cut(section, "```go\n")
	shown, _, found := strings.Cut(shown, "```")
	flat := func(s string) string { return regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(s, "") }
	if !found || !strings.Contains(flat(string(program)), flat(shown)) {
		t.Errorf("these lines of the README are not in handler_test.go:\n%s", shown)
	}
}
