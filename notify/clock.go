package notify

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nexuscore/onceq/internal/database"
)

// clock is the database's clock as this machine knows it. Leases in the table are
// read by other machines: with their own clocks, one that is a minute ahead would
// take every row from the worker that is just sending it.
type clock struct {
	offset atomic.Int64 // nanoseconds that the database is ahead
}

// maxRoundTrip bounds the error of what a comparison learns.
const maxRoundTrip = 500 * time.Millisecond

// compare asks the database for the time. If the answer is late or none comes, what was
// known before stays. SQLite has the clock of this machine.
func (s *store) compare(ctx context.Context) {
	q := map[dialect]string{
		postgres: "SELECT (EXTRACT(EPOCH FROM clock_timestamp()) * 1000)::BIGINT",
		mysql:    "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000",
	}[s.dialect]
	if q == "" || s.now != nil {
		return
	}
	var ms int64
	start := time.Now()
	err := database.Fresh(ctx, s.db).Raw(q).Scan(&ms).Error
	if took := time.Since(start); err == nil && took < maxRoundTrip {
		s.clock.offset.Store(int64(time.UnixMilli(ms).Sub(start.Add(took / 2))))
	}
}

func (s *store) time() time.Time {
	if s.now != nil {
		return s.now()
	}
	return time.Now().Add(time.Duration(s.clock.offset.Load()))
}

func (s *store) millis() int64 { return s.time().UnixMilli() }
