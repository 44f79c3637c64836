package forge

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nexuscore/onceq/checkpoint"
)

// maxRepairs is how often the model may mend a program whose tests fail.
const maxRepairs = 2

// Context sums up what the goal means, and writes context.md.
func (f *Forge) Context(ctx context.Context, s *State) error {
	if err := f.begin(ctx, s, "context", "what the goal means"); err != nil {
		return err
	}
	var err error
	if s.Context, err = call(ctx, f, s, s.askContext(), document); err != nil {
		return err
	}
	return f.write(ctx, s, s.contextFile())
}

// Requirements numbers what is asked for and how it is checked, and writes
// requirements.md.
func (f *Forge) Requirements(ctx context.Context, s *State) error {
	if err := f.begin(ctx, s, "requirements", "what is asked for, numbered"); err != nil {
		return err
	}
	r, err := call(ctx, f, s, s.askRequirements(), requirements)
	if err != nil {
		return err
	}
	s.Requirements = r
	check := list(func(c Criterion) bool { return c.Requirement != "" && c.Then != "" }, "requirement or then")
	if s.Requirements.Acceptance, err = call(ctx, f, s, s.askAcceptance(), structured(check)); err != nil {
		return err
	}
	return f.write(ctx, s, s.requirementsFile())
}

// Planning asks for milestones, risks and an estimate, and writes plan.json.
func (f *Forge) Planning(ctx context.Context, s *State) error {
	if err := f.begin(ctx, s, "planning", "milestones, risks, an estimate"); err != nil {
		return err
	}
	type outline struct {
		Milestones []Milestone `json:"milestones"`
	}
	milestones := list(func(m Milestone) bool { return m.Title != "" }, "title")
	o, err := call(ctx, f, s, s.askOutline(), structured(func(o outline) error { return milestones(o.Milestones) }))
	if err != nil {
		return err
	}
	s.Plan.Milestones = o.Milestones
	risks := list(func(r Risk) bool { return r.Risk != "" }, "risk")
	if s.Plan.Risks, err = call(ctx, f, s, s.askRisks(), structured(risks)); err != nil {
		return err
	}
	hours := func(e Estimate) error {
		if e.Hours <= 0 {
			return unusablef("hours is %v, allowed is more than 0", e.Hours)
		}
		return nil
	}
	if s.Plan.Estimate, err = call(ctx, f, s, s.askEstimate(), structured(hours)); err != nil {
		return err
	}
	file, err := s.planFile()
	if err != nil {
		return fmt.Errorf("forge: planning: %w", err)
	}
	return f.write(ctx, s, file)
}

// Architecture asks for a note and the decisions behind it, and writes
// architecture.md.
func (f *Forge) Architecture(ctx context.Context, s *State) error {
	if err := f.begin(ctx, s, "architecture", "the parts, and why so"); err != nil {
		return err
	}
	var err error
	if s.Architecture.Document, err = call(ctx, f, s, s.askArchitecture(), document); err != nil {
		return err
	}
	check := list(func(d Decision) bool { return d.Title != "" && d.Choice != "" }, "title or choice")
	if s.Architecture.Decisions, err = call(ctx, f, s, s.askDecisions(), structured(check)); err != nil {
		return err
	}
	return f.write(ctx, s, s.architectureFile())
}

// Implementation asks for the program, its tests and how it is used, and writes
// the directory code.
func (f *Forge) Implementation(ctx context.Context, s *State) error {
	if err := f.begin(ctx, s, "implementation", "the program and its tests"); err != nil {
		return err
	}
	program, err := call(ctx, f, s, s.askCode(), code)
	if err != nil {
		return err
	}
	s.Files = program
	test, err := call(ctx, f, s, s.askTests(), tests)
	if err != nil {
		return err
	}
	s.Files = merge(program, test)
	if s.Usage, err = call(ctx, f, s, s.askUsage(), document); err != nil {
		return err
	}
	return f.writeProgram(ctx, s)
}

// Testing runs the tests, lets the model mend the program if they fail, and
// writes test-output.txt and test-report.md. Tests that still fail are a result,
// not an error: the review says so.
func (f *Forge) Testing(ctx context.Context, s *State) error {
	if err := f.begin(ctx, s, "testing", "go test"); err != nil {
		return err
	}
	for repairs := 0; ; repairs++ {
		if err := f.writeProgram(ctx, s); err != nil { // the machine may be another than before
			return err
		}
		run, err := f.test(ctx, s, repairs)
		if err != nil {
			return err
		}
		s.Tests = run
		if run.Passed || !run.Ran || repairs == maxRepairs {
			break
		}
		mended, err := call(ctx, f, s, s.askRepair(repairs+1), files("main.go"))
		if err != nil {
			return err
		}
		s.Files = merge(s.Files, mended)
	}
	var err error
	if s.Report, err = call(ctx, f, s, s.askTestReport(), document); err != nil {
		return err
	}
	return f.write(ctx, s, s.testFiles()...)
}

// test runs the tests in a step: a phase that is started again need not run them
// anew.
func (f *Forge) test(ctx context.Context, s *State, repairs int) (TestRun, error) {
	name := fmt.Sprintf("go-test-%d", repairs)
	return checkpoint.Step(ctx, name, func(ctx context.Context) (TestRun, error) {
		start := time.Now()
		r, err := f.goTest(ctx, s.Run)
		if err != nil {
			return r, err
		}
		r.Repairs = repairs
		last := strings.TrimSpace(r.Output)
		last = last[strings.LastIndexByte(last, '\n')+1:]
		f.progress(Progress{Run: s.Run, Phase: "testing", Step: name, Took: time.Since(start), Text: fmt.Sprintf("go test: %.100q", last)})
		return r, nil
	})
}

// Review asks for findings and a verdict, and writes review.md; then it sees to
// it that every artefact of the run is there.
func (f *Forge) Review(ctx context.Context, s *State) error {
	if err := f.begin(ctx, s, "review", "findings and a verdict"); err != nil {
		return err
	}
	var err error
	if s.Review.Document, err = call(ctx, f, s, s.askReview(), document); err != nil {
		return err
	}
	type verdict struct {
		Approved *bool    `json:"approved"`
		Reasons  []string `json:"reasons"`
	}
	v, err := call(ctx, f, s, s.askVerdict(), structured(func(v verdict) error {
		if v.Approved == nil || len(v.Reasons) > 100 {
			return unusablef("approved is missing, or there are over 100 reasons")
		}
		return nil
	}))
	if err != nil {
		return err
	}
	s.Review.Approved, s.Review.Reasons = *v.Approved, v.Reasons
	return f.writeAll(ctx, s)
}

// writeAll brings every artefact to disk: the phases before may have run on
// another machine.
func (f *Forge) writeAll(ctx context.Context, s *State) error {
	if err := f.writeProgram(ctx, s); err != nil {
		return err
	}
	plan, err := s.planFile()
	if err != nil {
		return fmt.Errorf("forge: review: %w", err)
	}
	all := append(s.testFiles(), s.contextFile(), s.requirementsFile(), plan, s.architectureFile(), s.reviewFile())
	return f.write(ctx, s, all...)
}
