package modelserver

import (
	"embed"
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

//go:embed answers
var answers embed.FS

// program is one of the small Go programs that the script can write.
type program struct {
	name  string // of its directory, its core file and its module
	what  string // one sentence
	usage string // a command line
	words []string
}

// programs, of which the one with the most words in the goal is chosen, the
// earlier on a draw. The last is for every other goal.
var programs = []program{
	{"wordcount", "It counts lines, words and bytes, and says which words are frequent.", "go run . -top 3 file.txt other.txt",
		[]string{"word", "words", "count", "counts", "counting", "line", "lines", "frequency", "frequent", "wc", "text", "files"}},
	{"stats", "It reads numbers and prints count, sum, mean, median, smallest and largest.", "go run . < numbers.txt",
		[]string{"number", "numbers", "sum", "mean", "average", "median", "statistics", "stats", "calculate", "calculator", "csv", "column"}},
	{"todo", "It keeps a list of tasks: add, finish, remove, show.", "go run . add \"buy milk\"",
		[]string{"todo", "task", "tasks", "list", "note", "notes", "reminder", "reminders", "inventory", "checklist", "items"}},
	{"cache", "It is a cache of bounded size that forgets what was used least recently, and what is too old.", "go run . < commands.txt",
		[]string{"cache", "caching", "lru", "ttl", "key", "value", "keys", "values", "kv", "store", "memory", "expiry"}},
	{"shorten", "It gives long URLs short names and finds them again.", "go run . https://example.com/a/long/path",
		[]string{"url", "urls", "link", "links", "shorten", "shortener", "short", "redirect", "bookmark", "bookmarks"}},
	{"slug", "It turns titles into slugs that are safe in URLs and file names.", "go run . \"Crème brûlée: a recipe\"",
		[]string{"slug", "slugs", "title", "titles", "normalise", "normalize", "rename", "sanitise", "sanitize", "string", "strings"}},
	{"tracker", "It tracks which parts of the goal are done.", "go run . 1 2",
		nil},
}

// choose picks the program that fits the goal best.
func choose(b brief) program {
	words := map[string]bool{}
	for _, w := range strings.FieldsFunc(strings.ToLower(b.goal), func(r rune) bool { return !unicode.IsLetter(r) }) {
		words[w] = true
	}
	best, most := programs[len(programs)-1], 0
	for _, p := range programs {
		n := 0
		for _, w := range p.words {
			if words[w] {
				n++
			}
		}
		if n > most {
			best, most = p, n
		}
	}
	return best
}

func (p program) code(b brief) string {
	return "The program has two files.\n\n" + p.file(b, "main.go") + "\n" + p.file(b, p.name+".go")
}

func (p program) tests(b brief) string { return p.file(b, p.name+"_test.go") }

// file is one file of the program in a fence, as chat models write it.
func (p program) file(b brief, name string) string {
	src, err := answers.ReadFile("answers/" + p.name + "/" + name + ".txt")
	if err != nil {
		return fmt.Sprintf("I have no %s.\n", name) // a test reads every file
	}
	var quoted strings.Builder
	for _, c := range b.clauses {
		quoted.WriteString("\t" + strconv.Quote(c) + ",\n")
	}
	text := strings.NewReplacer("{{goal}}", b.goal, "{{clauses}}\n", quoted.String()).Replace(string(src))
	return "```go\n// file: " + name + "\n" + text + "```\n"
}
