package notify

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/nexuscore/onceq/internal/database"
	"github.com/nexuscore/onceq/internal/dbtest"
)

var (
	soakEvents    = flag.Int("soak.events", 12, "events of TestSoak, on each database")
	soakProcesses = flag.Int("soak.processes", 3, "processes of TestSoak that are killed and started again")
	soakSeed      = flag.Uint64("soak.seed", 0, "seed of TestSoak's faults; 0 for a new one")
)

// chaos decides when something goes wrong. It is shared by all processes of a soak.
type chaos struct {
	off atomic.Bool

	mu  sync.Mutex // guards the fields below
	rng *rand.Rand
	n   map[string]int // how often each fault happened
}

// happens says with probability p that a fault happens.
func (c *chaos) happens(fault string, p float64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.off.Load() || c.rng.Float64() >= p {
		return false
	}
	c.n[fault]++
	return true
}

// process is one that can die between any two steps: its goroutines then end at
// the next of them, and nothing more is written or posted.
type process struct {
	chaos *chaos
	dead  atomic.Bool
	died  chan struct{}
}

func (p *process) step() {
	if !p.dead.Load() && p.chaos.happens("crash", 0.01) {
		if p.dead.CompareAndSwap(false, true) {
			close(p.died)
		}
	}
	if p.dead.Load() {
		runtime.Goexit()
	}
	if p.chaos.happens("freeze", 0.005) {
		time.Sleep(700 * time.Millisecond) // longer than the lease
	}
}

// watch makes every statement of db a step before and a step after it.
func (p *process) watch(t *testing.T, db *gorm.DB) {
	t.Helper()
	step := func(*gorm.DB) { p.step() }
	cb := db.Callback()
	for _, err := range []error{
		cb.Update().Before("gorm:update").Register("before", step), cb.Update().After("gorm:after_update").Register("after", step),
		cb.Query().Before("gorm:query").Register("before", step), cb.Query().After("gorm:after_query").Register("after", step),
		cb.Create().Before("gorm:create").Register("before", step), cb.Create().After("gorm:after_create").Register("after", step),
	} {
		must(t, err)
	}
}

// wall is what people see of one destination, whatever process posted it.
type wall struct {
	name  string
	chaos *chaos

	mu    sync.Mutex             // guards the fields below
	shown map[string][]time.Time // by message ID: from when each can be found
	runs  map[string]string      // message ID → run
}

// post is one POST: dropped before or after it was taken, refused, or taken.
func (w *wall) post(ctx context.Context, m Message, step func()) (Receipt, error) {
	step()
	switch {
	case w.chaos.happens("refused", 0.1):
		return Receipt{}, notSent(0)
	case w.chaos.happens("rate limited", 0.05):
		return Receipt{}, limited(20 * time.Millisecond)
	case w.chaos.happens("rate limited without saying how long", 0.05):
		return Receipt{}, limited(0)
	case w.chaos.happens("request lost", 0.1):
		return Receipt{}, errVague
	}
	w.mu.Lock()
	if err := ctx.Err(); err != nil { // as net/http before it writes
		w.mu.Unlock()
		return Receipt{}, err
	}
	w.shown[m.ID] = append(w.shown[m.ID], time.Now().Add(rand.N(30*time.Millisecond)))
	w.runs[m.ID] = m.RunID
	w.mu.Unlock()
	step()
	if w.chaos.happens("reply lost", 0.15) {
		return Receipt{}, errVague
	}
	return Receipt{ID: m.ID}, nil
}

func (w *wall) seen(run string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, times := range w.shown {
		if w.runs[id] == run {
			n += len(times)
		}
	}
	return n
}

// oneWay is a process's way to a wall; twoWay is one that can also read it.
type oneWay struct {
	*wall
	p *process
}

func (d oneWay) Name() string { return d.name }

func (d oneWay) Send(ctx context.Context, m Message) (Receipt, error) {
	return d.post(ctx, m, d.p.step)
}

type twoWay struct{ oneWay }

func (d twoWay) Find(_ context.Context, m Message) (Receipt, bool, error) {
	d.p.step()
	switch {
	case d.chaos.happens("asking refused", 0.1):
		return Receipt{}, false, limited(0)
	case d.chaos.happens("answer lost", 0.1):
		return Receipt{}, false, errVague
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, from := range d.shown[m.ID] {
		if time.Now().After(from) {
			return Receipt{ID: m.ID}, true, nil
		}
	}
	return Receipt{}, false, nil
}

// soak is one on one database.
type soak struct {
	*chaos
	d     *dbtest.Database
	walls map[string]*wall
}

func (s *soak) outbox(t *testing.T, p *process, db *gorm.DB) *Outbox {
	t.Helper()
	o, err := New(db, []Destination{
		twoWay{oneWay{s.walls["asked"], p}}, oneWay{s.walls["hold"], p}, oneWay{s.walls["resend"], p}, oneWay{s.walls["drop"], p},
	}, quick(WithPolicy("resend", PolicyResend), WithPolicy("drop", PolicyDrop), WithMaxAttempts(1000), WithMaxChecks(1000),
		WithSendTimeout(150*time.Millisecond), WithLeaseTTL(500*time.Millisecond), WithReconcileGrace(150*time.Millisecond),
		WithBackoff(2*time.Millisecond, 50*time.Millisecond), WithConcurrency(2))...)
	must(t, err)
	return o
}

// live starts one process after another until ctx ends or, once nothing goes wrong
// any more, all is sent.
func (s *soak) live(t *testing.T, ctx context.Context) {
	for ctx.Err() == nil {
		p := &process{chaos: s.chaos, died: make(chan struct{})}
		db := s.d.Open(t)
		p.watch(t, db)
		o := s.outbox(t, p, db)
		run, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { _ = o.Run(run) })
		select {
		case <-p.died:
		case <-ctx.Done():
		}
		cancel()
		wg.Wait()
		if pool, err := db.DB(); err == nil {
			_ = pool.Close()
		}
	}
}

// produce does what a host does until it has succeeded: a row of its own and the
// event in one transaction, again and again because its process dies, and twice.
func (s *soak) produce(t *testing.T, run string) {
	for done := 0; done < 2; {
		p := &process{chaos: s.chaos, died: make(chan struct{})}
		db := s.d.Open(t)
		p.watch(t, db)
		o := s.outbox(t, p, db)
		ended := make(chan bool, 1)
		go func() {
			ok := false
			defer func() { ended <- ok }()
			err := db.Transaction(func(tx *gorm.DB) error {
				if done == 0 {
					if err := tx.Exec("INSERT INTO runs VALUES (?)", run).Error; err != nil && !isDuplicate(err) {
						return err
					} else if err != nil {
						return errTwice // a commit that had taken effect
					}
				}
				p.step()
				if err := o.Enqueue(t.Context(), tx, Event{RunID: run, Type: "done"}); err != nil {
					return err
				}
				p.step()
				return nil
			})
			if err != nil && !database.Repeatable(err) && !errors.Is(err, errTwice) {
				t.Errorf("produce: %v", err)
			}
			ok = err == nil || errors.Is(err, errTwice)
		}()
		if <-ended {
			done++
		}
		if pool, err := db.DB(); err == nil {
			_ = pool.Close()
		}
	}
}

var errTwice = errors.New("the run is there")

func isDuplicate(err error) bool {
	s := strings.ToLower(err.Error())
	return strings.Contains(s, "unique") || strings.Contains(s, "duplicate")
}

// TestSoak kills processes between any two steps, freezes them for longer than
// their lease, loses requests and replies, and limits rates. Then it counts what
// people saw: with reconciliation each event once; without, only what the policy
// allows. For longer: go test ./notify -run TestSoak -soak.events 300
func TestSoak(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *dbtest.Database) {
		seed := *soakSeed
		if seed == 0 {
			seed = rand.Uint64()
		}
		t.Logf("-soak.seed %d", seed)
		s := &soak{chaos: &chaos{rng: rand.New(rand.NewPCG(seed, 1)), n: map[string]int{}}, d: d, walls: map[string]*wall{}}
		for _, name := range []string{"asked", "hold", "resend", "drop"} {
			s.walls[name] = &wall{name: name, chaos: s.chaos, shown: map[string][]time.Time{}, runs: map[string]string{}}
		}
		last := s.outbox(t, &process{chaos: s.chaos, died: make(chan struct{})}, d.DB)
		must(t, last.Migrate(t.Context()))
		execSQL(t, d.DB, "CREATE TABLE runs (id VARCHAR(20) PRIMARY KEY)")

		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		var processes, producers sync.WaitGroup
		for range *soakProcesses {
			processes.Go(func() { s.live(t, ctx) })
		}
		events := make(chan string)
		for range 2 {
			producers.Go(func() {
				for run := range events {
					s.produce(t, run)
				}
			})
		}
		for i := range *soakEvents {
			events <- fmt.Sprint("run-", i)
		}
		close(events)
		producers.Wait()
		// Most of it under fire, the rest in peace.
		s.until(t, last, *soakEvents/4)
		s.off.Store(true)
		s.until(t, last, 0)
		cancel()
		processes.Wait()
		s.count(t, last)
		t.Log("faults:", s.n)
	})
}

// until waits until at most n rows are open.
func (s *soak) until(t *testing.T, o *Outbox, n int) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); ; database.Pause(t.Context(), 20*time.Millisecond) {
		open, err := o.store.open(t.Context(), o.destinations())
		if err == nil && open <= int64(n) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d rows still open: %v", open, err)
		}
	}
}

// count compares rows with what people saw.
func (s *soak) count(t *testing.T, o *Outbox) {
	t.Helper()
	var rows []row
	must(t, o.store.rows(t.Context()).Find(&rows).Error)
	same(t, "rows", len(rows), 4**soakEvents)
	tally := map[string]int{}
	for _, r := range rows {
		n := s.walls[r.Destination].seen(r.RunID)
		tally[fmt.Sprintf("%s, %s, seen %d", r.Destination, r.Status, min(n, 2))]++
		ok := false
		switch r.Destination {
		case "asked":
			ok = r.Status == StateSent && n == 1
		case "hold":
			ok = r.Status == StateSent && n == 1 || r.Status == StateHeld && n <= 1
		case "resend":
			ok = r.Status == StateSent && n >= 1
		case "drop":
			ok = r.Status == StateSent && n == 1 || r.Status == StateFailed && n <= 1
		}
		if !ok {
			t.Errorf("%s of %s is %s and was seen %d times", r.RunID, r.Destination, r.Status, n)
		}
	}
	t.Log("rows:", tally)
}
