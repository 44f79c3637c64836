package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nexuscore/onceq/internal/setting"
)

// Errors of what operators do.
var (
	// ErrNotFound: there is no such notification.
	ErrNotFound = errors.New("notify: no such notification")
	// ErrState: the notification is in a state in which that cannot be done, or
	// went into another one meanwhile.
	ErrState = errors.New("notify: not in this state")
)

// Entry is a notification as operators see it. Times are zero for never.
type Entry struct {
	ID          int64 // for Requeue and Resolve
	Destination string
	RunID       string
	Event       string
	Generation  int
	State       State
	Attempts    int       // that count; see WithMaxAttempts
	NextAt      time.Time // pending, uncertain: not before
	LastError   string
	Receipt     Receipt // sent
	CreatedAt   time.Time
	UpdatedAt   time.Time
	SentAt      time.Time
}

// Filter selects entries. Zero fields select all.
type Filter struct {
	State       State
	Destination string
	RunID       string
	After       int64 // only IDs above, for the next page
	Limit       int   // 0 means 100; at most 1000
}

// List returns notifications in the order of their IDs. A destination or a run that
// the table does not have is no error; errors about the filter wrap [ErrInvalid].
func (o *Outbox) List(ctx context.Context, f Filter) ([]Entry, error) {
	if f.Limit < 0 || f.Limit > 1000 {
		return nil, setting.Invalidf("List: Limit: %d, from 0 to 1000 are allowed", f.Limit)
	}
	if f.State != "" && !slices.Contains(allStates, f.State) {
		return nil, setting.Invalidf("List: State: %q, %v are allowed", f.State, allStates)
	}
	if f.Limit == 0 {
		f.Limit = 100
	}
	q := o.store.rows(ctx).Where("id > ?", f.After).Order("id").Limit(f.Limit).Omit("payload", "content")
	for _, c := range []struct{ column, value string }{
		{"status", string(f.State)}, {"destination", f.Destination}, {"run_id", f.RunID},
	} {
		if c.value != "" {
			q = q.Where(c.column+" = ?", c.value)
		}
	}
	var rows []row
	if err := q.Find(&rows).Error; err != nil {
		return nil, fmt.Errorf("notify: List: %w", err)
	}
	entries := make([]Entry, len(rows))
	for i := range rows {
		entries[i] = rows[i].entry()
	}
	return entries, nil
}

func (r *row) entry() Entry {
	e := Entry{
		ID: r.ID, Destination: r.Destination, RunID: r.RunID, Event: r.EventType, Generation: r.Generation,
		State: r.Status, Attempts: r.Attempts, LastError: r.LastError,
		CreatedAt: fromMillis(r.CreatedAt), UpdatedAt: fromMillis(r.UpdatedAt), SentAt: fromMillis(r.SentAt),
	}
	if r.Status == StatePending || r.Status == StateUncertain {
		e.NextAt = fromMillis(r.NextAt)
	}
	_ = json.Unmarshal([]byte(r.Receipt), &e.Receipt) // "" while there is none
	return e
}

// Stats counts the notifications of each destination in the table by state, those
// of destinations that this outbox does not have included.
func (o *Outbox) Stats(ctx context.Context) (map[string]map[State]int64, error) {
	var counts []struct {
		Destination string
		Status      State
		N           int64
	}
	err := o.store.rows(ctx).Select("destination, status, COUNT(*) AS n").Group("destination, status").Scan(&counts).Error
	if err != nil {
		return nil, fmt.Errorf("notify: Stats: %w", err)
	}
	stats := map[string]map[State]int64{}
	for _, c := range counts {
		if stats[c.Destination] == nil {
			stats[c.Destination] = map[State]int64{}
		}
		stats[c.Destination][c.Status] = c.N
	}
	return stats, nil
}

// Requeue sends a notification that is failed or held, or pending for a later
// time, now and with all its attempts. One that was held may have been sent:
// people may be told twice. Errors wrap [ErrNotFound] or [ErrState], or come from
// the database.
func (o *Outbox) Requeue(ctx context.Context, id int64) error {
	err := o.operate(ctx, id, StatePending, []State{StatePending, StateFailed, StateHeld}, again)
	if err != nil {
		return fmt.Errorf("notify: Requeue %d: %w", id, err)
	}
	return nil
}

// Resolve says what a person found out about a notification that is held or
// uncertain, or failed: that it was sent, which ends it, or that it was not, which
// sends it now. Errors are those of Requeue.
func (o *Outbox) Resolve(ctx context.Context, id int64, sent bool) error {
	to, set := StatePending, again
	if sent {
		to, set = StateSent, map[string]any{"sent_at": o.store.millis()}
	}
	err := o.operate(ctx, id, to, []State{StateUncertain, StateFailed, StateHeld}, set)
	if err != nil {
		return fmt.Errorf("notify: Resolve %d: %w", id, err)
	}
	return nil
}

var again = map[string]any{"attempts": 0, "checks": 0, "next_at": 0}

// operate moves a row as a person asked, if it is in one of these states.
func (o *Outbox) operate(ctx context.Context, id int64, to State, from []State, set map[string]any) error {
	var r row
	if err := o.store.rows(ctx).Where("id = ?", id).Limit(1).Omit("payload", "content").Find(&r).Error; err != nil {
		return err
	}
	if r.ID == 0 {
		return ErrNotFound
	}
	if !slices.Contains(from, r.Status) {
		return fmt.Errorf("%w: it is %s, allowed are %v", ErrState, r.Status, from)
	}
	err := o.store.move(ctx, &r, to, newToken(), set)
	if errors.Is(err, errStale) {
		return fmt.Errorf("%w: it was %s and changed meanwhile", ErrState, r.Status)
	}
	if err != nil {
		return err
	}
	o.logger.InfoContext(ctx, "notify: moved by an operator", "row", r.ID, "destination", r.Destination, "run", r.RunID,
		"event", r.EventType, "generation", r.Generation, "from", string(r.Status), "to", string(to))
	o.Kick()
	return nil
}
