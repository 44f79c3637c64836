package notify_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/nexuscore/onceq/notify"
)

// openExample opens a SQLite file as the host would.
func openExample() (db *gorm.DB, closeDB func()) {
	dir, err := os.MkdirTemp("", "notify")
	if err != nil {
		panic(err)
	}
	dsn := "file:" + filepath.Join(dir, "app.db") + "?_journal_mode=WAL&_txlock=immediate&_busy_timeout=5000"
	db, err = gorm.Open(sqlite.Open(dsn), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		panic(err)
	}
	return db, func() {
		if pool, err := db.DB(); err == nil {
			_ = pool.Close()
		}
		_ = os.RemoveAll(dir)
	}
}

var silent = notify.WithLogger(slog.New(slog.DiscardHandler))

// The event is stored with what it is about. The handler runs twice, people are told once.
func Example() {
	db, closeDB := openExample()
	defer closeDB()
	ctx := context.Background()

	screen := notify.Func("screen", func(_ context.Context, m notify.Message) (notify.Receipt, error) {
		fmt.Println(m.Text)
		return notify.Receipt{ID: m.ID}, nil
	})
	outbox, err := notify.New(db, []notify.Destination{screen}, silent)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := outbox.Migrate(ctx); err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		err := db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			// ... tx.Model(&run).Update("status", "SUCCESS") ...
			return outbox.Enqueue(ctx, tx, notify.Event{
				RunID: "run-42", Type: "done",
				Content: notify.Content{Text: "Run 42 is done"},
			})
		})
		if err != nil {
			fmt.Println(err)
		}
	}
	// A server has "go outbox.Run(ctx)" instead.
	if err := outbox.Drain(ctx); err != nil {
		fmt.Println(err)
	}
	// Output: Run 42 is done
}

// A message that may have been sent, to a destination that cannot be asked, waits
// for a person.
func ExampleOutbox_Resolve() {
	db, closeDB := openExample()
	defer closeDB()
	ctx := context.Background()

	pager := notify.Func("pager", func(context.Context, notify.Message) (notify.Receipt, error) {
		return notify.Receipt{}, errors.New("connection reset after the request was written")
	})
	outbox, err := notify.New(db, []notify.Destination{pager}, silent)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := errors.Join(
		outbox.Migrate(ctx),
		outbox.Enqueue(ctx, db, notify.Event{RunID: "run-42", Type: "failed"}),
		outbox.Drain(ctx),
	); err != nil {
		fmt.Println(err)
	}
	held, err := outbox.List(ctx, notify.Filter{State: notify.StateHeld})
	for _, e := range held {
		fmt.Println(e.RunID, e.Event, e.State, "-", e.LastError)
		err = outbox.Resolve(ctx, e.ID, true) // the pager has it
	}
	stats, _ := outbox.Stats(ctx)
	fmt.Println(err, stats["pager"])
	// Output:
	// run-42 failed held - uncertain: connection reset after the request was written
	// <nil> map[sent:1]
}

// Destinations say what is known about a message that they could not send.
func ExampleSendError() {
	db, closeDB := openExample()
	defer closeDB()
	ctx := context.Background()

	attempts := 0
	flaky := notify.Func("flaky", func(_ context.Context, m notify.Message) (notify.Receipt, error) {
		if attempts++; attempts == 1 {
			// Nothing has left this machine: it may be sent again.
			return notify.Receipt{}, &notify.SendError{Kind: notify.KindNotSent, Err: errors.New("no route to host")}
		}
		fmt.Println("attempt", m.Attempt)
		return notify.Receipt{}, nil
	})
	outbox, err := notify.New(db, []notify.Destination{flaky}, silent, notify.WithBackoff(1e6, 1e9))
	if err != nil {
		fmt.Println(err)
		return
	}
	err = errors.Join(
		outbox.Migrate(ctx),
		outbox.Enqueue(ctx, db, notify.Event{RunID: "run-42", Type: "done"}),
		outbox.Drain(ctx),
	)
	fmt.Println(err)
	// Output:
	// attempt 2
	// <nil>
}

// Bad events are refused before anything is stored.
func ExampleOutbox_Enqueue() {
	db, closeDB := openExample()
	defer closeDB()
	outbox, err := notify.New(db, []notify.Destination{notify.Log("log", slog.Default())}, silent)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = outbox.Enqueue(context.Background(), db, notify.Event{Type: "done"})
	fmt.Println(errors.Is(err, notify.ErrInvalidEvent), err)
	// Output: true onceq: invalid event: RunID is empty
}
