package forge

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	maxDocument = 64 << 10
	maxFiles    = 20
	maxCode     = 192 << 10 // of all files together
)

// document accepts a text, without the fence that some models put around it.
func document(text string) (string, error) {
	text = strings.TrimSpace(text)
	if body, ok := strings.CutPrefix(text, "```markdown\n"); ok {
		text = strings.TrimSpace(strings.TrimSuffix(body, "```"))
	}
	switch {
	case text == "":
		return "", unusablef("it is empty")
	case len(text) > maxDocument:
		return "", unusablef("it has %d bytes, allowed are %d", len(text), maxDocument)
	}
	return text + "\n", nil
}

var numbered = regexp.MustCompile(`(?m)^[ \t]*(?:[-*+|#]+[ \t]*)?\**(?:R|REQ|FR|NFR)[- ]?(\d{1,3})\**[ \t]*[.:)|–-]+\**[ \t]*(.+)$`)

// requirements accepts a document with numbered requirements in it.
func requirements(text string) (Requirements, error) {
	doc, err := document(text)
	if err != nil {
		return Requirements{}, err
	}
	r := Requirements{Document: doc}
	for _, m := range numbered.FindAllStringSubmatch(doc, 200) {
		r.Items = append(r.Items, Requirement{"R" + m[1], strings.Trim(m[2], " \t\r|*")})
	}
	if len(r.Items) == 0 {
		return r, unusablef("it has no requirements numbered R1., R2. and so on, each on a line of its own")
	}
	return r, nil
}

// structured accepts the first JSON value in an answer that is a T and that
// check finds nothing wrong with. Models wrap JSON in fences, in sentences, and
// lists in objects.
func structured[T any](check func(T) error) func(string) (T, error) {
	return func(text string) (T, error) {
		var first error
		tries := 0
		for i := range len(text) {
			if text[i] != '{' && text[i] != '[' {
				continue
			}
			if tries++; tries > 50 {
				break
			}
			var v T
			err := json.NewDecoder(strings.NewReader(text[i:])).Decode(&v)
			if err == nil {
				err = check(v)
			}
			if err == nil {
				return v, nil
			}
			if first == nil {
				first = err
			}
		}
		var zero T
		if first == nil {
			return zero, unusablef("there is no JSON in it")
		}
		return zero, unusablef("its JSON is not what was asked for: %.200v", first)
	}
}

// list accepts 1 to 100 elements.
func list[E any](check func(E) bool, want string) func([]E) error {
	return func(l []E) error {
		if len(l) == 0 || len(l) > 100 {
			return unusablef("it has %d elements, allowed are 1 to 100", len(l))
		}
		if i := slices.IndexFunc(l, func(e E) bool { return !check(e) }); i >= 0 {
			return unusablef("element %d lacks %s", i+1, want)
		}
		return nil
	}
}

var (
	// goName is the only kind of name under which a model's file is written.
	goName    = regexp.MustCompile(`^[a-z][a-z0-9_]{0,59}\.go$`)
	anyName   = regexp.MustCompile(`[^\s"'*:=(){}<>,]*\.(?:go|mod|sum)\b`)
	nameLine  = regexp.MustCompile(`^(?://|#)[ \t]*(?i:file(?:name)?:?[ \t]*)?([^\s"'*]*\.(?:go|mod|sum))[ \t]*$`)
	openFence = regexp.MustCompile("^[ \\t]{0,3}(```+|~~~+)[ \\t]*([^`]*)$")
)

// block is a fenced part of an answer.
type block struct {
	lang, name string // "" if not said
	text       string
}

// blocks finds the fenced parts. The name of a file may stand behind the fence,
// in a comment on the first line, or on the line before.
func blocks(text string) []block {
	var out []block
	lines := strings.SplitAfter(text, "\n")
	before := ""
	for i := 0; i < len(lines); i++ {
		line := strings.TrimRight(lines[i], "\r\n")
		m := openFence.FindStringSubmatch(line)
		if m == nil {
			if strings.TrimSpace(line) != "" {
				before = line
			}
			continue
		}
		var body []string
		for i++; i < len(lines) && !closes(lines[i], m[1]); i++ {
			body = append(body, lines[i])
		}
		out = append(out, named(m[2], before, body))
		before = ""
	}
	return out
}

func closes(line, fence string) bool {
	line = strings.TrimSpace(line)
	return len(line) >= len(fence) && strings.Trim(line, fence[:1]) == ""
}

func named(info, before string, body []string) block {
	var b block
	info = strings.TrimSpace(info)
	if end := strings.IndexAny(info, " \t:,{"); end >= 0 {
		b.lang, b.name = info[:end], anyName.FindString(info[end:])
	} else {
		b.lang = info
	}
	if strings.HasSuffix(b.lang, ".go") {
		b.lang, b.name = "go", b.lang
	}
	b.lang = strings.ToLower(b.lang)
	if len(body) > 0 {
		if m := nameLine.FindStringSubmatch(strings.TrimSpace(body[0])); m != nil {
			body = body[1:]
			b.name = m[1]
		}
	}
	if b.name == "" && (b.lang == "go" || b.lang == "golang") {
		b.name = strings.Trim(anyName.FindString(before), "`[]")
	}
	b.text = strings.Join(body, "")
	return b
}

// files accepts Go files in fences, at least one, all of one package and with
// nothing but the standard library. fallback names a single file without a name.
func files(fallback string) func(string) ([]File, error) {
	return func(text string) ([]File, error) {
		all := blocks(text)
		if len(all) == 0 && strings.HasPrefix(strings.TrimSpace(text), "package ") {
			all = []block{{"go", "", text}}
		}
		var out []File
		unnamed, size := 0, 0
		for _, b := range all {
			switch {
			case strings.HasSuffix(b.name, ".mod") || strings.HasSuffix(b.name, ".sum"):
				continue // the module file is ours
			case b.name == "" && b.lang != "go" && b.lang != "golang":
				continue // a command line, an output
			case b.name == "":
				unnamed++
				b.name = fallback
			}
			f, err := goFile(b)
			if err != nil {
				return nil, err
			}
			size += len(f.Content)
			out = merge(out, []File{f})
		}
		switch {
		case len(out) == 0:
			return nil, unusablef("there is no Go file in it")
		case unnamed > 1:
			return nil, unusablef("%d of its files have no name; begin each with a line // file: name.go", unnamed)
		case len(out) > maxFiles || size > maxCode:
			return nil, unusablef("it has %d files of %d bytes, allowed are %d of %d", len(out), size, maxFiles, maxCode)
		}
		return out, nil
	}
}

// code accepts the program's own files; tests come from a question of their own.
func code(text string) ([]File, error) {
	all, err := files("main.go")(text)
	if err != nil {
		return nil, err
	}
	if all = slices.DeleteFunc(all, isTest); len(all) == 0 {
		return nil, unusablef("there are only tests in it")
	}
	return all, nil
}

// tests accepts test files and passes over others.
func tests(text string) ([]File, error) {
	all, err := files("main_test.go")(text)
	if err != nil {
		return nil, err
	}
	if all = slices.DeleteFunc(all, func(f File) bool { return !isTest(f) }); len(all) == 0 {
		return nil, unusablef("there is no file in it whose name ends in _test.go")
	}
	return all, nil
}

func isTest(f File) bool { return strings.HasSuffix(f.Name, "_test.go") }

// goFile checks one file.
func goFile(b block) (File, error) {
	name := strings.TrimPrefix(b.name, "./")
	if !goName.MatchString(name) {
		return File{}, unusablef("a file is called %.60q; use plain names such as main.go, lower case, without a directory", b.name)
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), name, b.text, parser.SkipObjectResolution)
	if err != nil {
		return File{}, unusablef("%s is not Go: %.200v", name, err)
	}
	if parsed.Name.Name != "main" {
		return File{}, unusablef("%s is in package %.40q; all files must be in package main", name, parsed.Name.Name)
	}
	for _, imp := range parsed.Imports {
		path, err := strconv.Unquote(imp.Path.Value)
		if err != nil || !standard(path) {
			return File{}, unusablef("%s imports %.80q; use the standard library alone", name, path)
		}
	}
	if strings.HasSuffix(name, "_test.go") && !hasTest(parsed) {
		return File{}, unusablef("%s has no test function", name)
	}
	return File{name, b.text}, nil
}

func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return path != "C" && path != "" && !strings.Contains(first, ".")
}

func hasTest(f *ast.File) bool {
	return slices.ContainsFunc(f.Decls, func(d ast.Decl) bool {
		fn, ok := d.(*ast.FuncDecl)
		return ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test") && fn.Name.Name != "TestMain"
	})
}

// merge returns both, by name; a file of b replaces one of a.
func merge(a, b []File) []File {
	out := slices.DeleteFunc(slices.Clone(a), func(f File) bool {
		return slices.ContainsFunc(b, func(g File) bool { return g.Name == f.Name })
	})
	out = append(out, b...)
	slices.SortFunc(out, func(f, g File) int { return strings.Compare(f.Name, g.Name) })
	return out
}
