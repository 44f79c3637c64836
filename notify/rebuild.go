package notify

import (
	"fmt"
	"slices"
	"strings"

	"gorm.io/gorm"
)

// mustRebuild reports whether SQLite's ALTER TABLE is not enough: it can neither
// make a column NOT NULL nor drop a constraint.
func (s *schema) mustRebuild(f *found) bool {
	if f.column("id") == nil {
		return true
	}
	for i := range f.indexes {
		if x := &f.indexes[i]; x.isTooNarrow() && (x.Constraint || x.Primary) {
			return true
		}
	}
	return slices.ContainsFunc(f.columns, func(c column) bool { return s.has(c.Name) && c.Nullable })
}

// rebuildSQLite copies the table into one of the right shape, columns that are
// not ours included, as SQLite's documentation says to do it. It runs in a
// transaction.
func (s *schema) rebuildSQLite(db *gorm.DB, f *found) error {
	var extras []string // indexes and triggers of the host's, which go with the old table
	err := db.Raw(`SELECT sql FROM sqlite_master WHERE type IN ('index', 'trigger') AND tbl_name = ? AND sql IS NOT NULL
		AND name NOT IN ?`, s.table, s.ownIndexes(f)).Scan(&extras).Error
	if err != nil {
		return err
	}
	temp := s.table + "_new"
	create := strings.Replace(s.create[0], s.table, temp, 1)
	var to, from []string
	for _, d := range s.columns {
		if c := f.column(d.name); c != nil {
			to, from = append(to, d.name), append(from, s.copied(f, d))
		} else if d.name != "id" {
			to, from = append(to, d.name), append(from, d.fill())
		}
	}
	for _, c := range f.columns {
		if !s.has(c.Name) {
			quoted := `"` + strings.ReplaceAll(c.Name, `"`, `""`) + `"`
			create = strings.TrimSuffix(create, "\n)") + ",\n    " + quoted + " " + c.Kind + "\n)"
			to, from = append(to, quoted), append(from, quoted)
		}
	}
	return run(db, append([]string{
		create,
		fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM %s", temp, strings.Join(to, ", "), strings.Join(from, ", "), s.table),
		"DROP TABLE " + s.table,
		fmt.Sprintf("ALTER TABLE %s RENAME TO %s", temp, s.table),
	}, extras...)...)
}

// ownIndexes names the indexes that are made anew or not wanted any more.
func (s *schema) ownIndexes(f *found) []string {
	names := []string{s.table + "_event_key", s.table + "_due_idx"}
	for i := range f.indexes {
		if f.indexes[i].isTooNarrow() {
			names = append(names, f.indexes[i].Name)
		}
	}
	return names
}

// copied is what a column holds in the new table: a number only where one was,
// for older tables had times as text.
func (s *schema) copied(f *found, d definition) string {
	if d.text() {
		return fmt.Sprintf("COALESCE(%s, %s)", d.name, s.unknown(f, d))
	}
	return fmt.Sprintf("CASE typeof(%s) WHEN 'integer' THEN %[1]s ELSE %s END", d.name, d.fill())
}
