// Package database holds what packages that keep a table in the host's
// database share: a handle without the host's settings, transactions that are
// repeated when the database asks for it, text that all of them store, and a lock for
// migrations.
package database

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"
	"unicode/utf8"

	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// Fresh is db without conditions that the host chained on it and without settings that
// would change our statements. gorm's own logger is off: it would write payloads.
func Fresh(ctx context.Context, db *gorm.DB) *gorm.DB {
	return db.Session(&gorm.Session{NewDB: true, SkipDefaultTransaction: true, Logger: logger.Discard, Context: ctx})
}

// Repeatable reports whether the database asks for the transaction to be
// repeated: deadlock, serialization failure, SQLite busy. Drivers are not
// imported here, so their errors are known by what they print.
func Repeatable(err error) bool {
	if err == nil {
		return false
	}
	var pg interface{ SQLState() string }
	if errors.As(err, &pg) {
		return pg.SQLState() == "40001" || pg.SQLState() == "40P01"
	}
	s := err.Error()
	for _, mark := range []string{"Error 1213", "Error 1205", "Error 1020", "database is locked", "database table is locked"} {
		if strings.Contains(s, mark) {
			return true
		}
	}
	return false
}

// Transaction runs f in a transaction of its own, again when the database asks for
// that. Any other error of a commit leaves open whether it took effect.
func Transaction(ctx context.Context, db *gorm.DB, f func(tx *gorm.DB) error) error {
	for n := 1; ; n++ {
		err := Fresh(ctx, db).Transaction(f)
		if !Repeatable(err) || n == 10 || ctx.Err() != nil {
			return err
		}
		Pause(ctx, rand.N(min(200*time.Millisecond, 2*time.Millisecond<<n)))
	}
}

// Pause waits for d or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// Storable cuts a text to what any of the databases stores in limit bytes: valid
// UTF-8, without NUL.
func Storable(s string, limit int) string {
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "\uFFFD")
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}
