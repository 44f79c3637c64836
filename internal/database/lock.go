package database

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"gorm.io/gorm"
)

// Dialects that the packages know, as gorm's drivers name them.
const (
	SQLite   = "sqlite"
	Postgres = "postgres"
	MySQL    = "mysql"
)

// Exclusively runs f while no other process runs one under the same name. On SQLite and
// PostgreSQL f's changes are one transaction; MySQL commits each change of a
// schema at once, so f must be able to go on from a half of itself.
func Exclusively(ctx context.Context, db *gorm.DB, name string, f func(*gorm.DB) error) error {
	db = Fresh(ctx, db)
	switch db.Name() {
	case Postgres:
		return postgresLock(db, name, f)
	case MySQL:
		return mysqlLock(db, name, f)
	case SQLite:
		return sqliteLock(db, f)
	}
	return fmt.Errorf("database %q: allowed are sqlite, postgres and mysql", db.Name())
}

func lockID(name string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return int64(h.Sum64())
}

// postgresLock uses a lock that ends with the transaction.
func postgresLock(db *gorm.DB, name string, f func(*gorm.DB) error) error {
	return db.Transaction(func(tx *gorm.DB) error {
		if err := tx.Exec("SELECT pg_advisory_xact_lock(?)", lockID(name)).Error; err != nil {
			return err
		}
		return f(tx)
	})
}

// mysqlLock uses a named lock of a connection.
func mysqlLock(db *gorm.DB, name string, f func(*gorm.DB) error) error {
	ctx := db.Statement.Context
	return db.Connection(func(conn *gorm.DB) error {
		conn = conn.Session(&gorm.Session{NewDB: true})
		name := fmt.Sprintf("onceq-%x", uint64(lockID(name)))
		var got *int
		if err := conn.Raw("SELECT GET_LOCK(CONCAT(?, MD5(DATABASE())), 60)", name).Scan(&got).Error; err != nil {
			return err
		}
		if got == nil || *got != 1 {
			return errors.New("another process has been migrating for 60 s")
		}
		defer func() {
			// The connection goes back to a pool, where nothing else would end the lock.
			detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			conn.WithContext(detached).Exec("DO RELEASE_LOCK(CONCAT(?, MD5(DATABASE())))", name)
		}()
		return f(conn)
	})
}

// sqliteLock takes the write lock before it looks. The busy timeout of the DSN may
// be none, so it waits here.
func sqliteLock(db *gorm.DB, f func(*gorm.DB) error) error {
	ctx := db.Statement.Context
	return db.Connection(func(conn *gorm.DB) (err error) {
		conn = conn.Session(&gorm.Session{NewDB: true})
		for n := 1; ; n++ {
			if err = conn.Exec("BEGIN IMMEDIATE").Error; err == nil {
				break
			}
			if !strings.Contains(err.Error(), "locked") || n == 200 || ctx.Err() != nil {
				return err
			}
			Pause(ctx, min(500*time.Millisecond, time.Duration(n)*10*time.Millisecond))
		}
		defer func() {
			end := "COMMIT"
			if err != nil {
				end = "ROLLBACK"
			}
			detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			err = errors.Join(err, conn.WithContext(detached).Exec(end).Error)
		}()
		return f(conn)
	})
}
