// Package checkpoint lets a long run go on where it was when its worker died: the
// run is a list of named phases over one typed state, and the whole state is
// saved after each.
//
// [Run] is what most programs need. [Step] keeps the results of the expensive
// calls inside a phase, so that a phase which is repeated does not repeat them.
// A [RedisStore] holds what is saved; a [MemoryStore] does in tests.
//
//	plan, err := checkpoint.Run(ctx, store, []checkpoint.Phase[Plan]{
//		{Name: "requirements", Run: clarify}, // func(context.Context, *Plan) error
//		{Name: "planning", Run: outline},
//	}, Plan{Goal: goal})
//
// # Whose run it is
//
// Inside a handler that package idempotent guards, the run is the one whose
// lease is in the context, and every write asks Redis first whether the lease
// is still this attempt's: one that was overtaken changes nothing and stops
// with [ErrLeaseLost]. Elsewhere [ContextWithKey] names the run, unfenced. Without
// either nothing is stored and the same code runs.
//
// # What is promised
//
// A phase that was saved is not run again, and a phase that has not run is never
// skipped. A phase that was under way when the worker died runs again from its
// start, on the state that the phase before left, minus the steps that were
// kept. So a phase must bear being repeated.
//
// A snapshot is used whole or not at all. One that is corrupt, too large, of
// another version, payload or list of phases, or that the state's type of today
// cannot take over completely, is discarded: logged, counted, and the run starts
// from the beginning on a new state. A worker of yesterday that meets a
// snapshot of tomorrow does the same; the snapshot stays until the first phase
// is saved over it. Appending phases and adding fields keeps the runs under way;
// see [WithRunMissing] for other changes of the list.
//
// A snapshot is dropped only when the run has succeeded: by whoever records the
// success under a lease, by Run itself without one.
//
// # When Redis fails
//
// A call of the store that gives no answer within a second is passed through:
// the run goes on, the last snapshot stays, and after three in a row Redis is
// left alone for a minute; of a cluster only the server that failed. That is
// logged once when it begins and once when it is over. Losing the lease is another matter: it ends the run, also when Redis
// was silent for so long that the lease cannot be proven any more. The
// environment variable ONCEQ_CHECKPOINT=0 turns checkpoints off.
//
// # What the state must be
//
// The state is encoded as a whole by a [Codec], JSON by default. What does not
// survive that is the program's fault: checkpointtest.RoundTrip finds it in a
// unit test. At run time a state that cannot be encoded is logged as an error
// and the run goes on without a checkpoint, or fails with [WithStrict].
//
// # Related
//
// It is a library, not a server: unlike Temporal or DBOS it does not replay a
// function and asks for no determinism; unlike River's resumable steps it saves
// as each phase and step ends, not when the attempt does.
package checkpoint
