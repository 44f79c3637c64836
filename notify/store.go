package notify

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"gorm.io/gorm"

	"github.com/nexuscore/onceq/internal/database"
)

// errStale says that a row is no longer ours: its lease ran out and somebody
// else decided on it.
var errStale = errors.New("notify: the row is no longer ours")

// store reads and writes the table. Every change of a row is one conditional
// UPDATE that names the row's state and token and sets a new token: a writer
// that knows an old token changes nothing, and the count of changed rows means
// the same on every database.
type store struct {
	db      *gorm.DB
	table   string
	dialect dialect
	now     func() time.Time // nil for clock
	clock   clock
}

func (s *store) rows(ctx context.Context) *gorm.DB {
	return database.Fresh(ctx, s.db).Table(s.table)
}

// due lists rows of a destination whose time has come, in the order of their time.
func (s *store) due(ctx context.Context, destination string, state State, limit int) (ids []int64, err error) {
	err = s.rows(ctx).Where("destination = ? AND status = ? AND next_at <= ?", destination, state, s.millis()).
		Order("next_at, id").Limit(limit).Pluck("id", &ids).Error
	return ids, err
}

// claimed is a row that this process may work on until its lease ends.
type claimed struct {
	row
	until time.Time // monotonic; counted from before the claim was sent
}

// claim takes a due row: pending becomes sending, uncertain stays so while the
// destination is asked. It returns nil if somebody else was faster.
func (s *store) claim(ctx context.Context, id int64, from State, lease time.Duration) (*claimed, error) {
	token, now, start := newToken(), s.millis(), time.Now()
	until := now + lease.Milliseconds()
	set := map[string]any{"token": token, "updated_at": now, "lease_until": until}
	to := from
	if from == StatePending {
		to = StateSending
		set["attempts"] = gorm.Expr("attempts + 1")
		set["first_attempt_at"] = gorm.Expr("CASE WHEN first_attempt_at = 0 THEN ? ELSE first_attempt_at END", now)
	} else {
		set["next_at"] = until // who dies while asking is followed by the next
	}
	set["status"] = to
	res := s.rows(ctx).Where("id = ? AND status = ? AND next_at <= ?", id, from, now).Updates(set)
	if res.Error == nil && res.RowsAffected == 0 || database.Repeatable(res.Error) {
		return nil, nil // a strict database says so instead of counting 0 rows
	}
	// Whether an UPDATE without an answer took effect is seen by looking.
	var r row
	err := s.rows(ctx).Where("id = ? AND token = ? AND status = ?", id, token, to).Limit(1).Find(&r).Error
	switch {
	case err != nil:
		r = row{ID: id, Status: to, Token: token}
		return &claimed{row: r}, fmt.Errorf("claim row %d: %w", id, errors.Join(res.Error, err))
	case r.ID == 0:
		return nil, res.Error
	}
	return &claimed{row: r, until: start.Add(lease)}, nil
}

// move changes the state of a row that is ours. It returns errStale if the row is not
// any more; any other error means that nobody can tell whether it was changed.
// token is the row's next; a repetition with the same one is harmless.
func (s *store) move(ctx context.Context, r *row, to State, token string, set map[string]any) error {
	set = maps.Clone(set)
	if set == nil {
		set = map[string]any{}
	}
	set["status"], set["token"], set["updated_at"] = to, token, s.millis()
	res := s.rows(ctx).Where("id = ? AND status = ? AND token = ?", r.ID, r.Status, r.Token).Updates(set)
	if res.Error != nil || res.RowsAffected == 1 {
		return res.Error
	}
	// Either it is not ours, or an earlier try took effect and its reply was lost.
	var n int64
	if err := s.rows(ctx).Where("id = ? AND token = ?", r.ID, token).Count(&n).Error; err != nil {
		return err
	}
	if n == 0 {
		return errStale
	}
	return nil
}

// expired lists rows whose worker did not come back in time.
func (s *store) expired(ctx context.Context, destinations []string, limit int) (rows []row, err error) {
	err = s.rows(ctx).Where("destination IN ? AND status = ? AND lease_until < ?", destinations, StateSending, s.millis()).
		Order("id").Limit(limit).Omit("payload", "content").Find(&rows).Error
	return rows, err
}

// open counts rows that are not at an end.
func (s *store) open(ctx context.Context, destinations []string) (n int64, err error) {
	states := []State{StatePending, StateSending, StateUncertain}
	err = s.rows(ctx).Where("destination IN ? AND status IN ?", destinations, states).Count(&n).Error
	return n, err
}
