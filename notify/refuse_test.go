package notify

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/nexuscore/onceq/internal/dbtest"
)

// refused checks that err wraps ErrInvalid and says what is wrong.
func refused(t *testing.T, err error, want string) {
	t.Helper()
	if !errors.Is(err, ErrInvalid) || !strings.Contains(fmt.Sprint(err), want) {
		t.Errorf("got %v, want ErrInvalid and %q", err, want)
	}
}

func TestNewRefuses(t *testing.T) {
	db := dbtest.New(t, "sqlite").DB
	d := []Destination{&channel{name: "d"}}
	slack, err := NewSlack("xoxb", "#general") // what its caller did not look at
	refused(t, err, "no channel ID")
	for _, c := range []struct {
		want string
		dest []Destination
		opts []Option
	}{
		{"there is no destination", nil, nil},
		{"destination 0 is nil", []Destination{nil}, nil},
		{"destination 1 is nil; did its constructor return an error?", append(d, slack), nil},
		{"destination 0 is nil", []Destination{(*channel)(nil)}, nil},
		{`Func: destination "n" has no function`, []Destination{Func("n", nil)}, nil},
		{`destination name "a b"`, []Destination{&channel{name: "a b"}}, nil},
		{`two destinations are called "d"`, append(d, d...), nil},
		{"option 1 is nil", d, []Option{WithConcurrency(1), nil}},
		{`WithPolicy: there is no destination "x"; there are d`, d, []Option{WithPolicy("x", PolicyDrop)}},
		{`WithPolicy: Policy(7) for "d"`, d, []Option{WithPolicy("d", Policy(7))}},
		{`WithTable: "Users; DROP"`, d, []Option{WithTable("Users; DROP")}},
		{`WithTable: "select" is a reserved word of SQL`, d, []Option{WithTable("select")}},
		{`WithTable: "sqlite_x" is a reserved word`, d, []Option{WithTable("sqlite_x")}},
		{"WithLogger: nil", d, []Option{WithLogger(nil)}},
		{"WithPollInterval: 0s, from 1ms to 1h0m0s are allowed", d, []Option{WithPollInterval(0)}},
		{"WithPollInterval: 1h0m0.000000001s", d, []Option{WithPollInterval(time.Hour + 1)}},
		{"WithSendTimeout: 1ns, from 1ms", d, []Option{WithSendTimeout(1)}},
		{"WithSendTimeout: 2562047h47m16.854775807s", d, []Option{WithSendTimeout(math.MaxInt64)}}, // twice that overflows
		{"WithLeaseTTL: 19s, from 20s to 24h0m0s", d, []Option{WithLeaseTTL(19e9)}},
		{"WithLeaseTTL: 2562047h47m16.854775807s", d, []Option{WithLeaseTTL(math.MaxInt64)}},
		{"WithReconcileGrace: -1s, from 0s", d, []Option{WithReconcileGrace(-1e9)}},
		{"WithReconcileGrace: 24h0m1s", d, []Option{WithReconcileGrace(24*time.Hour + time.Second)}},
		{"WithBackoff, base: 0s", d, []Option{WithBackoff(0, 1e9)}},
		{"WithBackoff, limit: 1s, from 2s to 24h0m0s", d, []Option{WithBackoff(2e9, 1e9)}},
		{"WithBackoff, limit: 25h0m0s", d, []Option{WithBackoff(1e9, 25*time.Hour)}},
		{"WithConcurrency: 0, from 1 to 1000", d, []Option{WithConcurrency(0)}},
		{"WithConcurrency: 9223372036854775807", d, []Option{WithConcurrency(math.MaxInt)}},
		{"WithMaxAttempts: 0, from 1 to 10000", d, []Option{WithMaxAttempts(0)}},
		{"WithMaxAttempts: 9223372036854775807", d, []Option{WithMaxAttempts(math.MaxInt)}},
		{"WithMaxChecks: -1, from 1 to 10000", d, []Option{WithMaxChecks(-1)}},
		{"WithMaxChecks: 10001", d, []Option{WithMaxChecks(10001)}},
		{"WithMaxPayload: 0, from 1 to 8388608", d, []Option{WithMaxPayload(0)}},
		{"WithMaxPayload: 1073741824", d, []Option{WithMaxPayload(1 << 30)}},
	} {
		t.Run(c.want, func(t *testing.T) {
			_, err := New(db, c.dest, c.opts...)
			refused(t, err, c.want)
		})
	}
	for _, db := range []*gorm.DB{nil, {}, {Config: &gorm.Config{}}} {
		_, err := New(db, d)
		refused(t, err, "db is nil or was never opened")
	}
	_, err = New(db, d, WithConcurrency(1000), WithMaxAttempts(10_000), WithMaxChecks(10_000), WithSendTimeout(time.Hour),
		WithLeaseTTL(24*time.Hour), WithReconcileGrace(0), WithBackoff(time.Millisecond, 24*time.Hour), WithPollInterval(time.Hour))
	must(t, err)
}

// What a database reserves, New refuses, rather than the first statement.
func TestReservedWordsOfTheDatabases(t *testing.T) {
	dbtest.EachDialect(t, func(t *testing.T, d *dbtest.Database) {
		var words []string
		switch d.Kind {
		case "postgres":
			must(t, d.DB.Raw("SELECT word FROM pg_get_keywords()").Scan(&words).Error)
		case "mysql":
			must(t, d.DB.Raw("SELECT LOWER(word) FROM information_schema.keywords").Scan(&words).Error)
		default: // cannot be asked
			words = strings.Fields("add between check commit create exists group index limit order select table transaction union values where")
		}
		if len(words) < 10 {
			t.Fatalf("%d words", len(words))
		}
		for _, w := range words {
			if !tableName.MatchString(w) {
				continue
			}
			err := d.DB.Exec("CREATE TEMPORARY TABLE " + w + " (id INT)").Error
			if err == nil {
				must(t, d.DB.Exec("DROP TABLE "+w).Error)
				continue
			}
			_, err = New(d.DB, []Destination{&channel{name: "d"}}, WithTable(w))
			refused(t, err, "is a reserved word of SQL")
		}
	})
}

func TestArgumentsAreChecked(t *testing.T) {
	d := dbtest.New(t, "sqlite")
	o := outboxOn(t, d.DB, []Destination{&channel{name: "d"}}, quick()...)
	refused(t, o.Enqueue(t.Context(), nil, done("r")), "Enqueue: tx is nil")
	refused(t, o.Enqueue(t.Context(), d.DB, Event{Type: "done"}), "RunID is empty")
	_, err := o.List(t.Context(), Filter{State: "zz"})
	refused(t, err, `List: State: "zz", [pending sending sent failed uncertain held] are allowed`)
	_, err = o.List(t.Context(), Filter{Limit: 1001})
	refused(t, err, "List: Limit: 1001, from 0 to 1000 are allowed")
	_, err = o.List(t.Context(), Filter{State: StateHeld, Destination: "gone"})
	must(t, err)
	_, err = ParseTemplate("{{.Nonsense}}")
	refused(t, err, "ParseTemplate: ")
	_, err = ParseTemplate("{{")
	refused(t, err, "ParseTemplate: ")
	must(t, d.DB.Transaction(func(tx *gorm.DB) error {
		o, err := New(tx, []Destination{&channel{name: "d"}})
		must(t, err)
		refused(t, o.Migrate(t.Context()), "made with a transaction")
		return nil
	}))
}

func TestDestinationsRefuseNilOptions(t *testing.T) {
	_, err := NewSlack("xoxb", "C0123", WithName("x"), nil)
	refused(t, err, "option 1 is nil, of NewSlack")
	_, err = NewSlackWebhook("https://example.com", nil)
	refused(t, err, "option 0 is nil, of NewSlackWebhook")
	_, err = NewHTTP("https://example.com", nil)
	refused(t, err, "option 0 is nil, of NewHTTP")
}
