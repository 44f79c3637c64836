package orchestrator_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"gorm.io/gorm"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/dbtest"
	"github.com/nexuscore/onceq/internal/redistest"
	"github.com/nexuscore/onceq/orchestrator"
)

// onEach runs f on every database with a miniredis in real time.
func onEach(t *testing.T, f func(t *testing.T, w *world)) {
	dbtest.Each(t, func(t *testing.T, d *dbtest.Database) {
		mini, rdb := redistest.Mini(t)
		f(t, newWorldOn(t, d, mini, rdb, setup{}))
	})
}

func TestEveryDatabase(t *testing.T) {
	onEach(t, func(t *testing.T, w *world) {
		w.create("7")
		w.team.hook = failing("testing", 1, errBoom)
		if err := w.deliver("7", "1"); !errors.Is(err, errBoom) {
			t.Fatal(err)
		}
		w.is("7", orchestrator.StatusRetrying)
		if err := w.deliver("7", "1"); err != nil {
			t.Fatal(err)
		}
		run := w.status("7")
		if run.Status != orchestrator.StatusSuccess || run.Attempts != 2 || run.Result != `{"phases":7}` || run.StartedAt == 0 ||
			run.StartedAt > run.FinishedAt || run.Error != "" || run.PhasesDone != 7 {
			t.Errorf("run: %+v", run)
		}
		diff(t, "notifications", w.notes(), []string{"orchestrator_complete/1"})
		if err := w.deliver("7", "1"); err != nil {
			t.Errorf("a second delivery: %v", err)
		}

		w.create("8")
		w.team.hook = failing("testing", 1000, idempotent.Permanent(errBoom))
		_ = w.deliver("8", "1")
		w.is("8", orchestrator.StatusFailed)
		w.mini.Del("onceq:{" + w.runs.Key("8") + "}:enq")
		run, err := w.dispatcher.Rerun(t.Context(), "8", true)
		if err != nil || run.Generation != 2 || run.Attempts != 0 || !run.FromScratch || run.Error != "" {
			t.Fatalf("Rerun = %+v, %v", run, err)
		}
		_ = w.deliver("8", "2")
		if run = w.status("8"); run.Status != orchestrator.StatusFailed || run.Attempts != 1 {
			t.Errorf("run: %+v", run)
		}
		diff(t, "notifications", w.notes(), []string{"orchestrator_complete/1", "orchestrator_failed/1", "orchestrator_failed/2"})

		// IDs that sloppy collations take for one.
		for _, id := range []string{"A", "a", "ä", "Ä", "ß", "ss"} {
			w.create(id)
		}
		list, err := w.runs.List(t.Context(), orchestrator.Filter{Status: orchestrator.StatusPending})
		if err != nil || len(list) != 6 || list[0].RunID != "ss" {
			t.Errorf("List = %d runs, %v", len(list), err)
		}
		list, err = w.runs.List(t.Context(), orchestrator.Filter{Limit: 2, Before: list[5].ID})
		if err != nil || len(list) != 2 || list[0].RunID != "8" {
			t.Errorf("List = %+v, %v", list, err)
		}
	})
}

// Many attempts with tokens of their own write to one row at once: the largest
// token that began is the only one that gets through.
func TestTokensDecideOnEveryDatabase(t *testing.T) {
	onEach(t, func(t *testing.T, w *world) {
		const rounds, guards = 5, 6
		for round := range rounds {
			id := fmt.Sprint("run-", round)
			w.create(id)
			// Each guard has a prefix of its own, so each gets the lease: as if Redis had
			// lost the lease again and again.
			var begun, ended sync.WaitGroup
			begun.Add(guards)
			var succeeded, lost atomic.Int64
			for i := range guards {
				g, err := idempotent.New(w.rdb, idempotent.WithLogger(quiet), idempotent.WithPrefix(fmt.Sprint("g", i)),
					idempotent.WithOnFailed(w.runs.OnFailed))
				w.must(err)
				o := w.orchestration()
				var once sync.Once
				arrive := func() { once.Do(begun.Done) }
				phase := o.Phases[0].Run
				o.Phases[0].Run = func(ctx context.Context, s *state) error {
					arrive()
					begun.Wait()
					return phase(ctx, s)
				}
				h, err := orchestrator.NewHandler(w.runs, w.store, o)
				w.must(err)
				ended.Go(func() {
					switch err := w.deliverTo(g, h, id, "1"); {
					case err == nil:
						succeeded.Add(1)
					case errors.Is(err, idempotent.ErrLeaseLost):
						lost.Add(1)
					default:
						t.Errorf("attempt %d: %v", i, err)
					}
					arrive() // one that was stale at its begin
				})
			}
			ended.Wait()
			if succeeded.Load() != 1 || lost.Load() != guards-1 {
				t.Errorf("round %d: %d succeeded, %d lost; want 1 and %d", round, succeeded.Load(), lost.Load(), guards-1)
			}
			w.is(id, orchestrator.StatusSuccess)
		}
		if n := len(w.notes()); n != rounds {
			t.Errorf("%d notifications, want %d", n, rounds)
		}
	})
}

func TestSubmittedAtOnceOnEveryDatabase(t *testing.T) {
	onEach(t, func(t *testing.T, w *world) {
		var wg sync.WaitGroup
		var accepted atomic.Int64
		for range 16 {
			wg.Go(func() {
				_, err := w.dispatcher.Create(t.Context(), orchestrator.NewRun{RunID: "7", Requirement: "build a thing"})
				if err == nil {
					accepted.Add(1)
				} else if !errors.Is(err, idempotent.ErrDuplicate) {
					t.Errorf("Create = %v", err)
				}
			})
		}
		wg.Wait()
		if accepted.Load() != 1 {
			t.Errorf("%d of 16 were accepted, want 1", accepted.Load())
		}
		diff(t, "history", w.kinds("7"), []orchestrator.HistoryKind{"created"})
	})
}

func TestMigrateByManyAtOnce(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *dbtest.Database) {
		var wg sync.WaitGroup
		for range 8 {
			db := d.Open(t)
			wg.Go(func() {
				for _, table := range []string{"onceq_runs", "other_runs"} {
					runs, err := orchestrator.NewRuns(db, nil, orchestrator.WithTable(table), orchestrator.WithLogger(quiet))
					if err != nil {
						t.Error(err)
						return
					}
					if err := runs.Migrate(t.Context()); err != nil {
						t.Errorf("Migrate: %v", err)
					}
				}
			})
		}
		wg.Wait()
		for _, table := range []string{"onceq_runs", "other_runs"} {
			insert := func() error {
				return d.DB.Table(table).Create(&orchestrator.Run{RunID: "7", Status: orchestrator.StatusPending}).Error
			}
			if err := insert(); err != nil {
				t.Fatal(err)
			}
			if insert() == nil {
				t.Errorf("%s takes the same run twice", table)
			}
		}
	})
}

func TestMigrateRefusesATableOfAnotherShape(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *dbtest.Database) {
		for table, ddl := range map[string]string{
			"no_column": "CREATE TABLE no_column (id BIGINT PRIMARY KEY, run_id VARCHAR(128) NOT NULL UNIQUE)",
			"no_unique": "",
		} {
			runs, err := orchestrator.NewRuns(d.DB, nil, orchestrator.WithTable(table), orchestrator.WithLogger(quiet))
			if err != nil {
				t.Fatal(err)
			}
			if ddl == "" {
				ddl = "CREATE TABLE no_unique AS SELECT * FROM onceq_runs"
				good, err := orchestrator.NewRuns(d.DB, nil)
				if err != nil {
					t.Fatal(err)
				}
				if err := good.Migrate(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if err := d.DB.Exec(ddl).Error; err != nil {
				t.Fatal(err)
			}
			if err := runs.Migrate(t.Context()); !errors.Is(err, orchestrator.ErrSchema) {
				t.Errorf("%s: Migrate = %v, want ErrSchema", table, err)
			}
		}
	})
}

func TestAHostsSettingsDoNotLeakIn(t *testing.T) {
	d := dbtest.New(t, "sqlite")
	host := d.DB.Session(&gorm.Session{}).Where("1 = 0") // a chained handle
	runs, err := orchestrator.NewRuns(host, nil, orchestrator.WithLogger(quiet))
	if err != nil {
		t.Fatal(err)
	}
	if err := runs.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := d.DB.Table("onceq_runs").Create(&orchestrator.Run{RunID: "7"}).Error; err != nil {
		t.Fatal(err)
	}
	if _, err := runs.Get(t.Context(), "7"); err != nil {
		t.Errorf("Get = %v", err)
	}
}
