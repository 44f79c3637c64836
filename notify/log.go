package notify

import (
	"cmp"
	"context"
	"log/slog"
)

// Log returns a destination that writes the text of each message, or its event
// where there is none, to l at level Info, with the keys run, event and link: a
// first destination while there is no other. A nil l means slog.Default().
func Log(name string, l *slog.Logger) Destination {
	if l == nil {
		l = slog.Default()
	}
	return Func(name, func(ctx context.Context, m Message) (Receipt, error) {
		l.InfoContext(ctx, cmp.Or(m.Text, m.Event), "run", m.RunID, "event", m.Event, "link", m.Link)
		return Receipt{ID: m.ID}, nil
	})
}

// Func returns a destination that calls send, under the contract of
// [Destination]'s Send. It cannot be asked what it has: see [WithPolicy]. [New]
// refuses it without a function.
func Func(name string, send func(ctx context.Context, m Message) (Receipt, error)) Destination {
	return funcDestination{name, send}
}

type funcDestination struct {
	name string
	send func(context.Context, Message) (Receipt, error)
}

// Name implements Destination.
func (d funcDestination) Name() string { return d.name }

// Send implements Destination.
func (d funcDestination) Send(ctx context.Context, m Message) (Receipt, error) { return d.send(ctx, m) }
