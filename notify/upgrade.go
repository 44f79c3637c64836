package notify

import (
	"fmt"
	"slices"
	"strings"

	"gorm.io/gorm"
)

// found is the table as it is.
type found struct {
	columns []column
	indexes []index
}

func (s *schema) look(db *gorm.DB) (f found, err error) {
	if f.columns, err = s.dialect.columns(db, s.table); err != nil {
		return f, err
	}
	f.indexes, err = s.dialect.indexes(db, s.table)
	return f, err
}

func (f *found) column(name string) *column {
	i := slices.IndexFunc(f.columns, func(c column) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &f.columns[i]
}

// problem returns what is wrong with a column; "" if nothing is.
func (s *schema) problem(f *found, d definition) string {
	c := f.column(d.name)
	switch {
	case c == nil:
		return "missing"
	case c.Nullable:
		return "may be NULL"
	case !s.fits(d, c):
		return fmt.Sprintf("has type %q, needed is %q", c.Kind, d.kind(s.dialect))
	}
	return ""
}

// fits reports whether the column's type will do. SQLite stores anything anywhere,
// but makes ids only for integers.
func (s *schema) fits(d definition, c *column) bool {
	have, want := normal(c.Kind), normal(d.kind(s.dialect))
	switch {
	case d.name == "id":
		return strings.Contains(have, "int") && (s.dialect == sqlite || !c.Bare)
	case s.dialect == sqlite:
		return true
	case want == "integer" || want == "int":
		return have == want || have == "bigint"
	}
	return have == want
}

// verify returns an error that wraps ErrSchema if the table is not as it must
// be, another one if that cannot be told.
func (s *schema) verify(db *gorm.DB) error {
	f, err := s.look(db)
	if err != nil {
		return err
	}
	if len(f.columns) == 0 {
		return fmt.Errorf("%w: there is no table %s: call Migrate", ErrSchema, s.table)
	}
	for _, d := range s.columns {
		if p := s.problem(&f, d); p != "" {
			return fmt.Errorf("%w: column %s of table %s %s", ErrSchema, d.name, s.table, p)
		}
	}
	for _, c := range f.columns {
		if c.Bare && !s.has(c.Name) {
			return fmt.Errorf("%w: column %s of table %s is not the outbox's, must not be NULL and has no default: give it one",
				ErrSchema, c.Name, s.table)
		}
	}
	for i := range f.indexes {
		if f.indexes[i].isTooNarrow() {
			return fmt.Errorf("%w: unique index %s of table %s covers only %s", ErrSchema, f.indexes[i].Name, s.table,
				strings.Join(f.indexes[i].Columns, ", "))
		}
	}
	if !slices.ContainsFunc(f.indexes, func(i index) bool { return i.isEventKey() }) {
		return fmt.Errorf("%w: table %s has no unique index on %s", ErrSchema, s.table, strings.Join(keyColumns, ", "))
	}
	return nil
}

// upgrade makes the table as it must be, under a lock.
func (s *schema) upgrade(db *gorm.DB) error {
	f, err := s.look(db)
	if err != nil {
		return err
	}
	if len(f.columns) == 0 {
		if err := run(db, s.create[0]); err != nil {
			return err
		}
		return s.upgradeIndexes(db)
	}
	for _, name := range []string{"run_id", "event_type"} {
		if f.column(name) == nil {
			return fmt.Errorf("%w: table %s has no column %s, so it is not a table of notifications: use WithTable", ErrSchema, s.table, name)
		}
	}
	if s.dialect == sqlite && s.mustRebuild(&f) {
		err = s.rebuildSQLite(db, &f)
	} else {
		err = s.upgradeColumns(db, &f)
	}
	if err != nil {
		return err
	}
	return s.upgradeIndexes(db)
}

func run(db *gorm.DB, statements ...string) error {
	for _, stmt := range statements {
		if err := db.Exec(stmt).Error; err != nil {
			return err
		}
	}
	return nil
}

func (s *schema) alter(format string, args ...any) string {
	return "ALTER TABLE " + s.table + " " + fmt.Sprintf(format, args...)
}

// upgradeColumns adds and changes columns where they stand.
func (s *schema) upgradeColumns(db *gorm.DB, f *found) error {
	for _, d := range s.columns {
		c := f.column(d.name)
		var todo []string
		switch {
		case c == nil:
			todo = s.add(d)
		case s.problem(f, d) == "":
			continue
		case d.name == "id" || !alike(d, c) && s.dialect != postgres:
			return fmt.Errorf("%w: column %s of table %s %s: rename it and call Migrate again", ErrSchema, d.name, s.table, s.problem(f, d))
		case s.dialect == postgres:
			todo = s.changePostgres(f, d, c)
		default:
			todo = []string{s.fillNull(f, d), s.alter("MODIFY COLUMN %s %s", d.name, s.define(d))}
		}
		if err := run(db, todo...); err != nil {
			return fmt.Errorf("column %s: %w", d.name, err)
		}
	}
	return nil
}

// alike reports whether the database converts the column as one expects.
func alike(d definition, c *column) bool {
	if d.text() {
		return strings.Contains(c.Kind, "char") || strings.Contains(c.Kind, "text")
	}
	return strings.Contains(c.Kind, "int")
}

// add adds a column, filled for the rows that are there. MySQL fills texts with
// the empty one and refuses to be told so.
func (s *schema) add(d definition) []string {
	switch {
	case d.name == "id" || s.dialect == mysql && strings.HasSuffix(d.kind(mysql), "text utf8mb4_bin"):
		todo := []string{s.alter("ADD COLUMN %s %s", d.name, s.define(d))}
		if d.name == "content" {
			todo = append(todo, fmt.Sprintf("UPDATE %s SET content = '{}' WHERE content = ''", s.table))
		}
		return todo
	case s.dialect == sqlite: // cannot drop a default again
		return []string{s.alter("ADD COLUMN %s %s DEFAULT %s", d.name, d.sql, d.fill())}
	}
	return []string{
		s.alter("ADD COLUMN %s %s DEFAULT %s", d.name, s.define(d), d.fill()),
		s.alter("ALTER COLUMN %s DROP DEFAULT", d.name),
	}
}

// define is a column's definition in a table whose default collation may be another.
func (s *schema) define(d definition) string {
	if s.dialect != mysql || !d.text() {
		return d.sql
	}
	kind, rest, _ := strings.Cut(d.sql, " ")
	return kind + " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin " + rest
}

func (s *schema) changePostgres(f *found, d definition, c *column) []string {
	typ, _, _ := strings.Cut(d.sql, " ")
	using := d.name + "::" + typ
	if strings.HasPrefix(c.Kind, "timestamp") && !d.text() {
		using = fmt.Sprintf("(EXTRACT(EPOCH FROM %s) * 1000)::BIGINT", d.name)
	}
	return []string{
		s.alter("ALTER COLUMN %s DROP DEFAULT", d.name),
		s.alter("ALTER COLUMN %s TYPE %s USING %s", d.name, typ, using),
		s.fillNull(f, d),
		s.alter("ALTER COLUMN %s SET NOT NULL", d.name),
	}
}

func (s *schema) fillNull(f *found, d definition) string {
	return fmt.Sprintf("UPDATE %s SET %s = %s WHERE %s IS NULL", s.table, d.name, s.unknown(f, d), d.name)
}

// unknown is what stands for NULL. A run without a name gets one, or two of them
// would be the same event.
func (s *schema) unknown(f *found, d definition) string {
	switch {
	case d.name != "run_id" || f.column("id") == nil:
		return d.fill()
	case s.dialect == mysql:
		return "CONCAT('unknown-', id)"
	}
	return "'unknown-' || id"
}

// upgradeIndexes drops unique indexes that take different events for the same,
// and indexes of ours that have another shape, and creates what is missing.
func (s *schema) upgradeIndexes(db *gorm.DB) error {
	f, err := s.look(db)
	if err != nil {
		return err
	}
	unique, due := s.table+"_event_key", s.table+"_due_idx"
	haveUnique, haveDue := false, false
	for i := range f.indexes {
		x := &f.indexes[i]
		switch {
		case x.isEventKey():
			haveUnique = true
		case x.Primary && x.isTooNarrow():
			return fmt.Errorf("%w: the primary key of table %s is %s: it must be id", ErrSchema, s.table, strings.Join(x.Columns, ", "))
		case x.Name == due && slices.Equal(x.Columns, []string{"destination", "status", "next_at", "id"}):
			haveDue = true
		case x.isTooNarrow() || x.Name == unique || x.Name == due:
			if err := run(db, s.drop(x)); err != nil {
				return fmt.Errorf("drop index %s: %w", x.Name, err)
			}
		}
	}
	if !haveUnique {
		if err := s.refuseTwins(db); err != nil {
			return err
		}
		if err := s.createIndex(db, s.create[1], unique); err != nil {
			return err
		}
	}
	if !haveDue {
		return s.createIndex(db, s.create[2], due)
	}
	return nil
}

func (s *schema) drop(x *index) string {
	switch {
	case s.dialect == mysql:
		return s.alter("DROP INDEX `%s`", x.Name)
	case x.Constraint && s.dialect == postgres:
		return s.alter(`DROP CONSTRAINT "%s"`, x.Name)
	}
	return fmt.Sprintf(`DROP INDEX "%s"`, x.Name)
}

// createIndex creates an index under its name or, where another table has an index
// of that name in the same schema, under the next one. It never says IF NOT EXISTS,
// which is how a table ends up without its index.
func (s *schema) createIndex(db *gorm.DB, stmt, name string) error {
	free := name
	for n := 2; s.dialect != mysql; n++ {
		var taken bool
		q := "SELECT to_regclass(quote_ident(?)) IS NOT NULL"
		if s.dialect == sqlite {
			q = "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE name = ?)"
		}
		if err := db.Raw(q, free).Scan(&taken).Error; err != nil {
			return err
		}
		if !taken {
			break
		}
		free = fmt.Sprintf("%s_%d", name, n)
	}
	return run(db, strings.Replace(stmt, name, free, 1))
}

func (s *schema) refuseTwins(db *gorm.DB) error {
	var n int64
	cols := strings.Join(keyColumns, ", ")
	q := fmt.Sprintf("SELECT COUNT(*) FROM (SELECT 1 AS one FROM %s GROUP BY %s HAVING COUNT(*) > 1) twins", s.table, cols)
	if err := db.Raw(q).Scan(&n).Error; err != nil || n == 0 {
		return err
	}
	return fmt.Errorf("%w: %d events stand more than once in table %s: keep one row for each (%s) and call Migrate again",
		ErrSchema, n, s.table, cols)
}
