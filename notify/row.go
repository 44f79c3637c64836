package notify

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nexuscore/onceq/internal/database"
)

// State is where a notification is on its way.
type State string

// The states. Only sent is final; operators can move rows that are failed, held
// or uncertain with [Outbox.Requeue] and [Outbox.Resolve].
const (
	StatePending   State = "pending"   // to be sent, now or at its time
	StateSending   State = "sending"   // a worker has it under a lease
	StateSent      State = "sent"      // the destination has it
	StateFailed    State = "failed"    // not sent and will not be; or dropped by policy
	StateUncertain State = "uncertain" // may have been sent; the destination is being asked
	StateHeld      State = "held"      // may have been sent, nobody can tell: a person decides
)

var allStates = []State{StatePending, StateSending, StateSent, StateFailed, StateUncertain, StateHeld}

// Bounds on what destinations may leave in a row, in bytes.
const (
	maxLastError = 500
	maxReceipt   = 2000
)

// row is one notification for one destination. Times are UTC epoch
// milliseconds, 0 for never. schema/*.sql say the same in SQL.
type row struct {
	ID             int64  `gorm:"column:id;primaryKey;autoIncrement"`
	Destination    string `gorm:"column:destination"`
	RunID          string `gorm:"column:run_id"`
	EventType      string `gorm:"column:event_type"`
	Generation     int    `gorm:"column:generation"`
	Status         State  `gorm:"column:status"`
	Token          string `gorm:"column:token"`       // new with every change of the row; fences its writers
	LeaseUntil     int64  `gorm:"column:lease_until"` // while sending
	Attempts       int    `gorm:"column:attempts"`
	Checks         int    `gorm:"column:checks"` // how often the destination was asked, since doubt_at
	NextAt         int64  `gorm:"column:next_at"`
	LastError      string `gorm:"column:last_error"`
	Receipt        string `gorm:"column:receipt"`
	Payload        string `gorm:"column:payload"`
	Content        string `gorm:"column:content"`
	CreatedAt      int64  `gorm:"column:created_at;autoCreateTime:false"`
	UpdatedAt      int64  `gorm:"column:updated_at;autoUpdateTime:false"`
	FirstAttemptAt int64  `gorm:"column:first_attempt_at"`
	DoubtAt        int64  `gorm:"column:doubt_at"` // since when the last attempt is known to be over, its result is not
	SentAt         int64  `gorm:"column:sent_at"`
}

// message builds what is sent. An error means that the row was damaged.
func (r *row) message() (Message, error) {
	m := Message{
		ID:             messageID(r.Destination, r.RunID, r.EventType, r.Generation),
		Destination:    r.Destination,
		RunID:          r.RunID,
		Event:          r.EventType,
		Generation:     r.Generation,
		Attempt:        r.Attempts,
		CreatedAt:      fromMillis(r.CreatedAt),
		FirstAttemptAt: fromMillis(r.FirstAttemptAt),
	}
	if r.Payload != "" {
		if !json.Valid([]byte(r.Payload)) {
			return Message{}, fmt.Errorf("column payload of row %d is not JSON", r.ID)
		}
		m.Payload = json.RawMessage(r.Payload)
	}
	if err := json.Unmarshal([]byte(r.Content), &m.Content); err != nil {
		return Message{}, fmt.Errorf("column content of row %d: %w", r.ID, err)
	}
	return m, nil
}

func fromMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

func newToken() string { return rand.Text() }

func encodeReceipt(r Receipt) string {
	r.ID, r.Channel, r.Link = database.Storable(r.ID, 255), database.Storable(r.Channel, 255), database.Storable(r.Link, 1000)
	b, err := json.Marshal(r)
	if err != nil || len(b) > maxReceipt { // escaping can make it longer
		return "{}"
	}
	return string(b)
}
