package notify

import (
	"context"
	"fmt"
	"slices"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/nexuscore/onceq/internal/database"
	"github.com/nexuscore/onceq/internal/lease"
	"github.com/nexuscore/onceq/internal/setting"
)

// Enqueue stores the event for each of its destinations; it is sent once tx is
// committed. tx is the transaction in which the host writes what the event is
// about, or any other *gorm.DB of the same database, in which case the rows are
// committed here. Neither its own context nor conditions chained on it are used.
//
// ctx bounds the statements and says whose event it is. Under the context of an
// attempt, as a guarded handler gets it, an attempt that has lost its run enqueues
// nothing more and gets the error that its context ended with (ErrLeaseLost of
// package idempotent), and an event without a Generation gets the attempt's. Any
// other context belongs to no attempt: nothing is fenced, and the Generation is 1
// unless the event names one.
//
// An event that is already there is left as it is, without an error. All rows
// are stored or none. An error leaves the host's transaction usable where the
// database allows it (a savepoint is taken), so that the host can decide to go
// on without the notification. Errors about the event wrap [ErrInvalidEvent],
// those about the other arguments [ErrInvalid].
// Under REPEATABLE READ and above the database may answer with a serialization
// failure or a deadlock: the host repeats its transaction, as for any other
// statement.
//
// After the host's commit, [Outbox.Kick] saves waiting for the next poll.
func (o *Outbox) Enqueue(ctx context.Context, tx *gorm.DB, e Event) error {
	if tx == nil {
		return setting.Invalidf("Enqueue: tx is nil")
	}
	if tx.Error != nil {
		return fmt.Errorf("notify: Enqueue: tx has failed before: %w", tx.Error)
	}
	if held, ok := lease.FromContext(ctx); ok {
		if err := held.Err(); err != nil {
			return fmt.Errorf("notify: Enqueue: %w", err)
		}
		if e.Generation == 0 {
			e.Generation = held.Generation
		}
	}
	if e.Generation == 0 {
		e.Generation = 1
	}
	rows, err := o.rows(&e)
	if err != nil {
		return err
	}
	if err := o.insert(ctx, tx, rows); err != nil {
		return fmt.Errorf("notify: Enqueue: %w", err)
	}
	return nil
}

// rows checks the event and makes a row for each destination.
func (o *Outbox) rows(e *Event) ([]row, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	payload, content, err := e.encode(o.maxPayload)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, l := range o.lanes {
		if len(e.Destinations) == 0 || slices.Contains(e.Destinations, l.name) {
			names = append(names, l.name)
		}
	}
	for _, name := range e.Destinations {
		if !slices.Contains(names, name) {
			return nil, invalid("destination %q is unknown; there are %s", name, o.names())
		}
	}
	now := o.store.millis()
	rows := make([]row, len(names))
	for i, name := range names {
		rows[i] = row{
			Destination: name, RunID: e.RunID, EventType: e.Type, Generation: e.Generation,
			Status: StatePending, Token: newToken(), CreatedAt: now, UpdatedAt: now, // NextAt 0: by any clock
			Payload: payload, Content: content,
		}
	}
	return rows, nil
}

// insert stores the rows in a savepoint of the host's transaction, or in one of
// ours. They go one by one: in a batch, gorm gives rows that were there the IDs
// of others. No result is asked for: MySQL's count of rows depends on the DSN.
func (o *Outbox) insert(ctx context.Context, tx *gorm.DB, rows []row) error {
	store := func(tx *gorm.DB) error {
		for i := range rows {
			r := rows[i] // gorm writes the ID into it
			// The columns matter: where the unique index is missing, PostgreSQL and
			// SQLite then refuse instead of storing the event twice.
			err := tx.Table(o.table).Clauses(clause.OnConflict{Columns: eventKey, DoNothing: true}).Create(&r).Error
			if err != nil {
				return err
			}
		}
		return nil
	}
	if _, ok := tx.Statement.ConnPool.(gorm.TxCommitter); ok {
		// Never repeated here: after a deadlock MySQL has ended the host's transaction,
		// and what we insert would be committed without it.
		return database.Fresh(ctx, tx).Transaction(store)
	}
	// Harmless to repeat, also when only the reply to the commit was lost.
	if err := database.Transaction(ctx, tx, store); err != nil {
		return err
	}
	o.Kick()
	return nil
}

var eventKey = []clause.Column{{Name: "destination"}, {Name: "run_id"}, {Name: "event_type"}, {Name: "generation"}}
