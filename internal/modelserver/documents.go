package modelserver

import (
	"fmt"
	"strings"
)

func writeContext(b brief) string {
	var w strings.Builder
	fmt.Fprintf(&w, "## Goal\n\n%s\n\n## What is asked for\n\n", b.goal)
	for _, c := range b.clauses {
		fmt.Fprintf(&w, "- %s\n", c)
	}
	fmt.Fprintf(&w, `
## Shape of the work

%s This is a small, self-contained Go program: it needs the standard library and
nothing else, runs on one machine and keeps no secrets.

## Open questions, and what is assumed

- Size of the input: as much as fits in memory, unless it is read line by line.
- Encoding: UTF-8. Invalid bytes are passed over, not refused.
- Errors: written to standard error; the exit status is 1.
`, b.program.what)
	return w.String()
}

func writeRequirements(b brief) string {
	var w strings.Builder
	fmt.Fprintf(&w, "# Requirements\n\nGoal: %s\n\n## Functional\n\n", b.goal)
	n := 0
	for _, c := range b.clauses {
		n++
		fmt.Fprintf(&w, "R%d. The program shall provide: %s.\n", n, strings.TrimRight(c, "."))
	}
	w.WriteString("\n## General\n\n")
	for _, c := range []string{
		"Wrong input shall give a message that names what is wrong, and exit status 1.",
		"Equal input shall give equal output, in an order that does not change between runs.",
		"The program shall build with the standard library alone and come with tests.",
	} {
		n++
		fmt.Fprintf(&w, "R%d. %s\n", n, c)
	}
	return w.String()
}

func writeAcceptance(b brief) string {
	type criterion struct {
		Requirement string `json:"requirement"`
		Given       string `json:"given"`
		Then        string `json:"then"`
	}
	var out []criterion
	for i, c := range b.clauses {
		out = append(out, criterion{fmt.Sprintf("R%d", i+1), "a user who wants " + c, "the program does it and a test shows it"})
	}
	n := len(b.clauses)
	return asJSON(append(out,
		criterion{fmt.Sprintf("R%d", n+1), "input that cannot be used", "a message on standard error and exit status 1"},
		criterion{fmt.Sprintf("R%d", n+2), "the same input twice", "the same output, byte for byte"},
		criterion{fmt.Sprintf("R%d", n+3), "a machine without a network", "go test passes"},
	))
}

func writeOutline(b brief) string {
	type milestone struct {
		ID           string   `json:"id"`
		Title        string   `json:"title"`
		Requirements []string `json:"requirements"`
		Tasks        []string `json:"tasks"`
	}
	var core []string
	for i := range b.clauses {
		core = append(core, fmt.Sprintf("R%d", i+1))
	}
	n := len(b.clauses)
	return "Here is the plan.\n\n" + asJSON(map[string]any{"milestones": []milestone{
		{"M1", "The core, as a plain Go type or function", core, []string{"write " + b.program.name + ".go", "cover it with a table test"}},
		{"M2", "The command line around it", []string{fmt.Sprintf("R%d", n+1), fmt.Sprintf("R%d", n+2)}, []string{"write main.go with a run function that a test can call", "refuse wrong input by name"}},
		{"M3", "Ready to hand over", []string{fmt.Sprintf("R%d", n+3)}, []string{"run go vet and go test", "write down how it is used"}},
	}})
}

func writeRisks(b brief) string {
	type risk struct {
		Risk       string `json:"risk"`
		Likelihood string `json:"likelihood"`
		Mitigation string `json:"mitigation"`
	}
	return asJSON([]risk{
		{"the goal can be read in more than one way: " + oneLine(b.clauses[0], 80), "medium", "write the reading down as R1 and test it"},
		{"input larger than expected", "low", "read as a stream where the task allows it"},
		{"output order depends on map iteration", "medium", "sort before printing"},
	})
}

func writeEstimate(b brief) string {
	return asJSON(map[string]any{
		"hours": 2 + 2*len(b.clauses), "confidence": "medium",
		"basis": fmt.Sprintf("%d functional requirements at two hours each, two for the command line", len(b.clauses)),
	})
}

func writeArchitecture(b brief) string {
	return fmt.Sprintf(`# Architecture

Goal: %[1]s

## Components

| part | file | task |
|---|---|---|
| core | %[2]s.go | %[3]s |
| command line | main.go | reads arguments and streams, prints, sets the exit status |
| tests | %[2]s_test.go | the core in a table; the command line through its run function |

## Data flow

arguments and standard input → main.go → core → standard output; errors → standard
error and exit status 1. The core knows nothing of files, flags or the process.

## Why so little

The goal names no service, no storage and no second program. What is not asked for is
not built; each part can be replaced without the others.
`, b.goal, b.program.name, b.program.what)
}

func writeDecisions(b brief) string {
	type decision struct {
		Title  string `json:"title"`
		Choice string `json:"choice"`
		Reason string `json:"reason"`
	}
	return asJSON([]decision{
		{"dependencies", "standard library only", "nothing to update, nothing to download"},
		{"core apart from the command line", b.program.name + ".go holds no I/O of its own", "it can be tested without a process"},
		{"order of output", "sorted", "equal input gives equal output"},
	})
}

func writeUsage(b brief) string {
	return fmt.Sprintf("# %s\n\n%s\n\nMade for this goal: %s\n\n## Use\n\n```sh\n%s\n```\n\n## Test\n\n```sh\ngo test ./...\n```\n",
		b.program.name, b.program.what, b.goal, b.program.usage)
}

func writeTestReport(b brief) string {
	output := section(b.user, "test-output")
	verdict := "All tests passed."
	switch {
	case strings.Contains(output, "not run"):
		verdict = "The tests were not run, so nothing is shown by them."
	case strings.Contains(output, "FAIL") || strings.Contains(output, "panic:"):
		verdict = "There are failures; see the output."
	case !strings.Contains(output, "ok"):
		verdict = "The output shows no result."
	}
	var w strings.Builder
	fmt.Fprintf(&w, "# Test report\n\n%s\n\n| requirement | covered by |\n|---|---|\n", verdict)
	for i := range b.clauses {
		fmt.Fprintf(&w, "| R%d | %s_test.go |\n", i+1, b.program.name)
	}
	return w.String()
}

func writeReview(b brief) string {
	return fmt.Sprintf(`# Review

Goal: %[1]s

## Good

- The core in %[2]s.go is apart from the command line and is tested by itself.
- Output is sorted, so equal input gives equal output.
- Nothing but the standard library is used.

## Findings

- F1 (minor): input is trusted to be of reasonable size.
- F2 (minor): messages are in English only.
- F3 (note): the code was chosen by keywords from a small collection by a script; whether
  it meets every clause of the goal is for a person to judge.
`, b.goal, b.program.name)
}

func writeVerdict(b brief) string {
	output := section(b.user, "test-output")
	passed := strings.Contains(output, "ok") && !strings.Contains(output, "FAIL")
	reason := "the tests pass and the findings are minor"
	if !passed {
		reason = "no passing test run is on record"
	}
	return asJSON(map[string]any{"approved": passed, "reasons": []string{reason}})
}
