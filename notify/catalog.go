package notify

import (
	"regexp"
	"slices"
	"strings"

	"gorm.io/gorm"

	"github.com/nexuscore/onceq/internal/database"
	"github.com/nexuscore/onceq/internal/setting"
)

// dialect is a family of databases, as gorm's drivers name it.
type dialect string

const (
	sqlite   dialect = database.SQLite
	postgres dialect = database.Postgres
	mysql    dialect = database.MySQL
)

func dialectOf(db *gorm.DB) (dialect, error) {
	switch d := dialect(db.Name()); d {
	case sqlite, postgres, mysql:
		return d, nil
	default:
		return "", setting.Invalidf("New: database %q, sqlite, postgres and mysql are allowed", d)
	}
}

// column and index are what a database says about a table. gorm's Migrator does
// not tell partial, prefix and deferrable indexes from plain ones, nor their collation.
type column struct {
	Name     string
	Nullable bool
	Kind     string // type and, on MySQL, collation
	Bare     bool   // NOT NULL and no default
}

type index struct {
	Name       string
	Columns    []string // "" for an expression or a part of a column
	Unique     bool
	Plain      bool // covers all rows, checks at once, tells all values apart
	Constraint bool // belongs to a constraint of the same name
	Primary    bool
}

// columns is empty if there is no such table.
func (d dialect) columns(db *gorm.DB, table string) (cols []column, err error) {
	q := map[dialect]string{
		sqlite: `SELECT name, "notnull" = 0 AND pk = 0 AS nullable, lower(type) AS kind,
			"notnull" = 1 AND dflt_value IS NULL AS bare FROM pragma_table_info(?)`,
		postgres: `SELECT attname AS name, NOT attnotnull AS nullable, format_type(atttypid, atttypmod) AS kind,
			attnotnull AND NOT atthasdef AND attidentity = '' AS bare
			FROM pg_attribute WHERE attrelid = to_regclass(quote_ident(?)) AND attnum > 0 AND NOT attisdropped ORDER BY attnum`,
		mysql: `SELECT column_name AS name, is_nullable = 'YES' AS nullable,
			LOWER(CONCAT_WS(' ', column_type, collation_name)) AS kind,
			is_nullable = 'NO' AND column_default IS NULL AND extra = '' AS bare
			FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = ? ORDER BY ordinal_position`,
	}[d]
	err = db.Raw(q, table).Scan(&cols).Error
	return cols, err
}

func (d dialect) indexes(db *gorm.DB, table string) ([]index, error) {
	q := map[dialect]string{
		sqlite: `SELECT l.name, l."unique" AS uniq, l.partial = 0 AND x.coll = 'BINARY' AS plain, l.origin = 'u' AS constr,
			l.origin = 'pk' AS prim, COALESCE(x.name, '') AS col
			FROM pragma_index_list(?) l, pragma_index_xinfo(l.name) x WHERE x.key = 1 ORDER BY l.name, x.seqno`,
		postgres: `SELECT c.relname AS name, i.indisunique AS uniq,
			i.indisvalid AND i.indimmediate AND i.indpred IS NULL AS plain,
			EXISTS (SELECT 1 FROM pg_constraint k WHERE k.conindid = i.indexrelid AND k.contype = 'u') AS constr,
			i.indisprimary AS prim, COALESCE(a.attname, '') AS col
			FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
			CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS n(num, ord)
			LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = n.num AND n.num > 0
			WHERE i.indrelid = to_regclass(quote_ident(?)) AND n.ord <= i.indnkeyatts ORDER BY c.relname, n.ord`,
		mysql: `SELECT index_name AS name, non_unique = 0 AS uniq, TRUE AS plain, FALSE AS constr,
			index_name = 'PRIMARY' AS prim, IF(sub_part IS NULL, COALESCE(column_name, ''), '') AS col
			FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = ?
			ORDER BY index_name, seq_in_index`,
	}[d]
	var parts []struct {
		Name, Col                 string
		Uniq, Plain, Constr, Prim bool
	}
	if err := db.Raw(q, table).Scan(&parts).Error; err != nil {
		return nil, err
	}
	var list []index
	for _, p := range parts {
		if n := len(list); n == 0 || list[n-1].Name != p.Name {
			list = append(list, index{Name: p.Name, Unique: p.Uniq, Plain: true, Constraint: p.Constr, Primary: p.Prim})
		}
		last := &list[len(list)-1]
		last.Columns = append(last.Columns, p.Col)
		last.Plain = last.Plain && p.Plain
	}
	return list, nil
}

var keyColumns = []string{"destination", "run_id", "event_type", "generation"}

// isEventKey reports whether the index makes an event unique, in whatever order
// it names the columns.
func (i *index) isEventKey() bool {
	return i.Unique && i.Plain && len(i.Columns) == len(keyColumns) && i.within(keyColumns)
}

// isTooNarrow reports whether the index takes different events for the same: the
// second one would be refused, or silently not stored.
func (i *index) isTooNarrow() bool { return i.Unique && !i.isEventKey() && i.within(keyColumns) }

func (i *index) within(columns []string) bool {
	for _, c := range i.Columns {
		if !slices.Contains(columns, c) {
			return false
		}
	}
	return true
}

var displayWidth = regexp.MustCompile(`int\(\d+\)`)

// normal is a column's type without what does not matter.
func normal(kind string) string {
	return displayWidth.ReplaceAllString(strings.ToLower(kind), "int")
}
