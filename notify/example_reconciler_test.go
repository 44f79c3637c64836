package notify_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nexuscore/onceq/notify"
)

// board is a destination of the host's own: it sends, and can be asked what it has.
type board struct {
	posts map[string]string // by message ID
	drop  bool              // the next reply is lost
}

func (*board) Name() string { return "board" }

func (b *board) Send(_ context.Context, m notify.Message) (notify.Receipt, error) {
	b.posts[m.ID] = m.Text // the ID is kept with the message
	if b.drop {
		b.drop = false
		return notify.Receipt{}, errors.New("connection reset") // no SendError: uncertain
	}
	return notify.Receipt{ID: m.ID}, nil
}

func (b *board) Find(_ context.Context, m notify.Message) (notify.Receipt, bool, error) {
	fmt.Println("asked")
	_, there := b.posts[m.ID]
	return notify.Receipt{ID: m.ID}, there, nil
}

// The reply to a message is lost. Its destination can be asked, has it, and is not
// sent another.
func ExampleReconciler() {
	db, closeDB := openExample()
	defer closeDB()
	ctx := context.Background()

	b := &board{posts: map[string]string{}, drop: true}
	outbox, err := notify.New(db, []notify.Destination{b}, silent, notify.WithReconcileGrace(0))
	if err != nil {
		fmt.Println(err)
		return
	}
	err = errors.Join(
		outbox.Migrate(ctx),
		outbox.Enqueue(ctx, db, notify.Event{RunID: "run-42", Type: "done", Content: notify.Content{Text: "Run 42 is done"}}),
		outbox.Drain(ctx),
	)
	list, _ := outbox.List(ctx, notify.Filter{RunID: "run-42"})
	for _, e := range list {
		fmt.Println(e.State, "after", e.Attempts, "attempt", err)
	}
	for _, text := range b.posts {
		fmt.Println("people see:", text)
	}
	// Output:
	// asked
	// sent after 1 attempt <nil>
	// people see: Run 42 is done
}

// A function as a destination, and a program that sends what is due and ends, where
// a server has "go outbox.Run(ctx)".
func ExampleFunc() {
	db, closeDB := openExample()
	defer closeDB()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	mail := notify.Func("mail", func(_ context.Context, m notify.Message) (notify.Receipt, error) {
		fmt.Printf("To: team. %s (%s, generation %d)\n", m.Text, m.RunID, m.Generation)
		return notify.Receipt{}, nil
	})
	outbox, err := notify.New(db, []notify.Destination{mail}, silent)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := outbox.Migrate(ctx); err != nil {
		fmt.Println(err)
		return
	}
	for _, run := range []string{"run-1", "run-2", "run-1"} {
		if err := outbox.Enqueue(ctx, db, notify.Event{RunID: run, Type: "done", Content: notify.Content{Text: "Done"}}); err != nil {
			fmt.Println(err)
		}
	}
	if err := outbox.Drain(ctx); err != nil { // says how many are left when ctx ends first
		fmt.Println(err)
	}
	// Unordered output:
	// To: team. Done (run-1, generation 1)
	// To: team. Done (run-2, generation 1)
}
