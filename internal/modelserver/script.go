package modelserver

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// brief is what the script knows of a request.
type brief struct {
	goal    string   // on one line
	clauses []string // what the goal asks for, piece by piece; never empty
	program program
	user    string // all that the user said
}

// script holds one writer per task. Each is a pure function of the brief.
var script = map[string]func(brief) string{
	"context":      writeContext,
	"requirements": writeRequirements,
	"acceptance":   writeAcceptance,
	"outline":      writeOutline,
	"risks":        writeRisks,
	"estimate":     writeEstimate,
	"architecture": writeArchitecture,
	"decisions":    writeDecisions,
	"code":         func(b brief) string { return b.program.code(b) },
	"tests":        func(b brief) string { return b.program.tests(b) },
	"usage":        writeUsage,
	"repair":       func(b brief) string { return b.program.code(b) + "\n" + b.program.tests(b) },
	"test-report":  writeTestReport,
	"review":       writeReview,
	"verdict":      writeVerdict,
}

// Tasks lists the tasks that the script knows, sorted.
func Tasks() []string { return slices.Sorted(maps.Keys(script)) }

// answerTo writes the answer to a request.
func answerTo(phase, task string, req chatRequest) string {
	write, ok := script[task]
	if !ok {
		return fmt.Sprintf("I am %s, a script and no language model, and I have nothing for phase %q, task %q. I know these tasks: %s.\n",
			Model, phase, task, strings.Join(Tasks(), ", "))
	}
	user := req.text("user")
	goal := oneLine(section(user, "goal"), 600)
	b := brief{goal: goal, clauses: clauses(section(user, "goal")), user: user}
	b.program = choose(b)
	return write(b)
}

// section returns what stands between <name> and the last </name>; all of text
// if there is no such section.
func section(text, name string) string {
	_, after, ok := strings.Cut(text, "<"+name+">")
	if !ok {
		return text
	}
	if i := strings.LastIndex(after, "</"+name+">"); i >= 0 {
		after = after[:i]
	}
	return after
}

// oneLine makes any text fit for one line of Markdown or a Go comment.
func oneLine(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == utf8.RuneError || r == '\ufeff' || unicode.IsControl(r) || r == '\u2028' || r == '\u2029':
			return ' '
		case r == '`':
			return '\''
		}
		return r
	}, s)
	s = strings.Join(strings.Fields(s), " ")
	if runes := []rune(s); len(runes) > most {
		s = string(runes[:most]) + "…"
	}
	return s
}

const maxClauses = 8

var (
	sentenceEnd = regexp.MustCompile(`[.!?;]+(?:\s+|$)|\s*\n\s*(?:[-*]\s+|\d+[.)]\s+)?`)
	clauseEnd   = regexp.MustCompile(`,?\s+(?:and|then|but)\s+|,\s+`)
)

// clauses takes a text apart into what it asks for. A piece under three words
// stays with the one before it.
func clauses(text string) []string {
	text = text[:min(len(text), 16<<10)]
	var out []string
	for _, sentence := range sentenceEnd.Split(text, -1) {
		first := true
		for _, c := range clauseEnd.Split(sentence, -1) {
			c = oneLine(c, 160)
			switch {
			case c == "":
				continue
			case !first && len(strings.Fields(c)) < 3:
				out[len(out)-1] = oneLine(out[len(out)-1]+" and "+c, 200)
			default:
				out = append(out, c)
			}
			first = false
		}
		if len(out) >= maxClauses {
			return out[:maxClauses]
		}
	}
	if len(out) == 0 {
		return []string{"what was asked for, which was nothing"}
	}
	return out
}

// asJSON fences a value, as chat models do.
func asJSON(v any) string {
	p, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return "null"
	}
	return "```json\n" + string(p) + "\n```\n"
}
