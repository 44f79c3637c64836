package forge

import (
	"encoding/json"
	"fmt"
	"strings"
)

func (s *State) goal() part { return part{"goal", s.Goal} }

func (s *State) reqs() part { return part{"requirements", s.Requirements.Document} }

func (s *State) askContext() question {
	return question{phase: "context", task: "context", stream: true, parts: []part{s.goal()},
		instructions: "You prepare small software projects. Sum up in Markdown, in at most 300 words, what the goal means: what is asked for, the shape of the work, open questions and what you assume about each."}
}

func (s *State) askRequirements() question {
	return question{phase: "requirements", task: "requirements", stream: true, parts: []part{s.goal(), {"context", s.Context}},
		instructions: "You write requirements. Write a Markdown document with the title \"# Requirements\" and one requirement per line, numbered \"R1.\", \"R2.\" and so on: at most fifteen, each of which a test can check."}
}

func (s *State) askAcceptance() question {
	return question{phase: "requirements", task: "acceptance", parts: []part{s.goal(), s.reqs()},
		instructions: `You write acceptance criteria. Answer with JSON only: [{"requirement": "R1", "given": "...", "then": "..."}], at least one per requirement.`}
}

func (s *State) askOutline() question {
	return question{phase: "planning", task: "outline", parts: []part{s.goal(), s.reqs()},
		instructions: `You plan. Answer with JSON only: {"milestones": [{"id": "M1", "title": "...", "requirements": ["R1"], "tasks": ["..."]}]}, at most six milestones that together cover every requirement.`}
}

func (s *State) askRisks() question {
	return question{phase: "planning", task: "risks", parts: []part{s.goal(), s.reqs(), asPart("milestones", s.Plan.Milestones)},
		instructions: `You look for risks. Answer with JSON only: [{"risk": "...", "likelihood": "low, medium or high", "mitigation": "..."}], at most six.`}
}

func (s *State) askEstimate() question {
	return question{phase: "planning", task: "estimate", parts: []part{s.goal(), asPart("milestones", s.Plan.Milestones), asPart("risks", s.Plan.Risks)},
		instructions: `You estimate how long the plan takes one experienced person. Answer with JSON only: {"hours": 12, "confidence": "low, medium or high", "basis": "..."}.`}
}

func (s *State) askArchitecture() question {
	return question{phase: "architecture", task: "architecture", stream: true, parts: []part{s.goal(), s.reqs(), asPart("milestones", s.Plan.Milestones)},
		instructions: "You design small Go programs. Write a note in Markdown, in at most 400 words: the parts and their files, how data flows, what is left out and why. One package main in one directory, standard library only."}
}

func (s *State) askDecisions() question {
	return question{phase: "architecture", task: "decisions", parts: []part{s.goal(), {"architecture", s.Architecture.Document}},
		instructions: `You record design decisions. Answer with JSON only: [{"title": "...", "choice": "...", "reason": "..."}], at most six.`}
}

const codeForm = "Answer with one fenced Go block per file, each with a first line \"// file: name.go\": a plain lower-case name, no directory. All files are in package main and import the standard library alone. Do not write a go.mod."

func (s *State) askCode() question {
	return question{phase: "implementation", task: "code", stream: true, parts: []part{s.goal(), s.reqs(), {"architecture", s.Architecture.Document}},
		instructions: "You write Go programs that are small, complete and compile as they are. Write the program, without tests. Let main call a function that takes arguments and streams and returns the exit status, so that a test can call it. " + codeForm}
}

func (s *State) askTests() question {
	return question{phase: "implementation", task: "tests", stream: true, parts: []part{s.goal(), s.reqs(), {"code", s.program()}},
		instructions: "You test Go programs. Write tests for the program: tables where they fit, no network, no sleeping, files only in t.TempDir(). The names of the files end in _test.go. " + codeForm}
}

func (s *State) askUsage() question {
	return question{phase: "implementation", task: "usage", parts: []part{s.goal(), {"code", s.program()}},
		instructions: "You write for users. Write a README in Markdown, in at most 200 words: what the program does, how to run it with an example, how to test it."}
}

func (s *State) askRepair(n int) question {
	return question{phase: "testing", task: "repair", step: fmt.Sprintf("repair-%d", n), stream: true,
		parts:        []part{s.goal(), {"code", s.program()}, {"test-output", s.Tests.Output}},
		instructions: "You mend Go programs. The tests fail, or the program does not compile. Answer with every file that must change, whole, under its old name. Do not weaken a test that is right. " + codeForm}
}

func (s *State) askTestReport() question {
	return question{phase: "testing", task: "test-report", parts: []part{s.goal(), s.reqs(), {"test-output", s.Tests.Output}},
		instructions: "You report on tests. Write a Markdown document with the title \"# Test report\", in at most 200 words: the result, and for each requirement what covers it. Claim nothing that the output does not show."}
}

func (s *State) askReview() question {
	return question{phase: "review", task: "review", stream: true, parts: []part{s.goal(), s.reqs(), {"code", s.program()}, {"test-output", s.Tests.Output}},
		instructions: "You review Go programs. Write a Markdown document with the title \"# Review\", in at most 400 words: what is good, then findings numbered F1, F2 and so on, each with its weight."}
}

func (s *State) askVerdict() question {
	return question{phase: "review", task: "verdict", parts: []part{s.goal(), {"review", s.Review.Document}, {"test-output", s.Tests.Output}},
		instructions: `You decide whether the program can be handed over. Answer with JSON only: {"approved": true, "reasons": ["..."]}. Without a passing test run it cannot.`}
}

// program is all files in one text, in the form in which they are asked for.
func (s *State) program() string {
	var b strings.Builder
	for _, f := range s.Files {
		fmt.Fprintf(&b, "// file: %s\n%s\n", f.Name, f.Content)
	}
	return b.String()
}

func asPart(name string, v any) part {
	p, err := json.Marshal(v)
	if err != nil { // these types always can
		return part{name, err.Error()}
	}
	return part{name, string(p)}
}
