package idempotent

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/nexuscore/onceq/internal/runkey"
)

// MaxKeyLen is the longest run key in bytes.
const MaxKeyLen = runkey.MaxLen

// Key names a run from its kind and its id: Key("orchestrator-run", 42) is
// "orchestrator-run-42". Two different pairs never give the same key: where an
// id has a '-' of its own, '=' joins the two ("orchestrator-run=550e8400-e29b"),
// and a '=' or '%' inside either is percent-encoded.
func Key[ID ~string | ~int | ~int32 | ~int64 | ~uint | ~uint32 | ~uint64](kind string, id ID) string {
	s := joinable.Replace(fmt.Sprint(id))
	sep := "-"
	if strings.Contains(s, "-") {
		sep = "="
	}
	return joinable.Replace(kind) + sep + s
}

var joinable = strings.NewReplacer("%", "%25", "=", "%3D")

// KeyHeader is the task header that names the run. A Producer sets it; whoever
// enqueues by other means may.
const KeyHeader = "onceq-key"

// Task headers that carry a run through asynq.
const (
	headerPrefix      = "onceq-prefix"
	headerGeneration  = "onceq-generation"
	headerFingerprint = "onceq-fingerprint"
	headerReservation = "onceq-reservation" // the call of a Producer that enqueued it
)

func recordKey(base string) string  { return base + ":run" }
func enqueueKey(base string) string { return base + ":enq" }

// voidKey says that a call of this owner, a reservation or a begin, was given up:
// should its script still arrive, it does nothing.
func voidKey(base, owner string) string { return base + ":enq:" + owner }

// The index of live leases is not a run's: it has a hash tag of its own.
func processesKey(prefix string) string { return prefix + ":{leases}:processes" }

func processLeasesKey(prefix, process string) string {
	return prefix + ":{leases}:of:" + runkey.Escape(process)
}

// waitingKey indexes the runs without a lease that depend on a delivery.
func waitingKey(prefix string) string { return prefix + ":{leases}:waiting" }

// presentKey says which processes were seen subscribed, and since when not.
func presentKey(prefix string) string { return prefix + ":{leases}:present" }

// aliveChannel is the channel that a process subscribes to while it lives. Its
// hash tag makes a cluster client subscribe on the node that has the index.
func aliveChannel(prefix, process string) string { return prefix + ":{leases}:alive:" + process }

// taskName is what the asynq task IDs of a run begin with. '~' does not occur in an
// escaped key or a prefix, so no key can forge another's task ID, nor one guard
// another's. The default prefix is left out: then the ID is the key.
func taskName(prefix, key string) string {
	if prefix == defaultPrefix {
		return runkey.Escape(key)
	}
	return prefix + "~~" + runkey.Escape(key)
}

// taskID is the asynq task ID of a run's delivery in a generation.
func (g *Guard) taskID(key string, generation int) string {
	if generation <= 1 {
		return taskName(g.prefix, key)
	}
	return taskName(g.prefix, key) + "~g" + strconv.Itoa(generation)
}

// redeliveryID is the asynq task ID of a delivery that replaces the one of the
// attempt with this token: whoever finds that attempt dead uses the same ID.
func (g *Guard) redeliveryID(key string, token int64) string {
	return taskName(g.prefix, key) + "~r" + strconv.FormatInt(token, 10)
}

// redeliveryTry is redeliveryID for the nth delivery, when those before it are dead too.
func (g *Guard) redeliveryTry(key string, token int64, n int) string {
	id := g.redeliveryID(key, token)
	if n > 1 {
		id += "." + strconv.Itoa(n)
	}
	return id
}
