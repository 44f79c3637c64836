package orchestrator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/llmcache"
	"github.com/nexuscore/onceq/notify"
	"github.com/nexuscore/onceq/orchestrator"
)

// The report is completed outside of the transaction, and decides nothing.
func TestReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w *world
		var mu sync.Mutex // guards what is below
		var seen []orchestrator.Run
		var wrote error
		slow := 0
		deaf := make(chan struct{})
		defer close(deaf)
		w = newWorld(t, setup{runs: []orchestrator.Option{
			orchestrator.WithReport(func(ctx context.Context, r orchestrator.Run, rep *notify.Report) error {
				mu.Lock()
				seen = append(seen, r)
				mu.Unlock()
				rep.Cost = orchestrator.Cost(llmcache.Account{Paid: llmcache.Sum{Calls: 3, CostMicros: 1_250_000}})
				switch r.RunID {
				case "slow": // a ledger that does not answer
					<-ctx.Done()
					slow++
					return ctx.Err()
				case "deaf": // and one that ignores its context, for longer than a write may take
					<-deaf
				case "fails":
					return errBoom
				}
				// Inside of the transaction this would find the database locked.
				wrote = errors.Join(wrote, w.db.WithContext(ctx).Exec("UPDATE onceq_runs SET phase = phase").Error)
				return nil
			}),
			orchestrator.WithBuilders(
				func(r notify.Report) (notify.Content, error) {
					return notify.Content{Text: fmt.Sprintf("%s done: %s, $%.2f", r.RunID, r.Title, r.Cost.USD)}, nil
				}, notify.RunFailed),
		}})
		for _, id := range []string{"fine", "slow", "fails", "deaf"} {
			w.create(id)
			if err := w.deliver(id, "1"); err != nil {
				t.Fatal(err)
			}
			w.is(id, orchestrator.StatusSuccess)
		}
		w.team.hook = failing("context", 100, idempotent.Permanent(errBoom))
		w.create("failed")
		if err := w.deliver("failed", "1"); !errors.Is(err, errBoom) {
			t.Fatal(err)
		}
		w.is("failed", orchestrator.StatusFailed)
		mu.Lock()
		defer mu.Unlock()
		var contents []string
		w.must(w.db.Table("notification_logs").Order("id").Pluck("content", &contents).Error)
		for i, want := range []string{"fine done: build a thing, $1.25", "slow done: build a thing, $1.25", "fails done: build a thing, $1.25", "deaf done: build a thing, $0.00", "boom"} {
			if len(contents) != 5 || !strings.Contains(contents[i], want) {
				t.Errorf("contents: %q, want %q", contents, want)
			}
		}
		if wrote != nil {
			t.Errorf("a write of the host's: %v", wrote)
		}
		if len(seen) != 5 || slow != 1 || seen[0].Status != orchestrator.StatusSuccess || seen[0].Result != `{"phases":7}` || seen[0].FinishedAt == 0 ||
			seen[4].Status != orchestrator.StatusFailed || seen[4].Error != `phase "context": boom` {
			t.Errorf("called %d times, %d slow, with %+v; want each run once, as it ended", len(seen), slow, seen)
		}
	})
}
