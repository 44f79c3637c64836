package modelserver

import (
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

var goals = map[string]string{ // program: a goal that must choose it
	"wordcount": "a CLI that counts words in files",
	"stats":     "Compute the average and the median of a CSV column.",
	"todo":      "Keep a todo list with reminders",
	"cache":     "An LRU cache with a TTL per key",
	"shorten":   "A service that makes short links for URLs",
	"slug":      "Turn titles into slugs",
	"tracker":   "Ein Programm, das den Garten gießt; nachts \"nie\" `rm -rf` {{clauses}}\n\x00 \ufeff */ // \\ \xff",
}

// Every program compiles, is formatted, and passes its own tests, whatever the
// goal looks like.
func TestProgramsWork(t *testing.T) {
	dir := t.TempDir()
	for name, goal := range goals {
		b := briefFor(goal)
		if b.program.name != name {
			t.Errorf("goal %q chose %s, want %s", goal, b.program.name, name)
		}
		sub := filepath.Join(dir, name)
		if err := os.Mkdir(sub, 0o700); err != nil {
			t.Fatal(err)
		}
		blocks := strings.Split(b.program.code(b)+b.program.tests(b), "```go\n// file: ")[1:]
		if len(blocks) != 3 {
			t.Fatalf("%s: %d files, want 3", name, len(blocks))
		}
		for _, block := range blocks {
			file, src, _ := strings.Cut(block, "\n")
			src, _, _ = strings.Cut(src, "```\n")
			if formatted, err := format.Source([]byte(src)); err != nil || string(formatted) != src {
				t.Errorf("%s/%s is not formatted: %v", name, file, err)
			}
			if err := os.WriteFile(filepath.Join(sub, file), []byte(src), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module scripted\n\ngo 1.26\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func briefFor(goal string) brief {
	b := brief{goal: oneLine(goal, 600), clauses: clauses(goal), user: goal}
	b.program = choose(b)
	return b
}

func TestClauses(t *testing.T) {
	for _, c := range []struct {
		in   string
		want []string
	}{
		{"A CLI that counts words in files", []string{"A CLI that counts words in files"}},
		{"Read a CSV file, sum the third column and print it. Fail on v1.5 files!", []string{"Read a CSV file", "sum the third column and print it", "Fail on v1.5 files"}},
		{"- first thing here\n- second thing here\n", []string{"- first thing here", "second thing here"}},
		{"", []string{"what was asked for, which was nothing"}},
		{"\x00\xff ...", []string{"what was asked for, which was nothing"}},
		{strings.Repeat("one two three. ", 50), slices.Repeat([]string{"one two three"}, 8)},
	} {
		if got := clauses(c.in); !slices.Equal(got, c.want) {
			t.Errorf("clauses(%q) = %q, want %q", c.in, got, c.want)
		}
	}
}

func TestSplitKeepsTextWhole(t *testing.T) {
	for _, text := range []string{"", "a", strings.Repeat("日本語", 40), strings.Repeat("x", 100), "some words and\nlines of text, a few of them\n", strings.Repeat("\xff", 60)} {
		parts := split(text)
		if strings.Join(parts, "") != text {
			t.Errorf("split(%q) = %q", text, parts)
		}
		for _, p := range parts {
			if p == "" || len(p) > chunkBytes || utf8.ValidString(text) && !utf8.ValidString(p) {
				t.Errorf("part %q of %q", p, text)
			}
		}
	}
}

func FuzzScript(f *testing.F) {
	f.Add("task: code", "<goal>x</goal>")
	f.Fuzz(func(t *testing.T, system, user string) {
		req := chatRequest{Messages: []message{{"system", content(system)}, {"user", content(user)}}}
		phase, task := req.markers()
		for _, task := range append(Tasks(), task) {
			if text := answerTo(phase, task, req); text == "" || len(text) > 32<<10 {
				t.Errorf("task %q: %d bytes", task, len(text))
			}
		}
	})
}
