package orchestrator

import (
	"context"
	"log/slog"
	"regexp"
	"time"

	"github.com/nexuscore/onceq/internal/setting"
	"github.com/nexuscore/onceq/notify"
)

// Option sets up [Runs]. NewRuns validates all of them.
type Option func(*config)

type config struct {
	table    string
	taskType string
	logger   *slog.Logger
	maxInput int
	report   ReportFunc
	reports  bool // WithReport was given
	finished notify.Builder
	failed   notify.Builder
	now      func() time.Time // tests
}

func defaults() config {
	return config{
		table: "onceq_runs", taskType: "orchestrator:run", logger: slog.Default(), maxInput: 64 << 10,
		finished: notify.RunFinished, failed: notify.RunFailed, now: time.Now,
	}
}

// WithTable names the table of runs; that of their history is called the same with
// "_history". Lower-case letters, digits and underscores, at most 40 bytes, no
// digit first. Defaults to "onceq_runs".
func WithTable(name string) Option { return func(c *config) { c.table = name } }

// WithTaskType sets the type of the asynq tasks, for hosts with several kinds of
// runs: words of lower-case letters, digits and underscores joined by ':', at most
// 64 bytes. The run key is made of it. Defaults to "orchestrator:run", whose run
// "7" has the key "orchestrator-run-7".
func WithTaskType(name string) Option { return func(c *config) { c.taskType = name } }

// WithLogger sets where transitions are logged. Defaults to slog.Default().
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.logger = l } }

// WithMaxInput bounds the requirement, and the parameters, in bytes each. 1 to 8
// MiB. Defaults to 64 KiB.
func WithMaxInput(bytes int) Option { return func(c *config) { c.maxInput = bytes } }

// ReportFunc completes what people are told of a run that has ended: what it cost (see
// [Cost]), a link, a thread to answer. What the run itself says (RunID, Took, Attempts,
// Phase, Done, Phases, Error) is filled in afterwards, and Title where it is empty.
//
// It is called before the transaction that writes the status, with the run as it is
// about to be, and may ask other systems: ctx ends after a second. It may be called
// again, and for a status that another attempt writes after all. An error or a panic is
// logged; the run's outcome and its notification stand, with what was set until then.
// Of a function that goes on although ctx has ended nothing is used: it may still be
// writing to the report.
type ReportFunc func(ctx context.Context, run Run, report *notify.Report) error

// WithReport sets the function that completes reports.
func WithReport(f ReportFunc) Option { return func(c *config) { c.report, c.reports = f, true } }

// WithBuilders sets what makes the messages of it. Defaults to notify.RunFinished and
// notify.RunFailed, which also stand in when a builder fails.
func WithBuilders(finished, failed notify.Builder) Option {
	return func(c *config) { c.finished, c.failed = finished, failed }
}

var (
	tableName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,39}$`)
	typeName  = regexp.MustCompile(`^[a-z0-9_]+(:[a-z0-9_]+)*$`)
)

func (c *config) validate() error {
	switch {
	case !tableName.MatchString(c.table):
		return setting.Invalidf("WithTable(%q): allowed are lower-case letters, digits and _, at most 40 bytes, no digit first", c.table)
	case !typeName.MatchString(c.taskType) || len(c.taskType) > 64:
		return setting.Invalidf("WithTaskType(%q): allowed are words of lower-case letters, digits and _ joined by ':', at most 64 bytes", c.taskType)
	case c.logger == nil:
		return setting.Invalidf("WithLogger: the logger is nil")
	case c.maxInput < 1 || c.maxInput > 8<<20:
		return setting.Invalidf("WithMaxInput: %d bytes, 1 to 8 MiB are allowed", c.maxInput)
	case c.reports && c.report == nil:
		return setting.Invalidf("WithReport: the function is nil")
	case c.finished == nil || c.failed == nil:
		return setting.Invalidf("WithBuilders: a builder is nil")
	}
	return nil
}
