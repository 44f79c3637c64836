package notify

import (
	"regexp"
	"slices"
	"strings"
	"sync"

	"gorm.io/gorm"

	"github.com/nexuscore/onceq/internal/setting"
)

// ErrInvalid is wrapped by errors about an argument or an option that is not
// allowed; the message names it, its value and what is. Trying again is useless. It
// is the same value in all packages of this module.
var ErrInvalid = setting.ErrInvalid

// Outbox keeps notifications in a table of the host's database and sends them.
// Create it with [New] in every process: those that only enqueue need no [Run].
// All methods are safe for concurrent use, by any number of processes.
//
// [Run]: Outbox.Run
type Outbox struct {
	config
	store store
	lanes []*lane // one for each destination, in the order of New

	settling sync.Map // row ID → nothing: results that wait for the database

	mu      sync.Mutex // guards running
	running *session   // nil while nothing is sent
}

var destinationName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// New returns an outbox in db for these destinations. It does not touch the
// database: call [Outbox.Migrate] once, for example at start.
//
// db may be SQLite, PostgreSQL, MySQL or MariaDB. SQLite wants
// "_journal_mode=WAL&_txlock=immediate&_busy_timeout=5000" in its DSN. Names of
// destinations are 1 to 64 letters, digits and "._-", each once.
//
// The error wraps [ErrInvalid] and names the argument or option, its value and what
// is allowed. What a constructor such as [NewSlack] returned beside an error is
// refused here as well.
func New(db *gorm.DB, destinations []Destination, opts ...Option) (*Outbox, error) {
	if db == nil || db.Config == nil || db.Dialector == nil {
		return nil, setting.Invalidf("New: db is nil or was never opened")
	}
	c := defaults()
	if err := setting.Apply(&c, opts); err != nil {
		return nil, err
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	dialect, err := dialectOf(db)
	if err != nil {
		return nil, err
	}
	o := &Outbox{config: c, store: store{db: db, table: c.table, dialect: dialect, now: c.now}}
	if len(destinations) == 0 {
		return nil, setting.Invalidf("New: there is no destination")
	}
	for i, d := range destinations {
		if setting.IsNil(d) {
			return nil, setting.Invalidf("New: destination %d is nil; did its constructor return an error?", i)
		}
		name := d.Name()
		if !destinationName.MatchString(name) {
			return nil, setting.Invalidf("New: destination name %q, 1 to 64 letters, digits and \"._-\" are allowed", name)
		}
		if f, ok := d.(funcDestination); ok && f.send == nil {
			return nil, setting.Invalidf("Func: destination %q has no function", name)
		}
		if o.lane(name) != nil {
			return nil, setting.Invalidf("New: two destinations are called %q", name)
		}
		o.lanes = append(o.lanes, newLane(o, d))
	}
	for name := range c.policies {
		if o.lane(name) == nil {
			return nil, setting.Invalidf("WithPolicy: there is no destination %q; there are %s", name, o.names())
		}
	}
	return o, nil
}

func (o *Outbox) lane(name string) *lane {
	i := slices.IndexFunc(o.lanes, func(l *lane) bool { return l.name == name })
	if i < 0 {
		return nil
	}
	return o.lanes[i]
}

func (o *Outbox) names() string {
	names := make([]string, len(o.lanes))
	for i, l := range o.lanes {
		names[i] = l.name
	}
	return strings.Join(names, ", ")
}
