package notify

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"gorm.io/gorm"

	"github.com/nexuscore/onceq/internal/database"
	"github.com/nexuscore/onceq/internal/dbtest"
)

func newFor(t *testing.T, db *gorm.DB, opts ...Option) *Outbox {
	t.Helper()
	o, err := New(db, []Destination{&channel{name: "d"}}, quick(opts...)...)
	must(t, err)
	return o
}

// execSQL runs statements that every database understands.
func execSQL(t *testing.T, db *gorm.DB, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if err := db.Exec(s).Error; err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func TestMigrateFromEightProcessesAtOnce(t *testing.T) {
	dbtest.EachDialect(t, func(t *testing.T, d *dbtest.Database) {
		var wg sync.WaitGroup
		errs := make(chan error, 24)
		for range 8 {
			o := newFor(t, d.Open(t))
			wg.Go(func() {
				errs <- o.Migrate(t.Context())
				errs <- o.Enqueue(t.Context(), o.store.db, done("r"))
				errs <- o.Migrate(t.Context())
			})
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			must(t, err)
		}
		same(t, "rows", states(t, newFor(t, d.DB), "d"), map[string]State{"r/done": StatePending})
	})
}

// N10: two tables in one schema each have an index of their own.
func TestTwoTablesInOneSchema(t *testing.T) {
	dbtest.EachDialect(t, func(t *testing.T, d *dbtest.Database) {
		// Somebody else's table has an index of the name that ours would have.
		execSQL(t, d.DB, "CREATE TABLE other (a INT)", "CREATE INDEX alerts_event_key ON other (a)")
		for _, table := range []string{"notification_logs", "alerts"} {
			o := outboxOn(t, d.DB, []Destination{&channel{name: "d"}}, quick(WithTable(table))...)
			for range 2 {
				must(t, o.Enqueue(t.Context(), d.DB, done("r")))
			}
			same(t, table, states(t, o, "d"), map[string]State{"r/done": StatePending})
			var n int64
			must(t, d.DB.Table(table).Count(&n).Error)
			same(t, "rows of "+table, n, 1)
			// Not only Enqueue is careful: the database is.
			twin, err := o.rows(&Event{RunID: "r", Type: "done", Generation: 1})
			must(t, err)
			if err := o.store.rows(t.Context()).Create(&twin).Error; err == nil {
				t.Errorf("%s takes the same event twice", table)
			}
		}
	})
}

// The SQL files do what Migrate does.
func TestSchemaFilesAreWhatMigrateMakes(t *testing.T) {
	dbtest.EachDialect(t, func(t *testing.T, d *dbtest.Database) {
		o := newFor(t, d.DB)
		s := newSchema(o.store.dialect, o.table)
		if err := s.verify(d.DB); !errors.Is(err, ErrSchema) {
			t.Errorf("without a table: %v", err)
		}
		b, err := os.ReadFile("schema/" + string(o.store.dialect) + ".sql")
		must(t, err)
		for stmt := range strings.SplitSeq(string(b), ";\n") {
			if strings.TrimSpace(stmt) != "" {
				execSQL(t, d.DB, stmt)
			}
		}
		must(t, s.verify(d.DB))
		byHand, err := s.look(d.DB)
		must(t, err)
		execSQL(t, d.DB, "DROP TABLE notification_logs")
		must(t, o.Migrate(t.Context()))
		made, err := s.look(d.DB)
		must(t, err)
		same(t, "columns", made.columns, byHand.columns)
		same(t, "indexes", made.indexes, byHand.indexes)
		same(t, "number of columns", len(made.columns), 20)
		same(t, "number of indexes besides the primary key", countIf(made.indexes, func(i index) bool { return !i.Primary }), 2)
	})
}

func countIf[T any](list []T, f func(T) bool) (n int) {
	for _, v := range list {
		if f(v) {
			n++
		}
	}
	return n
}

func TestMigrateUpgrades(t *testing.T) {
	serial := map[string]string{
		database.SQLite: "id INTEGER PRIMARY KEY AUTOINCREMENT", database.Postgres: "id SERIAL PRIMARY KEY",
		database.MySQL: "id INT AUTO_INCREMENT PRIMARY KEY",
	}
	for _, c := range []struct {
		name string
		old  []string // %s is the id column
		want map[string]State
	}{
		{
			"of a plan without states, run ids that may be NULL, too narrow a constraint",
			[]string{
				"CREATE TABLE notification_logs (%s, run_id VARCHAR(255), event_type VARCHAR(50) NOT NULL, note VARCHAR(20), UNIQUE (run_id, event_type))",
				"INSERT INTO notification_logs (run_id, event_type, note) VALUES ('a', 'done', 'kept'), (NULL, 'done', 'kept'), (NULL, 'done', 'kept')",
			},
			map[string]State{"a/done": StateHeld, "unknown-2/done": StateHeld, "unknown-3/done": StateHeld},
		},
		{
			"without generation, with an index of that shape",
			[]string{
				"CREATE TABLE notification_logs (%s, destination VARCHAR(64) NOT NULL, run_id VARCHAR(255) NOT NULL, event_type VARCHAR(64) NOT NULL, status VARCHAR(16) NOT NULL, note VARCHAR(20))",
				"CREATE UNIQUE INDEX notification_logs_event_key ON notification_logs (destination, run_id, event_type)",
				"INSERT INTO notification_logs (destination, run_id, event_type, status, note) VALUES ('', 'a', 'done', 'sent', 'kept')",
			},
			map[string]State{"a/done": StateSent},
		},
		{
			"with an index that is not unique",
			[]string{
				"CREATE TABLE notification_logs (%s, destination VARCHAR(64) NOT NULL, run_id VARCHAR(255) NOT NULL, event_type VARCHAR(64) NOT NULL, generation INT NOT NULL, note VARCHAR(20))",
				"CREATE INDEX notification_logs_event_key ON notification_logs (destination, run_id, event_type, generation)",
				"CREATE INDEX notification_logs_due_idx ON notification_logs (run_id)",
				"CREATE INDEX host_idx ON notification_logs (note)",
			},
			map[string]State{},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			dbtest.EachDialect(t, func(t *testing.T, d *dbtest.Database) {
				for _, stmt := range c.old {
					execSQL(t, d.DB, strings.Replace(stmt, "%s", serial[d.DB.Name()], 1))
				}
				ch := &channel{name: "d"}
				o, err := New(d.DB, []Destination{ch}, quick()...)
				must(t, err)
				if err := o.Drain(t.Context()); !errors.Is(err, ErrSchema) {
					t.Errorf("Drain on the old table: %v", err)
				}
				must(t, o.Migrate(t.Context()))
				must(t, o.Migrate(t.Context()))
				same(t, "old rows", states(t, o, ""), c.want)
				var kept int64
				must(t, d.DB.Table("notification_logs").Where("note = 'kept'").Count(&kept).Error)
				same(t, "a column of the host's", kept, int64(len(c.want)))

				for range 2 {
					must(t, o.Enqueue(t.Context(), d.DB, done("a")))
				}
				must(t, o.Enqueue(t.Context(), d.DB, Event{RunID: "a", Type: "done", Generation: 2}))
				drain(t, o)
				calls, _ := ch.count()
				same(t, "calls", calls, 2)
			})
		})
	}
}

func TestMigrateSaysWhatItCannotRepair(t *testing.T) {
	dbtest.EachDialect(t, func(t *testing.T, d *dbtest.Database) {
		refused := func(o *Outbox, want string) {
			t.Helper()
			if err := o.Migrate(t.Context()); !errors.Is(err, ErrSchema) || !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("got %v, want ErrSchema and %q", err, want)
			}
		}
		execSQL(t, d.DB, "CREATE TABLE users (id INT PRIMARY KEY, name VARCHAR(20))")
		refused(newFor(t, d.DB, WithTable("users")), "table users has no column run_id")

		o := newFor(t, d.DB)
		must(t, o.Migrate(t.Context()))
		s := newSchema(o.store.dialect, o.table)
		must(t, o.Enqueue(t.Context(), d.DB, done("r")))
		execSQL(t, d.DB, s.drop(&index{Name: "notification_logs_event_key"}))
		if err := o.Enqueue(t.Context(), d.DB, done("r")); err == nil && o.store.dialect != mysql {
			t.Error("without its index the table took the same event twice")
		}
		rows, err := o.rows(&Event{RunID: "r", Type: "done", Generation: 1})
		must(t, err)
		if o.store.dialect != mysql {
			must(t, o.store.rows(t.Context()).Create(&rows).Error)
		}
		refused(o, "1 events stand more than once in table notification_logs")
		execSQL(t, d.DB, "DELETE FROM notification_logs WHERE id > 1")
		must(t, o.Migrate(t.Context()))

		execSQL(t, d.DB, "ALTER TABLE notification_logs ADD COLUMN tenant VARCHAR(20) NOT NULL DEFAULT 'x'")
		must(t, o.Migrate(t.Context()))
		if o.store.dialect != sqlite {
			execSQL(t, d.DB, "ALTER TABLE notification_logs ALTER COLUMN tenant DROP DEFAULT")
			refused(o, "column tenant of table notification_logs is not the outbox's, must not be NULL and has no default")
		}
	})
}
