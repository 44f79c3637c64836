package forge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/openai/openai-go/v3"
)

// Forge holds what all runs share. It is safe for concurrent use by different
// runs.
type Forge struct {
	client   openai.Client
	model    string
	dir      string
	log      *slog.Logger
	progress func(Progress)
	goTool   string // "": tests are not run, for the reason noTests
	noTests  string
	timeout  time.Duration
	steps    bool
}

// Progress is one thing that happened in a run, for people to watch.
type Progress struct {
	Run   string
	Phase string
	Step  string        // "" when a phase begins
	Text  string        // one line
	Took  time.Duration // of a step
}

type config struct {
	log      *slog.Logger
	progress func(Progress)
	tests    bool
	timeout  time.Duration
	steps    bool
}

// Option configures [New].
type Option func(*config)

// WithLogger sets the logger; default slog.Default().
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.log = l } }

// WithProgress has fn called when a phase begins and when a step of it was done,
// not for steps that were remembered. fn must not block, and is called from the
// goroutine of the run.
func WithProgress(fn func(Progress)) Option { return func(c *config) { c.progress = fn } }

// WithoutTests leaves the generated program's tests unrun, and says so in the
// artefacts.
func WithoutTests() Option { return func(c *config) { c.tests = false } }

// WithoutSteps asks the model outside of steps, for a client whose transport
// replays what a run was told before. Steps then keep only the test runs.
func WithoutSteps() Option { return func(c *config) { c.steps = false } }

// WithTestTimeout bounds one go test of the generated program, compiling
// included: 1 s to 10 min, 90 s by default.
func WithTestTimeout(d time.Duration) Option { return func(c *config) { c.timeout = d } }

// New returns a forge that asks model through client and writes below dir, which
// is made when it is needed. Deadlines, retries and the transport are the
// client's.
func New(client openai.Client, model, dir string, opts ...Option) (*Forge, error) {
	c := config{log: slog.Default(), progress: func(Progress) {}, tests: true, steps: true, timeout: 90 * time.Second}
	for _, o := range opts {
		o(&c)
	}
	switch {
	case model == "":
		return nil, errors.New("forge: model is empty")
	case dir == "":
		return nil, errors.New("forge: dir is empty")
	case c.log == nil || c.progress == nil:
		return nil, errors.New("forge: WithLogger and WithProgress must not be nil")
	case c.timeout < time.Second || c.timeout > 10*time.Minute:
		return nil, fmt.Errorf("forge: WithTestTimeout is %v, allowed are 1s to 10m", c.timeout)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("forge: dir: %w", err)
	}
	f := &Forge{client: client, model: model, dir: dir, log: c.log, progress: c.progress, timeout: c.timeout, steps: c.steps}
	if !c.tests {
		f.noTests = "running generated tests is switched off"
	} else if f.goTool, err = exec.LookPath("go"); err != nil {
		f.noTests = "there is no go tool on this machine"
	}
	return f, nil
}

// Dir is where the artefacts of a run are.
func (f *Forge) Dir(run string) string { return filepath.Join(f.dir, DirName(run)) }

// begin opens a phase.
func (f *Forge) begin(ctx context.Context, s *State, phase, what string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := s.check(); err != nil {
		return err
	}
	f.progress(Progress{Run: s.Run, Phase: phase, Text: what})
	return nil
}
