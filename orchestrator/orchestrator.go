package orchestrator

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"gorm.io/gorm"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/database"
	"github.com/nexuscore/onceq/internal/setting"
	"github.com/nexuscore/onceq/notify"
)

// Outbox is what is needed of a *notify.Outbox. It is used by many goroutines at once.
type Outbox interface {
	// Enqueue stores e in tx, which also writes how the run ended; an event that is
	// there already is yes. An error that wraps notify.ErrInvalidEvent refuses e, and a
	// plain event is tried instead. After ErrLeaseLost of package idempotent, or an error
	// by which the database asks for a repetition, tx is rolled back. After any other
	// the outcome is still written, in tx: it must be usable, so what can fail in it
	// needs a savepoint. Else PostgreSQL refuses all that follows (25P02), and the run
	// does not end.
	Enqueue(ctx context.Context, tx *gorm.DB, e notify.Event) error
	// Kick says that a transaction with events was committed. It does not wait.
	Kick()
}

// Runs is the table of runs and the history of each: the durable truth about
// them. Every process makes one, the same on the same table; the rest of this
// package is made from it. It is safe for concurrent use.
//
// Hosts read it with Get, List and History, and give OnFailed to the guard. Where the
// database does not answer, the error matches idempotent.ErrUnavailable.
type Runs struct {
	config
	db     *gorm.DB
	outbox Outbox // nil: nobody is told
	kind   string // of run keys
}

// NewRuns returns the runs in db. outbox is told when a run ends, in the
// transaction that writes its status, so it must be in the same database; nil means
// that nobody is told. Nothing is read or written: call [Runs.Migrate] once, for
// example at start.
//
// db may be SQLite, PostgreSQL, MySQL or MariaDB. SQLite wants
// "_journal_mode=WAL&_txlock=immediate&_busy_timeout=5000" in its DSN. The error
// wraps idempotent.ErrInvalid and names the option, its value and what is allowed.
func NewRuns(db *gorm.DB, outbox Outbox, opts ...Option) (*Runs, error) {
	if db == nil {
		return nil, setting.Invalidf("NewRuns: db is nil")
	}
	switch db.Name() {
	case database.SQLite, database.Postgres, database.MySQL:
	default:
		return nil, setting.Invalidf("NewRuns: database %q: allowed are sqlite, postgres and mysql", db.Name())
	}
	if _, ok := db.Statement.ConnPool.(gorm.TxCommitter); ok {
		return nil, setting.Invalidf("NewRuns: db is a transaction, the database is needed")
	}
	if outbox != nil && setting.IsNil(outbox) { // nobody looked at the error beside it
		return nil, setting.Invalidf("NewRuns: outbox is a nil %T; give nil itself where nobody is to be told", outbox)
	}
	r := &Runs{config: defaults(), db: db, outbox: outbox}
	if err := setting.Apply(&r.config, opts); err != nil {
		return nil, err
	}
	if err := r.validate(); err != nil {
		return nil, err
	}
	r.kind = strings.ReplaceAll(r.taskType, ":", "-")
	return r, nil
}

// TaskType is the asynq task type under which to register the handler.
func (r *Runs) TaskType() string { return r.taskType }

// Key is the run key of a run, by which the guard knows it.
func (r *Runs) Key(runID string) string { return idempotent.Key(r.kind, runID) }

// Get returns a run. The error wraps ErrNotFound when there is none.
func (r *Runs) Get(ctx context.Context, runID string) (Run, error) {
	if checkRunID(runID) != nil { // such a run cannot exist, and not every database can be asked
		return Run{}, fmt.Errorf("%w: %.200q", ErrNotFound, runID)
	}
	return r.get(database.Fresh(ctx, r.db), runID)
}

func (r *Runs) get(db *gorm.DB, runID string) (Run, error) {
	var list []Run
	if err := db.Table(r.table).Where("run_id = ?", runID).Limit(1).Find(&list).Error; err != nil {
		return Run{}, cannotTell("read of a run", err)
	}
	if len(list) == 0 {
		return Run{}, fmt.Errorf("%w: %q", ErrNotFound, runID)
	}
	return list[0], nil
}

// Filter narrows List. Its zero value means the newest 50 runs.
type Filter struct {
	Status Status // "" for any
	Before int64  // only runs with a smaller ID; 0 for the newest
	Limit  int    // at most 200; 0 for 50
}

// List returns runs, the newest first.
func (r *Runs) List(ctx context.Context, f Filter) ([]Run, error) {
	switch {
	case f.Limit < 0 || f.Limit > 200:
		return nil, fieldf("limit", "it is %d, 1 to 200 are allowed", f.Limit)
	case f.Before < 0:
		return nil, fieldf("before", "it is %d, it must be the ID of a run", f.Before)
	case f.Limit == 0:
		f.Limit = 50
	}
	q := database.Fresh(ctx, r.db).Table(r.table).Order("id DESC").Limit(f.Limit)
	switch f.Status {
	case "":
	case StatusPending, StatusRunning, StatusRetrying, StatusSuccess, StatusFailed:
		q = q.Where("status = ?", f.Status)
	default:
		return nil, fieldf("status", "%.40q is not one of PENDING, RUNNING, RETRYING, SUCCESS and FAILED", f.Status)
	}
	if f.Before > 0 {
		q = q.Where("id < ?", f.Before)
	}
	var list []Run
	if err := q.Find(&list).Error; err != nil {
		return nil, cannotTell("list of runs", err)
	}
	return list, nil
}

func (r *Runs) millis() Millis { return Millis(r.now().UnixMilli()) }

func (r *Runs) log(runID string) *slog.Logger { return r.logger.With("run", r.Key(runID)) }
