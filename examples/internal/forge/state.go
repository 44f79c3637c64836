package forge

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// MaxGoal bounds the goal, in bytes.
const MaxGoal = 32 << 10

// State is all that a run knows. It survives a round trip through JSON.
type State struct {
	Run  string `json:"run"`  // names the directory
	Goal string `json:"goal"` // as the person wrote it

	Model        string       `json:"model"` // what the endpoint called itself last
	Context      string       `json:"context"`
	Requirements Requirements `json:"requirements"`
	Plan         Plan         `json:"plan"`
	Architecture Architecture `json:"architecture"`
	Files        []File       `json:"files"` // by name
	Usage        string       `json:"usage"`
	Tests        TestRun      `json:"tests"`
	Report       string       `json:"report"`
	Review       Review       `json:"review"`
}

// Requirements is the document, the numbered statements found in it, and how to
// tell that they are met.
type Requirements struct {
	Document   string        `json:"document"`
	Items      []Requirement `json:"items"`
	Acceptance []Criterion   `json:"acceptance"`
}

// Requirement is one numbered statement.
type Requirement struct {
	ID   string `json:"id"` // "R1"
	Text string `json:"text"`
}

// Criterion says how a requirement is checked.
type Criterion struct {
	Requirement string `json:"requirement"`
	Given       string `json:"given"`
	Then        string `json:"then"`
}

// Plan is what plan.json holds.
type Plan struct {
	Milestones []Milestone `json:"milestones"`
	Risks      []Risk      `json:"risks"`
	Estimate   Estimate    `json:"estimate"`
}

// Milestone is a part of the plan.
type Milestone struct {
	ID           string   `json:"id"`
	Title        string   `json:"title"`
	Requirements []string `json:"requirements"`
	Tasks        []string `json:"tasks"`
}

// Risk is what may go wrong, and what is done about it.
type Risk struct {
	Risk       string `json:"risk"`
	Likelihood string `json:"likelihood"`
	Mitigation string `json:"mitigation"`
}

// Estimate is how long it may take a person.
type Estimate struct {
	Hours      float64 `json:"hours"`
	Confidence string  `json:"confidence"`
	Basis      string  `json:"basis"`
}

// Architecture is the note and the decisions behind it.
type Architecture struct {
	Document  string     `json:"document"`
	Decisions []Decision `json:"decisions"`
}

// Decision is one choice and its reason.
type Decision struct {
	Title  string `json:"title"`
	Choice string `json:"choice"`
	Reason string `json:"reason"`
}

// File is a file of the generated program.
type File struct {
	Name    string `json:"name"`
	Content string `json:"content"`
}

// TestRun is what go test said of the program.
type TestRun struct {
	Ran     bool   `json:"ran"`
	Passed  bool   `json:"passed"`
	Output  string `json:"output"`  // without times, so that equal runs give equal text; or why it did not run
	Repairs int    `json:"repairs"` // how often the model was asked to mend the program
}

// Review is the document and the verdict.
type Review struct {
	Document string   `json:"document"`
	Approved bool     `json:"approved"`
	Reasons  []string `json:"reasons"`
}

// NewState starts a run. The goal must be UTF-8 text of 1 to [MaxGoal] bytes, and
// run must not be empty.
func NewState(run, goal string) (State, error) {
	s := State{Run: run, Goal: goal}
	return s, s.check()
}

func (s *State) check() error {
	switch {
	case s.Run == "":
		return &InputError{"run", "it is empty"}
	case strings.TrimSpace(s.Goal) == "":
		return &InputError{"goal", "it is empty"}
	case len(s.Goal) > MaxGoal:
		return &InputError{"goal", fmt.Sprintf("it has %d bytes, allowed are %d", len(s.Goal), MaxGoal)}
	case !utf8.ValidString(s.Goal):
		return &InputError{"goal", "it is not UTF-8"}
	}
	return nil
}

// InputError says which part of a state cannot be worked on. To try again is
// pointless.
type InputError struct{ Field, Problem string }

func (e *InputError) Error() string { return "forge: " + e.Field + ": " + e.Problem }

// Permanent keeps a retry policy from trying again.
func (e *InputError) Permanent() bool { return true }

var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

// DirName is the name of a run's directory: the run's own name where that is a
// plain file name, else one made from its hash. No two runs share one.
func DirName(run string) string {
	if plainName.MatchString(run) && !strings.HasPrefix(run, "hashed-") {
		return run
	}
	sum := sha256.Sum256([]byte(run))
	return "hashed-" + hex.EncodeToString(sum[:16])
}
