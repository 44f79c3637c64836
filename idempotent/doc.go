// Package idempotent makes an asynq handler run once per run, however often the
// run is enqueued or delivered, and lets a run whose worker died go on.
//
// A [Guard] wraps handlers as an asynq middleware. Each execution of a handler
// is an attempt and holds the run's lease in Redis: a random owner, a TTL that a
// heartbeat extends, and a fencing token that only grows. A [Producer] enqueues
// with a deterministic task ID and answers whether the run is new.
//
// A worker needs three of them: Guard.Middleware around its handlers,
// Guard.ServerConfig for its server, and a started [Recoverer], without which a killed
// worker's run waits for asynq's own recovery, one to two minutes, and some ends of a
// run for ever. Whoever enqueues needs a Producer.
//
// asynq's own Unique and TaskID options refuse a second task while the first is
// in a queue. They know nothing of a task that completed, that was delivered
// twice, or whose worker froze and woke up; the lease and the recorded outcome
// do. What is not promised: a side effect of the handler that does not pass
// through this library, or does not check the fencing token, can happen twice
// when a worker dies or freezes in the middle of it.
//
// # The four answers
//
// Yes is a nil error. No is [ErrContended], [ErrDuplicate],
// [ErrAlreadySucceeded], [ErrPayloadMismatch] and their kin. Lost is
// [ErrLeaseLost]: it was ours and is no longer. Cannot tell is
// [ErrUnavailable]: Redis did not answer, and the command may have taken effect.
package idempotent
