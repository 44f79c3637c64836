package database_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"gorm.io/gorm"

	"github.com/nexuscore/onceq/internal/database"
	"github.com/nexuscore/onceq/internal/dbtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestExclusively(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *dbtest.Database) {
		var mu sync.Mutex
		inside, overlaps, runs := 0, 0, 0
		var wg sync.WaitGroup
		for range 6 {
			db := d.Open(t)
			wg.Go(func() {
				err := database.Exclusively(t.Context(), db, "test", func(db *gorm.DB) error {
					mu.Lock()
					inside++
					runs++
					if inside > 1 {
						overlaps++
					}
					mu.Unlock()
					var one int
					err := db.Raw("SELECT 1").Scan(&one).Error // another goroutine's turn
					mu.Lock()
					inside--
					mu.Unlock()
					return err
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if overlaps > 0 || runs != 6 {
			t.Errorf("%d of %d ran at the same time as another", overlaps, runs)
		}
		boom := errors.New("boom")
		if err := database.Exclusively(t.Context(), d.DB, "test", func(*gorm.DB) error { return boom }); !errors.Is(err, boom) {
			t.Errorf("err = %v", err)
		}
		if err := database.Exclusively(t.Context(), d.DB, "test", func(*gorm.DB) error { return nil }); err != nil {
			t.Errorf("after a failure the lock is not free: %v", err)
		}
	})
}

type sqlState string

func (s sqlState) Error() string    { return "pg" }
func (s sqlState) SQLState() string { return string(s) }

func TestRepeatable(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("boom"), false},
		{sqlState("40001"), true},
		{sqlState("40P01"), true},
		{sqlState("23505"), false},
		{errors.New("Error 1213 (40001): Deadlock found"), true},
		{errors.New("Error 1205 (HY000): Lock wait timeout exceeded"), true},
		{errors.New("database is locked"), true},
	} {
		if got := database.Repeatable(c.err); got != c.want {
			t.Errorf("Repeatable(%v) = %v, want %v", c.err, got, c.want)
		}
	}
}

func TestTransactionIsRepeated(t *testing.T) {
	d := dbtest.New(t, "sqlite")
	n := 0
	err := database.Transaction(t.Context(), d.DB.Where("1 = 0"), func(tx *gorm.DB) error {
		if n++; n < 3 {
			return sqlState("40001")
		}
		var one int
		return tx.Raw("SELECT 1").Scan(&one).Error
	})
	if err != nil || n != 3 {
		t.Errorf("%v after %d tries, want nil after 3", err, n)
	}
	n = 0
	if err := database.Transaction(t.Context(), d.DB, func(*gorm.DB) error { n++; return sqlState("23505") }); err == nil || n != 1 {
		t.Errorf("%v after %d tries, want an error after 1", err, n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	cancel()
	start := time.Now()
	database.Pause(ctx, time.Hour)
	if time.Since(start) > time.Minute {
		t.Error("Pause outlived its context")
	}
}

func TestStorable(t *testing.T) {
	for in, want := range map[string]string{
		"":             "",
		"12345678":     "12345678",
		"123456789":    "12345678",
		"1234567é":     "1234567", // two bytes, the second over the limit
		"a\x00b":       "ab",
		"a\xffb":       "a\uFFFDb",
		"日本語":          "日本",
		"\xff\xff\xff": "\uFFFD",
	} {
		if got := database.Storable(in, 8); got != want {
			t.Errorf("Storable(%q, 8) = %q, want %q", in, got, want)
		}
	}
	if got := database.Storable("é", 1); got != "" {
		t.Errorf("no whole character fits: %q", got)
	}
}
