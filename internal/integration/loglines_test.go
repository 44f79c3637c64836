package integration

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// logged is a message in a call of a logger; the libraries' begin with a package or "onceq".
var logged = regexp.MustCompile(`\b(?:Debug|Info|Warn|Error|Log|log|logAttrs)\((?:[^"\n]*, )?"((?:onceq|llmcache|notify): [^"%]+)"`)

// docs/operations.md says what each line means that an operator can meet. A row may name
// several lines that begin alike: `+"`a` / `b`"+`, or the first words of a longer one.
func TestEveryLogLineIsExplained(t *testing.T) {
	doc, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	var known []string
	for _, row := range strings.Split(string(doc), "\n") {
		if !strings.HasPrefix(row, "| `") {
			continue
		}
		cell, _, _ := strings.Cut(row[1:], "|")
		for i, name := range strings.Split(cell, "`") {
			if i%2 == 1 {
				_, rest, found := strings.Cut(name, ": ")
				if !found {
					rest = name
				}
				known = append(known, rest)
			}
		}
	}
	seen := 0
	for _, dir := range []string{"idempotent", "checkpoint", "llmcache", "notify", "orchestrator", "internal/breaker"} {
		err := filepath.WalkDir("../../"+dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "sdktest") {
				return err
			}
			src, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, m := range logged.FindAllStringSubmatch(string(src), -1) {
				seen++
				_, line, _ := strings.Cut(m[1], ": ")
				explained := false
				for _, k := range known {
					// Either may be the shorter: the row's first words, or a message that goes on.
					explained = explained || strings.HasPrefix(line, k) || strings.HasPrefix(k, strings.TrimSpace(line)) || strings.HasSuffix(line, k)
				}
				if !explained {
					t.Errorf("%s logs %q, which docs/operations.md does not explain", path, m[1])
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen < 50 {
		t.Errorf("only %d log lines found: the pattern no longer matches", seen)
	}
}
