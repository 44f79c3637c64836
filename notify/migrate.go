package notify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/nexuscore/onceq/internal/database"
	"github.com/nexuscore/onceq/internal/setting"
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
		return setting.Invalidf("Migrate: the outbox was made with a transaction, it needs the database")
	}
	s := newSchema(o.store.dialect, o.table)
	if err := s.verify(database.Fresh(ctx, o.store.db)); err == nil {
		return nil
	}
	// MySQL commits every change of a schema at once: each step of an upgrade leaves
	// a table that the next call can go on from.
	err := database.Exclusively(ctx, o.store.db, "onceq/notify/"+o.table, func(db *gorm.DB) error {
		if err := s.upgrade(db); err != nil {
			return err
		}
		return s.verify(db)
	})
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
		err := s.verify(database.Fresh(ctx, o.store.db))
		if err == nil {
			o.store.compare(ctx)
		}
		if err == nil || errors.Is(err, ErrSchema) || ctx.Err() != nil {
			return err
		}
		o.logger.WarnContext(ctx, "notify: cannot read the outbox", "err", err)
		database.Pause(ctx, backoff(n, 100*time.Millisecond, 10*time.Second))
	}
}
