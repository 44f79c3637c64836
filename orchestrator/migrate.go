package orchestrator

import (
	"context"
	"embed"
	"fmt"
	"reflect"
	"strings"

	"gorm.io/gorm"

	"github.com/nexuscore/onceq/internal/database"
)

//go:embed schema/*.sql
var schemaFiles embed.FS

// Migrate creates the tables where they are missing. It is safe when many
// processes call it at once, and does nothing, without a lock, when all is well. A
// table of the same name and another shape is an error that wraps [ErrSchema].
//
// Teams with a migration tool of their own run orchestrator/schema/*.sql there
// instead.
func (r *Runs) Migrate(ctx context.Context) error {
	if r.verify(database.Fresh(ctx, r.db)) == nil {
		return nil
	}
	err := database.Exclusively(ctx, r.db, "onceq/orchestrator/"+r.table, func(db *gorm.DB) error {
		for _, stmt := range r.schema() {
			there, err := r.there(db, strings.Fields(stmt))
			if err == nil && !there {
				err = db.Exec(stmt).Error
			}
			if err != nil {
				return err
			}
		}
		return r.verify(db)
	})
	if err != nil {
		return fmt.Errorf("migration of %s: %w", r.table, err)
	}
	return nil
}

// there reports whether what a statement creates exists: "CREATE TABLE name (" or
// "CREATE INDEX name ON table (". The index is looked for on its table, because the
// name may be another table's in the same schema; CREATE then fails and says so.
func (r *Runs) there(db *gorm.DB, words []string) (bool, error) {
	if words[1] == "INDEX" {
		return db.Migrator().HasIndex(words[4], words[2]), nil
	}
	if !db.Migrator().HasTable(words[2]) {
		return false, nil
	}
	return true, r.verifyTable(db, words[2])
}

// schema is what the SQL file of the database says, for our table's name.
func (r *Runs) schema() []string {
	b, err := schemaFiles.ReadFile("schema/" + r.db.Name() + ".sql")
	if err != nil {
		panic("orchestrator: " + err.Error()) // a file that is compiled in; NewRuns knows the names
	}
	var code strings.Builder
	for line := range strings.Lines(string(b)) {
		if !strings.HasPrefix(line, "--") {
			code.WriteString(strings.ReplaceAll(line, "onceq_runs", r.table))
		}
	}
	var list []string
	for stmt := range strings.SplitSeq(code.String(), ";") {
		if stmt = strings.TrimSpace(stmt); stmt != "" {
			list = append(list, stmt)
		}
	}
	return list
}

// verify reports what is missing.
func (r *Runs) verify(db *gorm.DB) error {
	for _, table := range []string{r.table, r.historyTable()} {
		if !db.Migrator().HasTable(table) {
			return fmt.Errorf("%w: there is no table %s: call Migrate", ErrSchema, table)
		}
		if err := r.verifyTable(db, table); err != nil {
			return err
		}
	}
	return nil
}

func (r *Runs) verifyTable(db *gorm.DB, table string) error {
	var model any = Run{}
	if table != r.table {
		model = HistoryEntry{}
	}
	cols, err := db.Migrator().ColumnTypes(table)
	if err != nil {
		return err
	}
	has, unique := map[string]bool{}, table != r.table
	for _, c := range cols {
		has[c.Name()] = true
		if u, ok := c.Unique(); ok && u && c.Name() == "run_id" {
			unique = true // a constraint; the index behind it is not listed everywhere
		}
	}
	for _, name := range columns(model) {
		if !has[name] {
			return fmt.Errorf("%w: table %s has no column %s", ErrSchema, table, name)
		}
	}
	if unique {
		return nil
	}
	indexes, err := db.Migrator().GetIndexes(table)
	if err != nil {
		return err
	}
	for _, x := range indexes {
		if u, ok := x.Unique(); ok && u && len(x.Columns()) == 1 && x.Columns()[0] == "run_id" {
			return nil
		}
	}
	return fmt.Errorf("%w: table %s has no unique index on run_id, it would take the same run twice", ErrSchema, table)
}

// columns lists the columns of a model.
func columns(model any) []string {
	var list []string
	for t, i := reflect.TypeOf(model), 0; i < t.NumField(); i++ {
		name, _, _ := strings.Cut(strings.TrimPrefix(t.Field(i).Tag.Get("gorm"), "column:"), ";")
		list = append(list, name)
	}
	return list
}
