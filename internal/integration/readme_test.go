package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../..", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The README's first code is the program in examples/quickstart, and does what the
// README says.
func TestReadmeQuickstart(t *testing.T) {
	readme, program := read(t, "README.md"), read(t, "examples/quickstart/main.go")
	if !strings.Contains(readme, "```go\n"+program+"```") {
		t.Error("the README's quickstart is not examples/quickstart/main.go")
	}
	if n := strings.Count(program, "\n"); n >= 60 {
		t.Errorf("the quickstart has %d lines, want fewer than 60", n)
	}
	_, promised, _ := strings.Cut(readme, "log lines:\n\n```\n")
	promised, _, _ = strings.Cut(promised, "```")
	cmd := exec.Command("go", "run", "./examples/quickstart")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go run ./examples/quickstart: %v", err)
	}
	// A producer's answer says when to ask again; that may be a moment less.
	normal := func(s string) string {
		return regexp.MustCompile(`ask again in [0-9.]+s`).ReplaceAllString(s, "ask again in 10s")
	}
	if normal(string(out)) != promised {
		t.Errorf("the quickstart prints\n%s\nthe README says\n%s", out, promised)
	}
}

var (
	link = regexp.MustCompile(`\]\(([^)#:]+)\)`)
	code = regexp.MustCompile("(?s)```.*?```")
)

// Every relative link of the documents leads somewhere.
func TestLinks(t *testing.T) {
	docs, _ := filepath.Glob("../../docs/*.md")
	for _, doc := range append(docs, "../../README.md") {
		b, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(string(b), ""), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(doc), m[1])); err != nil {
				t.Errorf("%s links to %s, which is not there", filepath.Base(doc), m[1])
			}
		}
	}
}

// The targets that the README names are there, and help lists them.
func TestMakeTargets(t *testing.T) {
	cmd := exec.Command("make", "help")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("make help: %v", err)
	}
	for _, target := range []string{"demo", "test", "lint", "race", "bench", "fuzz", "chaos", "tidy"} {
		if !strings.Contains(string(out), "make "+target) {
			t.Errorf("make help does not list %s", target)
		}
	}
}
