package forge

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
)

// goMod is the module file of every generated program. It is never the model's.
const goMod = "module generated\n\ngo 1.24\n"

const tempPrefix = ".tmp-"

// artefact is a file of a run, by its slash-separated path under the directory.
type artefact struct{ name, content string }

// write brings the files to disk, each whole or not at all. It may be repeated:
// what is there already stays untouched. Paths cannot leave the run's directory,
// not even through a link in it.
func (f *Forge) write(ctx context.Context, s *State, files ...artefact) error {
	dir := f.Dir(s.Run)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("forge: artefacts: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("forge: artefacts: %w", err)
	}
	defer root.Close()
	for _, a := range files {
		// A run that lost its lease ends here. A file system knows no fencing token:
		// what remains is the moment between this look and the rename.
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := writeFile(root, a); err != nil {
			return fmt.Errorf("forge: artefact %s: %w", a.name, err)
		}
	}
	return nil
}

func writeFile(root *os.Root, a artefact) error {
	if old, err := root.ReadFile(a.name); err == nil && bytes.Equal(old, []byte(a.content)) {
		return nil
	}
	dir := path.Dir(a.name)
	if err := root.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	// A name of its own: an attempt that should have ended may still write too.
	temp := path.Join(dir, tempPrefix+rand.Text())
	if err := root.WriteFile(temp, []byte(a.content), 0o644); err != nil {
		_ = root.Remove(temp)
		return err
	}
	if err := root.Rename(temp, a.name); err != nil {
		_ = root.Remove(temp)
		return err
	}
	return nil
}

// writeProgram brings the program to disk and takes away what is not of it: Go
// files of an attempt that got other answers, temporary files of a killed one.
func (f *Forge) writeProgram(ctx context.Context, s *State) error {
	files := []artefact{{"code/go.mod", goMod}, {"code/README.md", s.Usage}}
	ours := map[string]bool{"go.mod": true, "README.md": true}
	for _, file := range s.Files {
		if !goName.MatchString(file.Name) { // a state from elsewhere; parse lets none through
			return fmt.Errorf("forge: artefacts: a file of the program is called %.60q", file.Name)
		}
		files = append(files, artefact{"code/" + file.Name, file.Content})
		ours[file.Name] = true
	}
	if err := f.write(ctx, s, files...); err != nil {
		return err
	}
	root, err := os.OpenRoot(f.Dir(s.Run))
	if err != nil {
		return fmt.Errorf("forge: artefacts: %w", err)
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), "code")
	if err != nil {
		return fmt.Errorf("forge: artefacts: %w", err)
	}
	for _, e := range entries {
		stale := strings.HasSuffix(e.Name(), ".go") || strings.HasPrefix(e.Name(), tempPrefix)
		if !stale || ours[e.Name()] {
			continue
		}
		if err := root.RemoveAll("code/" + e.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("forge: artefacts: %w", err)
		}
	}
	return nil
}

func (s *State) contextFile() artefact { return artefact{"context.md", s.Context + s.footer()} }

func (s *State) requirementsFile() artefact {
	var b strings.Builder
	b.WriteString(s.Requirements.Document)
	b.WriteString("\n## Acceptance\n\n| requirement | given | then |\n|---|---|---|\n")
	for _, c := range s.Requirements.Acceptance {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", cell(c.Requirement), cell(c.Given), cell(c.Then))
	}
	return artefact{"requirements.md", b.String() + s.footer()}
}

func (s *State) planFile() (artefact, error) {
	p, err := json.MarshalIndent(struct {
		Goal string `json:"goal"`
		Plan
		Model string `json:"model"`
	}{s.Goal, s.Plan, s.Model}, "", "  ")
	return artefact{"plan.json", string(p) + "\n"}, err
}

func (s *State) architectureFile() artefact {
	var b strings.Builder
	b.WriteString(s.Architecture.Document)
	b.WriteString("\n## Decisions\n\n| about | choice | reason |\n|---|---|---|\n")
	for _, d := range s.Architecture.Decisions {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", cell(d.Title), cell(d.Choice), cell(d.Reason))
	}
	return artefact{"architecture.md", b.String() + s.footer()}
}

func (s *State) testFiles() []artefact {
	return []artefact{
		{"test-output.txt", s.Tests.Output},
		{"test-report.md", s.Report + s.footer()},
	}
}

func (s *State) reviewFile() artefact {
	verdict := "not approved"
	if s.Review.Approved {
		verdict = "approved"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n## Verdict\n\n%s\n\n", s.Review.Document, verdict)
	for _, r := range s.Review.Reasons {
		fmt.Fprintf(&b, "- %s\n", cell(r))
	}
	return artefact{"review.md", b.String() + s.footer()}
}

func (s *State) footer() string {
	return fmt.Sprintf("\n---\nWritten by the model that calls itself %q.\n", s.Model)
}

// cell makes text fit for a table.
func cell(s string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(s), " "), "|", `\|`)
}
