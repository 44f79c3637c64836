package notify

import (
	"embed"
	"strings"
)

//go:embed schema/*.sql
var schemaFiles embed.FS

// schema is what the SQL file of a dialect says, for one table name.
type schema struct {
	dialect dialect
	table   string
	create  []string     // the statements: table, unique index, index
	columns []definition // in order
}

// definition is a column's line, for example {"run_id", "TEXT NOT NULL"}.
type definition struct{ name, sql string }

// text reports whether the column holds text.
func (d definition) text() bool {
	return strings.Contains(d.sql, "TEXT") || strings.Contains(d.sql, "VARCHAR")
}

// kind is the column's type as the database would say it.
func (d definition) kind(in dialect) string {
	kind, _, _ := strings.Cut(d.sql, " ")
	if in == mysql && d.text() {
		kind += " utf8mb4_bin"
	}
	return strings.ToLower(kind)
}

// fill is the SQL literal for rows that were there before the column.
func (d definition) fill() string {
	switch {
	case d.name == "status":
		return "'held'" // nobody knows whether an older version sent them
	case d.name == "generation":
		return "1"
	case d.name == "content":
		return "'{}'"
	case d.text():
		return "''"
	}
	return "0"
}

func newSchema(d dialect, table string) schema {
	b, err := schemaFiles.ReadFile("schema/" + string(d) + ".sql")
	if err != nil {
		panic("notify: " + err.Error()) // a file that is compiled in
	}
	s := schema{dialect: d, table: table}
	var code []string
	for line := range strings.Lines(string(b)) {
		if !strings.HasPrefix(line, "--") {
			code = append(code, strings.ReplaceAll(line, "notification_logs", table))
		}
		if def, ok := strings.CutPrefix(line, "    "); ok {
			name, sql, _ := strings.Cut(strings.TrimRight(def, ",\n"), " ")
			s.columns = append(s.columns, definition{name, sql})
		}
	}
	for stmt := range strings.SplitSeq(strings.Join(code, ""), ";") {
		if stmt = strings.TrimSpace(stmt); stmt != "" {
			s.create = append(s.create, stmt)
		}
	}
	return s
}

func (s *schema) has(column string) bool {
	for _, d := range s.columns {
		if d.name == column {
			return true
		}
	}
	return false
}
