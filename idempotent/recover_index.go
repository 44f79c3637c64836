package idempotent

import (
	"context"
	_ "embed"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/internal/runkey"
)

// The index of runs that need watching, all in one slot:
//
//	{leases}:processes     process → when the last of its leases ends
//	{leases}:of:<process>  run → when its lease ends
//	{leases}:waiting       run without a lease → when to look for its delivery
//	{leases}:present       process → see recover_scan.lua
//
// It only says where to look. What is done to a run is decided by its record and
// its lock, so an entry too many costs a look.

var (
	//go:embed recover_note.lua
	noteLua    string
	noteScript = redis.NewScript(noteLua)
)

const (
	// lookAfter is how long after a retry was due a Recoverer checks that it began.
	lookAfter = 2 * time.Second
	// lookAgain is how long after it did something for a run it checks that it helped.
	lookAgain = 10 * time.Second
)

type noteKind string

const (
	noteLease noteKind = "lease"
	noteWait  noteKind = "wait"
	noteOver  noteKind = "over"
)

type noted struct {
	key  string
	kind noteKind
	ms   int64
}

// note writes to the index what the scripts could not: on Redis Cluster and Ring
// a run's keys and the index may be on different nodes. It waits for no reply. A process
// that dies in the millisecond between the two leaves its run to asynq's own recovery.
func (g *Guard) note(ctx context.Context, notes ...noted) {
	if g.indexed || len(notes) == 0 {
		return
	}
	args := make([]any, 0, 2+3*len(notes))
	args = append(args, g.process, ms(g.retention))
	for _, n := range notes {
		args = append(args, runkey.Escape(n.key), string(n.kind), n.ms)
	}
	g.run.Send(ctx, noteScript, []string{processLeasesKey(g.prefix, g.process), processesKey(g.prefix), waitingKey(g.prefix), presentKey(g.prefix)}, args...)
}
