package notify

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/nexuscore/onceq/internal/database"
	"github.com/nexuscore/onceq/internal/dbtest"
	"github.com/nexuscore/onceq/internal/lease"
)

func TestEnqueueRefuses(t *testing.T) {
	db := dbtest.New(t, "sqlite").DB
	o := outboxOn(t, db, []Destination{&channel{name: "slack"}, &channel{name: "mail"}}, quick()...)
	big := strings.Repeat("x", 2<<20)
	for _, c := range []struct {
		name string
		e    Event
		want string
	}{
		{"no run id", Event{Type: "t"}, "RunID is empty"},
		{"run id too long", Event{RunID: strings.Repeat("r", 513), Type: "t"}, "RunID has 513 bytes, allowed are 512"},
		{"space at the end", Event{RunID: "r ", Type: "t"}, `RunID "r " begins or ends with a space`},
		{"not UTF-8", Event{RunID: "r\xff", Type: "t"}, `RunID "r\xff" is not valid UTF-8`},
		{"NUL", Event{RunID: "a\x00b", Type: "t"}, `RunID "a\x00b" contains a control character`},
		{"no type", Event{RunID: "r"}, "Type is empty"},
		{"type too long", Event{RunID: "r", Type: strings.Repeat("t", 65)}, "Type has 65 bytes, allowed are 64"},
		{"negative generation", Event{RunID: "r", Type: "t", Generation: -1}, "Generation is -1"},
		{"generation too large", Event{RunID: "r", Type: "t", Generation: math.MaxInt32 + 1}, "Generation is 2147483648"},
		{"unknown destination", Event{RunID: "r", Type: "t", Destinations: []string{"mail", "fax"}}, `destination "fax" is unknown; there are slack, mail`},
		{"2 MB text", Event{RunID: "r", Type: "t", Content: Content{Text: big}}, "2097152 bytes as JSON, allowed are 262144 (WithMaxPayload)"},
		{"2 MB payload", Event{RunID: "r", Type: "t", Payload: map[string]string{"a": big}}, "allowed are 262144"},
		{"payload that is no JSON", Event{RunID: "r", Type: "t", Payload: math.NaN()}, "Payload cannot be encoded"},
		{"payload that panics", Event{RunID: "r", Type: "t", Payload: bomb{"boom"}}, "Payload cannot be encoded: panic: boom"},
		{"payload not UTF-8", Event{RunID: "r", Type: "t", Payload: json.RawMessage("\"\xff\"")}, "Payload is not valid UTF-8"},
		{"raw payload that is no JSON", Event{RunID: "r", Type: "t", Payload: json.RawMessage(`{"a":`)}, "Payload cannot be encoded"},
		{"blocks that are no array", Event{RunID: "r", Type: "t", Content: Content{Blocks: json.RawMessage(`{}`)}}, "Blocks is not a JSON array"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := o.Enqueue(t.Context(), db, c.e)
			if !errors.Is(err, ErrInvalidEvent) || !errors.Is(err, ErrInvalid) || !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("got %v, want ErrInvalidEvent and %q", err, c.want)
			}
		})
	}
	same(t, "rows", states(t, o, "mail"), map[string]State{})
	failed := db.Session(&gorm.Session{})
	_ = failed.AddError(errors.New("boom"))
	if err := o.Enqueue(t.Context(), failed, done("r")); err == nil || !strings.Contains(err.Error(), "tx has failed before: boom") {
		t.Errorf("a tx that failed: %v", err)
	}
}

type bomb struct{ value any }

func (b bomb) MarshalJSON() ([]byte, error) { panic(b.value) }

func TestAnErrorInAPanicStaysVisible(t *testing.T) {
	t.Parallel()
	if _, err := encodeJSON("Payload", bomb{io.EOF}); !errors.Is(err, io.EOF) || !errors.Is(err, ErrInvalidEvent) {
		t.Errorf("encoding: %v, want ErrInvalidEvent and EOF", err)
	}
	l := &lane{o: &Outbox{config: config{sendTimeout: time.Second}}}
	_, err := l.call(t.Context(), func(context.Context) (Receipt, error) { panic(io.EOF) })
	if e := classify(err); !errors.Is(err, io.EOF) || e.Kind != KindUncertain {
		t.Errorf("sending: %v, want EOF, uncertain", err)
	}
}

func TestPayloadIsKeptAsItWas(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *dbtest.Database) {
		c := &channel{name: "d"}
		o := outboxOn(t, d.DB, []Destination{c}, quick()...)
		raw := json.RawMessage(`{"z":1.0,"a":9007199254740993,"html":"<b>&</b>","emoji":"🎉","nul":"\u0000","quote":"it's \\ ` + "`" + `"}`)
		text := "🎉 it's \\ a \"quote\"\n\x00<b> % ? $1 :name @x"
		must(t, o.Enqueue(t.Context(), d.DB, Event{RunID: "läuft/{1}:2~", Type: "done", Payload: raw, Content: Content{Text: text, Blocks: json.RawMessage(`[{"type":"divider"}]`), Thread: "1.2", Link: "https://x?a&b"}}))
		must(t, o.Enqueue(t.Context(), d.DB, Event{RunID: "none", Type: "done", Payload: json.RawMessage(nil), Destinations: []string{"d", "d"}}))
		large := strings.Repeat("é", 100_000)
		must(t, o.Enqueue(t.Context(), d.DB, Event{RunID: "large", Type: "done", Content: Content{Text: large}}))
		got := map[string]Message{}
		var mu sync.Mutex
		c.answer = func(_ context.Context, _ int, m Message) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			got[m.RunID] = m
			return true, nil
		}
		drain(t, o)
		m := got["läuft/{1}:2~"]
		same(t, "payload", string(m.Payload), string(raw))
		same(t, "content", m.Content, Content{Text: text, Blocks: json.RawMessage(`[{"type":"divider"}]`), Thread: "1.2", Link: "https://x?a&b"})
		same(t, "no payload", got["none"].Payload, nil)
		same(t, "large text is whole", got["large"].Text == large, true)
		same(t, "messages", len(got), 3)
	})
}

func TestEnqueueFromManyAtOnce(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *dbtest.Database) {
		c := &channel{name: "d"}
		o := outboxOn(t, d.DB, []Destination{c, &channel{name: "e"}}, quick()...)
		var wg sync.WaitGroup
		errs := make(chan error, 200)
		for range 20 {
			wg.Go(func() {
				for i := range 10 {
					errs <- o.Enqueue(t.Context(), d.DB, done(fmt.Sprint("r", i)))
				}
			})
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			must(t, err)
		}
		drain(t, o)
		_, seen := c.count()
		for run, n := range seen {
			same(t, run, n, 1)
		}
		same(t, "events", len(seen), 10)
	})
}

// Hosts whose transactions are stricter than the default, and meet on one event:
// either both commit, or one is asked to repeat its transaction; one row.
func TestEnqueueUnderStrictIsolation(t *testing.T) {
	for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable} {
		t.Run(level.String(), func(t *testing.T) {
			dbtest.Each(t, func(t *testing.T, d *dbtest.Database) {
				c := &channel{name: "d"}
				o := outboxOn(t, d.DB, []Destination{c}, quick()...)
				must(t, d.DB.Exec("CREATE TABLE runs (id VARCHAR(20) PRIMARY KEY, n INT)").Error)
				opts := []*sql.TxOptions{{Isolation: level}}
				if d.Kind == "sqlite" {
					opts = nil // always serializable, and says so
				}
				host := func(run string) error {
					for range 50 {
						err := d.DB.Transaction(func(tx *gorm.DB) error {
							var n int64
							if err := tx.Table("runs").Count(&n).Error; err != nil { // takes the snapshot
								return err
							}
							if err := o.Enqueue(t.Context(), tx, done(run)); err != nil {
								return err
							}
							return tx.Exec("INSERT INTO runs VALUES (?, 1)", fmt.Sprintf("%.20s", newToken())).Error
						}, opts...)
						if err == nil || !database.Repeatable(err) {
							return err
						}
						database.Pause(t.Context(), backoff(5, time.Millisecond, 50*time.Millisecond))
					}
					return errors.New("50 times in vain")
				}
				var wg sync.WaitGroup
				errs := make(chan error, 12)
				for range 4 {
					wg.Go(func() {
						for i := range 3 {
							if err := host(fmt.Sprint("r", i)); err != nil {
								errs <- err
							}
						}
					})
				}
				wg.Wait()
				close(errs)
				for err := range errs {
					t.Error(err)
				}
				drain(t, o)
				_, seen := c.count()
				same(t, "seen", seen, map[string]int{"r0/done": 1, "r1/done": 1, "r2/done": 1})
				var n int64
				must(t, d.DB.Table("runs").Count(&n).Error)
				same(t, "commits of the host", n, 12)
			})
		})
	}
}

// The host's transaction stays usable: after a duplicate, and after an error.
func TestEnqueueDoesNotPoisonTheTransaction(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *dbtest.Database) {
		o := outboxOn(t, d.DB, []Destination{&channel{name: "d"}}, quick()...)
		broken, err := New(d.DB, []Destination{&channel{name: "d"}}, WithTable("missing"))
		must(t, err)
		must(t, d.DB.Exec("CREATE TABLE runs (id INT PRIMARY KEY)").Error)
		must(t, o.Enqueue(t.Context(), d.DB, done("r")))
		must(t, d.DB.Transaction(func(tx *gorm.DB) error {
			must(t, o.Enqueue(t.Context(), tx, done("r")))
			if err := broken.Enqueue(t.Context(), tx, done("r")); err == nil || errors.Is(err, ErrInvalidEvent) {
				t.Errorf("without a table: %v", err)
			}
			must(t, o.Enqueue(t.Context(), tx, done("s")))
			return tx.Exec("INSERT INTO runs VALUES (1)").Error
		}))
		same(t, "rows", states(t, o, "d"), map[string]State{"r/done": StatePending, "s/done": StatePending})
	})
}

// The attempt is the context's, although the host's transaction knows nothing of it.
func TestEnqueueOfAnAttempt(t *testing.T) {
	d := dbtest.New(t, "sqlite")
	o := outboxOn(t, d.DB, []Destination{&channel{name: "d"}}, quick()...)
	generations := func() map[string]int {
		list, err := o.List(t.Context(), Filter{})
		must(t, err)
		m := map[string]int{}
		for _, e := range list {
			m[e.RunID] = e.Generation
		}
		return m
	}
	enqueue := func(ctx context.Context, e Event) error {
		return d.DB.Transaction(func(tx *gorm.DB) error { return o.Enqueue(ctx, tx, e) })
	}
	ctx, l := lease.New(t.Context(), lease.Config{Generation: 3, TTL: time.Minute}, time.Now())
	must(t, enqueue(ctx, done("of the attempt")))
	must(t, enqueue(ctx, Event{RunID: "named", Type: "done", Generation: 5}))
	must(t, enqueue(t.Context(), done("of nobody")))
	must(t, o.Enqueue(t.Context(), d.DB.WithContext(ctx), done("of nobody either")))
	want := map[string]int{"of the attempt": 3, "named": 5, "of nobody": 1, "of nobody either": 1}
	same(t, "generations", generations(), want)
	l.Lose(errors.New("taken"))
	for _, ctx := range []context.Context{ctx, context.WithoutCancel(ctx)} {
		if err := enqueue(ctx, done("late")); !errors.Is(err, lease.ErrLost) {
			t.Errorf("after the lease was lost: %v", err)
		}
	}
	same(t, "generations", generations(), want)
}

func TestMessageIDsDiffer(t *testing.T) {
	same(t, "golden", messageID("slack", "run-1", "done", 1), "930faa20352b20eaed10bed6ee0233ba")
	seen := map[string]bool{}
	for _, id := range []string{
		messageID("a", "b", "c", 1), messageID("a", "b", "c", 2), messageID("ab", "", "c", 1),
		messageID("a", "bc", "", 1), messageID("a", "b", "c1", 1), messageID("a|b", "c", "d", 1), messageID("a", "b|c", "d", 1),
	} {
		if seen[id] {
			t.Errorf("%s stands for two messages", id)
		}
		seen[id] = true
	}
}
