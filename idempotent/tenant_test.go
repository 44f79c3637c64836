package idempotent_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/nexuscore/onceq/idempotent"
)

// Two tenants name their runs alike, and even share a queue: neither hears of the
// other's run, and each run is worked on by its own tenant's worker.
func TestTenantsDoNotMeet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		acme := w.newGuard(idempotent.WithPrefix("acme"))
		producer, err := idempotent.NewProducer(acme, w.client)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.enqueue("k", "ours"); err != nil {
			t.Fatal(err)
		}
		info, err := producer.Enqueue(t.Context(), "k", task("acme's"), asynq.Timeout(time.Hour))
		if err != nil || info.ID != "acme~~k" {
			t.Fatalf("the other tenant's run: %+v, %v; want queued as acme~~k", info, err)
		}
		seen := make(chan string, 10)
		for name, g := range map[string]*idempotent.Guard{"ours": w.guard, "acme's": acme} {
			w.serve(g, func(_ context.Context, t *asynq.Task) error {
				seen <- name + " runs " + string(t.Payload())
				return nil
			})
		}
		got := []string{<-seen, <-seen}
		if got[0] > got[1] {
			got[0], got[1] = got[1], got[0]
		}
		if got[0] != "acme's runs acme's" || got[1] != "ours runs ours" {
			t.Errorf("%v, want each worker at its own run", got)
		}
		synctest.Wait()
		r, err := acme.Lookup(t.Context(), "k")
		if err != nil || r.State != idempotent.StateSucceeded || w.lookup("k").State != idempotent.StateSucceeded {
			t.Errorf("acme %+v, %v; ours %+v; want both succeeded", r, err, w.lookup("k"))
		}
		if len(seen) != 0 {
			t.Errorf("and then %s", <-seen)
		}
	})
}
