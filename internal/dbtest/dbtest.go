// Package dbtest opens the databases that tests run on: SQLite always, others
// where the environment names one.
//
//	ONCEQ_TEST_POSTGRES_DSN  a role that may create schemas
//	ONCEQ_TEST_MYSQL_DSN     a user that may create databases
//
// Each test has a schema or a database of its own, dropped at its end.
package dbtest

import (
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/driver/mysql"
	"gorm.io/driver/postgres"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/nexuscore/onceq/internal/redistest"
)

// Kinds are the databases, MySQL in both ways of counting the rows of an UPDATE.
var Kinds = []string{"sqlite", "postgres", "mysql", "mysql-found-rows"}

// Database is an empty database of one test.
type Database struct {
	Kind string
	// DB is one pool of connections on it.
	DB *gorm.DB
	// DSN is what gorm's driver for it takes, for child processes.
	DSN string
}

// Each runs f as a subtest on every kind of database. What the environment does
// not name is skipped loudly, see [redistest.Skip].
func Each(t *testing.T, f func(t *testing.T, d *Database)) {
	t.Helper()
	each(t, Kinds, f)
}

// EachDialect is Each for tests to which it does not matter how rows are counted.
func EachDialect(t *testing.T, f func(t *testing.T, d *Database)) {
	t.Helper()
	each(t, Kinds[:3], f)
}

func each(t *testing.T, kinds []string, f func(t *testing.T, d *Database)) {
	t.Helper()
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) { f(t, New(t, kind)) })
	}
}

// New returns an empty database of a kind.
func New(t testing.TB, kind string) *Database {
	t.Helper()
	d := &Database{Kind: kind}
	switch kind {
	case "sqlite":
		d.DSN = "file:" + filepath.Join(t.TempDir(), "test.db") + "?_journal_mode=WAL&_txlock=immediate&_busy_timeout=10000"
	case "postgres":
		d.DSN = newPostgres(t)
	case "mysql", "mysql-found-rows":
		d.DSN = newMySQL(t, kind == "mysql-found-rows")
	default:
		t.Fatalf("dbtest: kind %q: allowed are %q", kind, Kinds)
	}
	d.DB = d.Open(t)
	return d
}

// Open returns another pool of connections on the same database, as another
// process would have.
func (d *Database) Open(t testing.TB) *gorm.DB {
	t.Helper()
	return open(t, Dialector(d.Kind, d.DSN))
}

// Dialector is gorm's for a kind of database.
func Dialector(kind, dsn string) gorm.Dialector {
	switch kind {
	case "sqlite":
		return sqlite.Open(dsn)
	case "postgres":
		return postgres.Open(dsn)
	}
	return mysql.Open(dsn)
}

func open(t testing.TB, d gorm.Dialector) *gorm.DB {
	t.Helper()
	db, err := gorm.Open(d, &gorm.Config{Logger: logger.Discard})
	if err != nil {
		t.Fatalf("dbtest: %v", err)
	}
	pool, err := db.DB()
	if err != nil {
		t.Fatalf("dbtest: %v", err)
	}
	pool.SetMaxOpenConns(12)
	pool.SetMaxIdleConns(12)
	t.Cleanup(func() { _ = pool.Close() })
	return db
}

func dsn(t testing.TB, variable string) string {
	t.Helper()
	v := os.Getenv(variable)
	if v == "" {
		redistest.Skip(t, variable+" is not set")
	}
	return v
}

func newName() string { return "onceq_" + strings.ToLower(rand.Text()[:12]) }

func exec(t testing.TB, db *gorm.DB, sql string) {
	t.Helper()
	if err := db.Exec(sql).Error; err != nil {
		t.Fatalf("dbtest: %s: %v", sql, err)
	}
}

func newPostgres(t testing.TB) string {
	t.Helper()
	base, name := dsn(t, "ONCEQ_TEST_POSTGRES_DSN"), newName()
	admin := open(t, postgres.Open(base))
	exec(t, admin, "CREATE SCHEMA "+name)
	t.Cleanup(func() { exec(t, admin, "DROP SCHEMA "+name+" CASCADE") })
	if !strings.Contains(base, "://") {
		return base + " search_path=" + name
	}
	u, err := url.Parse(base)
	if err != nil {
		t.Fatalf("dbtest: ONCEQ_TEST_POSTGRES_DSN: %v", err)
	}
	q := u.Query()
	q.Set("search_path", name)
	u.RawQuery = q.Encode()
	return u.String()
}

func newMySQL(t testing.TB, foundRows bool) string {
	t.Helper()
	base, name := dsn(t, "ONCEQ_TEST_MYSQL_DSN"), newName()
	cfg, err := driver.ParseDSN(base)
	if err != nil {
		t.Fatalf("dbtest: ONCEQ_TEST_MYSQL_DSN: %v", err)
	}
	admin := open(t, mysql.Open(base))
	exec(t, admin, fmt.Sprintf("CREATE DATABASE %s CHARACTER SET utf8mb4", name))
	t.Cleanup(func() { exec(t, admin, "DROP DATABASE "+name) })
	cfg.DBName, cfg.ClientFoundRows, cfg.ParseTime = name, foundRows, true
	return cfg.FormatDSN()
}
