package notify

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/nexuscore/onceq/internal/database"
	"github.com/nexuscore/onceq/internal/dbtest"
	"github.com/nexuscore/onceq/notify/notifytest"
)

// Environment of the process that this test binary is when it is killed.
const (
	childDSN   = "ONCEQ_TEST_CHILD_DSN" // kind and DSN
	childSlack = "ONCEQ_TEST_CHILD_SLACK"
)

// child runs an outbox until it is killed.
func child(dsn, slackURL string) {
	kind, dsn, _ := strings.Cut(dsn, " ")
	db, err := gorm.Open(dbtest.Dialector(kind, dsn), &gorm.Config{})
	if err != nil {
		log.Fatal(err)
	}
	o, err := childOutbox(db, slackURL)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(o.Run(context.Background()))
}

func childOutbox(db *gorm.DB, slackURL string) (*Outbox, error) {
	s, err := NewSlack(notifytest.Token, notifytest.Channel, WithAPIURL(slackURL), WithName("slack"))
	if err != nil {
		return nil, err
	}
	return New(db, []Destination{s}, quick(WithSendTimeout(500*time.Millisecond), WithLeaseTTL(1500*time.Millisecond), WithReconcileGrace(300*time.Millisecond), WithConcurrency(2))...)
}

// A process is killed with SIGKILL while Slack has its request: before Slack took
// the message, and after.
func TestKilledProcess(t *testing.T) {
	dbtest.EachDialect(t, func(t *testing.T, d *dbtest.Database) {
		fake := fakeSlack(t)
		o, err := childOutbox(d.DB, fake.URL())
		must(t, err)
		must(t, o.Migrate(t.Context()))
		want := map[string]int{}
		for i := range 8 {
			run := fmt.Sprint("r", i)
			must(t, o.Enqueue(t.Context(), d.DB, done(run)))
			want[run+" is done"] = 1
		}

		var mu sync.Mutex // guards cmd
		var cmd *exec.Cmd
		kills := 0
		fake.OnCall(func(c notifytest.Call) notifytest.Fault {
			if c.Method != "chat.postMessage" || c.N%3 != 0 || c.N > 12 {
				return notifytest.None
			}
			mu.Lock()
			defer mu.Unlock()
			kills++
			_ = cmd.Process.Kill()
			if c.N%2 == 0 {
				return notifytest.Drop
			}
			return notifytest.AcceptThenDrop
		})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			for ctx.Err() == nil {
				c := exec.CommandContext(ctx, os.Args[0])
				c.Env = append(os.Environ(), childDSN+"="+d.Kind+" "+d.DSN, childSlack+"="+fake.URL())
				mu.Lock()
				cmd = c
				err := c.Start()
				mu.Unlock()
				if err != nil {
					t.Errorf("child: %v", err)
					return
				}
				_ = c.Wait()
			}
		})
		left := int64(-1)
		for end := time.Now().Add(time.Minute); left != 0 && time.Now().Before(end); database.Pause(ctx, 20*time.Millisecond) {
			if left, err = o.store.open(ctx, o.destinations()); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		wg.Wait()
		same(t, "rows left", left, 0)
		same(t, "told", told(fake), want)
		if kills < 2 {
			t.Errorf("%d kills, want several", kills)
		}
	})
}
