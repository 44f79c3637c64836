package llmcache

import (
	"context"
	"time"
)

// Store keeps answers, the leases of calls that are under way, and the sums of
// the ledger. [New] makes one on Redis, [NewMemoryStore] one in the process;
// package llmcachetest checks any other. It must be safe for concurrent use.
//
// Each method is atomic, and safe to repeat with the same owner: a reply can be
// lost after the method took effect. An error means "cannot tell".
type Store interface {
	// Begin looks for the answer of a slot. When there is none and nobody holds
	// the slot's lease, it takes the lease for claim.Owner and writes the in-flight
	// record. Who already holds it is told StateMine again. A holder with a smaller Fence
	// counts as nobody: its call is one that was interrupted.
	Begin(ctx context.Context, slot Slot, claim Claim) (Begun, error)
	// Extend keeps the lease alive for another ttl, and takes it back when it
	// expired and nobody else came. It reports whether owner holds it.
	Extend(ctx context.Context, slot Slot, owner string, ttl time.Duration) (bool, error)
	// Finish stores an answer, counts it as paid, and ends the lease and the
	// in-flight record. It reports false, and changes nothing, when the slot is
	// another's by now.
	Finish(ctx context.Context, slot Slot, owner string, answer Stored) (bool, error)
	// Abandon ends the lease and the in-flight record of a call that left nothing
	// to store, and counts what it cost; Book then lives for keep. Nothing happens
	// when they are another's.
	Abandon(ctx context.Context, slot Slot, owner string, cost Account, keep time.Duration) error
	// Count adds to the sums at key, once for each id within a minute.
	Count(ctx context.Context, key, id string, add Account, ttl time.Duration) error
	// Sums returns the sums at key and the in-flight records there, none for an
	// unknown key.
	Sums(ctx context.Context, key string) (Account, error)
}

// Slot is where the answer of one call lives.
type Slot struct {
	Key  string // of the answer; unique to it
	ID   string // names the call within Book
	Book string // ledger of the run whose call it is; "" when it is counted elsewhere
}

// Claim is what Begin needs to know about a call.
type Claim struct {
	Owner  string        // random, new for each call
	Lease  time.Duration // how long the lease lives unless extended
	Note   string        // for the in-flight record: no payload
	Keep   time.Duration // TTL of Book and of the in-flight record
	Touch  time.Duration // an answer that is found lives at least that long; 0 leaves its TTL alone
	Renew  bool          // do not look for an answer
	Refuse bool          // answer StateAmbiguous rather than repeat a call that may have been paid
	Limit  Budget        // of Book
	Fence  int64         // fencing token of the attempt that calls; 0 outside runs
}

// State is what Begin found.
type State int

// What Begin can find.
const (
	StateFound     State = iota + 1 // an answer
	StateMine                       // no answer, and the lease is the claimant's
	StateHeld                       // no answer yet, another makes the call
	StateAmbiguous                  // an earlier call began and never ended
	StateSpent                      // the call would exceed the limit
)

// Begun is the answer of Begin.
type Begun struct {
	State  State
	Data   []byte        // StateFound: what Finish stored
	TTL    time.Duration // StateFound: how long it lives; StateHeld: how long the lease does
	Note   string        // StateAmbiguous, or StateMine after such a call: what the earlier one noted
	Totals Account       // StateSpent: what Book holds
}

// Stored is an answer on its way into a Store.
type Stored struct {
	Data []byte
	TTL  time.Duration // of the answer
	Keep time.Duration // of Book
	Cost Sum           // what it cost, counted as paid now and as saved at each hit
}
