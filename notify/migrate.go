package notify

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"gorm.io/gorm"
)

// ErrSchema is wrapped by errors that say that the table is not what the outbox
// needs, and why. The host has to act: see [Outbox.Migrate].
var ErrSchema = errors.New("notify: the table is not usable")

// Migrate creates the table, or upgrades one of an older version: missing columns,
// columns that may be NULL, indexes that are missing or of another shape. It is
// safe when many processes call it at once, and does nothing, without a lock, when
// all is well. What it cannot repair is an error that wraps [ErrSchema] and says
// what to do; rows that stand twice are never deleted. Rows of a table without
// states become held: nobody knows whether they were sent.
//
// Teams with a migration tool of their own run notify/schema/*.sql there instead;
// Run and Drain check the result.
func (o *Outbox) Migrate(ctx context.Context) error {
	if _, ok := o.store.db.Statement.ConnPool.(gorm.TxCommitter); ok {
		return fmt.Errorf("notify: Migrate: the outbox was made with a transaction, it needs the database")
	}
	db := o.store.fresh(o.store.db).WithContext(ctx)
	s := newSchema(o.store.dialect, o.table)
	if err := s.verify(db); err == nil {
		return nil
	}
	upgrade := func(tx *gorm.DB) error {
		if err := s.upgrade(tx); err != nil {
			return err
		}
		return s.verify(tx)
	}
	var err error
	switch o.store.dialect {
	case postgres:
		err = s.lockPostgres(db, upgrade)
	case mysql:
		err = s.lockMySQL(db, upgrade)
	default:
		err = s.lockSQLite(db, upgrade)
	}
	if err != nil {
		return fmt.Errorf("notify: Migrate: %w", err)
	}
	return nil
}

// ready verifies the table before anything is sent. While the database does not
// answer it waits.
func (o *Outbox) ready(ctx context.Context) error {
	s := newSchema(o.store.dialect, o.table)
	for n := 1; ; n++ {
		err := s.verify(o.store.fresh(o.store.db).WithContext(ctx))
		if err == nil {
			o.store.compare(ctx)
		}
		if err == nil || errors.Is(err, ErrSchema) || ctx.Err() != nil {
			return err
		}
		o.logger.WarnContext(ctx, "notify: cannot read the outbox", "err", err)
		pause(ctx, backoff(n, 100*time.Millisecond, 10*time.Second))
	}
}

func (s *schema) lockID() int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte("onceq/notify/" + s.table))
	return int64(h.Sum64())
}

// lockPostgres uses a lock that ends with the transaction; DDL is part of it.
func (s *schema) lockPostgres(db *gorm.DB, f func(*gorm.DB) error) error {
	return db.Transaction(func(tx *gorm.DB) error {
		if err := tx.Exec("SELECT pg_advisory_xact_lock(?)", s.lockID()).Error; err != nil {
			return err
		}
		return f(tx)
	})
}

// lockMySQL uses a named lock of a connection; DDL is not transactional there, so
// every step of an upgrade leaves a table that the next call can go on from.
func (s *schema) lockMySQL(db *gorm.DB, f func(*gorm.DB) error) error {
	return db.Connection(func(conn *gorm.DB) error {
		conn = conn.Session(&gorm.Session{NewDB: true})
		name := fmt.Sprintf("onceq-%x", uint64(s.lockID()))
		var got *int
		if err := conn.Raw("SELECT GET_LOCK(CONCAT(?, MD5(DATABASE())), 60)", name).Scan(&got).Error; err != nil {
			return err
		}
		if got == nil || *got != 1 {
			return errors.New("another process has been migrating for 60 s")
		}
		defer func() {
			// The connection goes back to a pool, where nothing else would end the lock.
			detached, cancel := context.WithTimeout(context.WithoutCancel(db.Statement.Context), 5*time.Second)
			defer cancel()
			conn.WithContext(detached).Exec("DO RELEASE_LOCK(CONCAT(?, MD5(DATABASE())))", name)
		}()
		return f(conn)
	})
}

// lockSQLite takes the write lock before it looks. The busy timeout of the DSN may
// be none, so it waits here.
func (s *schema) lockSQLite(db *gorm.DB, f func(*gorm.DB) error) error {
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
			pause(ctx, backoff(n, 10*time.Millisecond, 500*time.Millisecond))
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
