// Package integration holds the tests that concern several packages at once.
package integration

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/nexuscore/onceq"

// arrows says which packages of the module a package may import.
var arrows = map[string][]string{
	"idempotent":   {"internal"},
	"checkpoint":   {"internal"},
	"llmcache":     {"internal"},
	"notify":       {"internal"},
	"orchestrator": {"idempotent", "checkpoint", "llmcache", "notify", "internal"},
	"internal":     {"internal"},
	// Programs that prove what the whole does: nothing imports them.
	"internal/chaos": {"idempotent", "checkpoint", "llmcache", "notify", "orchestrator", "internal"},
	"examples":       {"idempotent", "checkpoint", "llmcache", "notify", "orchestrator", "internal", "examples"},
}

// barred says what a package must not link, with all it imports.
var barred = map[string][]string{
	"idempotent":   {"gorm.io/", "github.com/slack-go", "mattn/go-sqlite3", "miniredis"},
	"checkpoint":   {"gorm.io/", "hibiken/asynq", "github.com/slack-go", "mattn/go-sqlite3", "miniredis"},
	"llmcache":     {"gorm.io/", "hibiken/asynq", "github.com/slack-go", "mattn/go-sqlite3", "miniredis", "openai"},
	"notify":       {"hibiken/asynq", "redis/go-redis", "mattn/go-sqlite3", "jackc/pgx", "go-sql-driver", "miniredis"},
	"orchestrator": {"mattn/go-sqlite3", "jackc/pgx", "go-sql-driver", "miniredis", "openai"},
}

// list returns "import path: imports" lines of go list.
func list(t *testing.T, format string, patterns ...string) map[string][]string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-f", "{{.ImportPath}} " + format}, patterns...)...)
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	m := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		m[f[0]] = f[1:]
	}
	return m
}

func area(path string) (string, bool) {
	rest, ok := strings.CutPrefix(path, module+"/")
	if !ok {
		return "", false
	}
	if _, program := arrows[rest]; program {
		return rest, true
	}
	first, _, _ := strings.Cut(rest, "/")
	return first, true
}

func TestImportsPointOneWay(t *testing.T) {
	for pkg, imports := range list(t, `{{join .Imports " "}}`, "./...") {
		from, ok := area(pkg)
		if !ok {
			t.Errorf("%s: the module's root holds no code", pkg)
			continue
		}
		for _, imp := range imports {
			to, ok := area(imp)
			if !ok || to == from {
				continue
			}
			if !slices.Contains(arrows[from], to) {
				t.Errorf("%s imports %s: not an arrow of the design", pkg, imp)
			}
		}
	}
}

func TestWhatUsersLink(t *testing.T) {
	for name, never := range barred {
		for pkg, deps := range list(t, `{{join .Deps " "}}`, "./"+name) {
			for _, dep := range deps {
				for _, bad := range never {
					if strings.Contains(dep, bad) {
						t.Errorf("%s links %s", pkg, dep)
					}
				}
			}
		}
	}
}

// Nothing but the agreed entries at the top.
func TestTopLevel(t *testing.T) {
	cmd := exec.Command("git", "ls-files")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Skip("not a git checkout") // an unpacked module has no list of its files
	}
	allowed := strings.Fields("go.mod go.sum Makefile README.md idempotent checkpoint llmcache notify orchestrator internal examples docs")
	for line := range strings.Lines(string(out)) {
		first, _, _ := strings.Cut(strings.TrimSpace(line), "/")
		if !strings.HasPrefix(first, ".") && !slices.Contains(allowed, first) {
			t.Errorf("%q does not belong at the top", first)
		}
	}
}
