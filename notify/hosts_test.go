package notify

import (
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/logger"
	gormschema "gorm.io/gorm/schema"

	"github.com/nexuscore/onceq/internal/dbtest"
	"github.com/nexuscore/onceq/internal/logtest"
)

// Settings of a host's gorm that change what statements do, and databases whose
// default is stricter or weaker than usual.
func TestHostsSettings(t *testing.T) {
	odd := gorm.Config{
		PrepareStmt: true, TranslateError: true, DisableNestedTransaction: true, QueryFields: true, AllowGlobalUpdate: true,
		CreateBatchSize: 2, NamingStrategy: gormschema.NamingStrategy{TablePrefix: "app_", SingularTable: true, NameReplacer: strings.NewReplacer("ID", "Key")},
	}
	for _, c := range []struct {
		name, kind string
		dsn        func(dsn string) string
		conns      int
	}{
		{"sqlite, defaults", "sqlite", func(dsn string) string { return strings.Split(dsn, "?")[0] }, 10},
		{"sqlite, in memory, one connection", "sqlite", func(string) string { return ":memory:" }, 1},
		{"postgres, serializable", "postgres", func(dsn string) string { return addTo(dsn, "default_transaction_isolation", "serializable") }, 10},
		{"postgres, repeatable read, no prepared statements", "postgres", func(dsn string) string {
			return addTo(addTo(dsn, "default_transaction_isolation", "repeatable read"), "default_query_exec_mode", "simple_protocol")
		}, 10},
		{"mysql, serializable", "mysql", func(dsn string) string { return dsn + "&tx_isolation=%27SERIALIZABLE%27" }, 10},
		{"mysql, parameters interpolated", "mysql", func(dsn string) string { return dsn + "&interpolateParams=true&clientFoundRows=true" }, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := dbtest.New(t, c.kind)
			cfg := odd
			cfg.Logger = logger.Discard
			cfg.PrepareStmt = c.conns > 1 // gorm's prepared statements wait for each other on one connection
			db, err := gorm.Open(dbtest.Dialector(c.kind, c.dsn(d.DSN)), &cfg)
			must(t, err)
			pool, err := db.DB()
			must(t, err)
			pool.SetMaxOpenConns(c.conns)
			t.Cleanup(func() { _ = pool.Close() })

			ch := &channel{name: "d"}
			var os []*Outbox
			for range 2 {
				o := outboxOn(t, db, []Destination{ch}, quick()...)
				os = append(os, o)
				running(t, o)
			}
			want := map[string]int{}
			var wg sync.WaitGroup
			for i := range 12 {
				run := fmt.Sprint("r", i)
				want[run+"/done"] = 1
				wg.Go(func() {
					for range 2 {
						if err := os[i%2].Enqueue(t.Context(), db, done(run)); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			drain(t, os[0])
			_, seen := ch.count()
			same(t, "seen", seen, want)
			stats, err := os[0].Stats(t.Context())
			must(t, err)
			same(t, "stats", stats["d"], map[State]int64{StateSent: 12})
		})
	}
}

// addTo adds a parameter to a DSN of either form.
func addTo(dsn, key, value string) string {
	if strings.Contains(dsn, "://") {
		return dsn + "&" + key + "=" + url.QueryEscape(value)
	}
	return dsn + " " + key + "='" + value + "'"
}

// What is logged: transitions, never what people are told.
func TestLogsTransitionsNotContents(t *testing.T) {
	var log logtest.Log
	db := dbtest.New(t, "sqlite").DB
	db.Logger = logger.New(nil, logger.Config{LogLevel: logger.Info}) // would panic if it were used
	o := outboxOn(t, db, []Destination{&channel{name: "d"}}, quick(WithLogger(log.Logger()))...)
	must(t, o.Enqueue(t.Context(), db, Event{RunID: "r", Type: "done", Payload: "the payload", Content: Content{Text: "the text"}}))
	drain(t, o)
	_, line, _ := strings.Cut(strings.TrimSpace(log.String()), " ") // without the time
	same(t, "log", line, `level=INFO msg="notify: sent" row=1 destination=d run=r event=done generation=1 attempt=1 from=sending to=sent`)
}
