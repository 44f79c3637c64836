// Package notify tells people once: an outbox in the host's own database, and
// destinations such as Slack.
//
// An event is stored in the same transaction as what it is about, one row for each
// destination, and sent afterwards, by any process that runs the outbox:
//
//	slack, err := notify.NewSlack(token, channelID)
//	if err != nil {
//		return err
//	}
//	outbox, err := notify.New(db, []notify.Destination{slack})
//	if err != nil {
//		return err
//	}
//	if err := outbox.Migrate(ctx); err != nil {
//		return err
//	}
//	go outbox.Run(ctx)
//
//	err = db.Transaction(func(tx *gorm.DB) error {
//		... the run has succeeded ...
//		return outbox.Enqueue(ctx, tx, notify.Event{RunID: "run-42", Type: "done", Content: content})
//	})
//	outbox.Kick()
//
// The one method that most hosts need is [Outbox.Enqueue]; [Outbox.Run] is for the
// processes that send. Inside a guarded handler its context is the handler's: by it
// an attempt that has lost its run tells nobody anything, and the event belongs to
// the run's generation. Without an attempt in the context there is no such fence, and
// the generation is 1.
//
// # What is promised
//
// A committed event is never forgotten, and the same event is never stored twice.
// A message is posted at most once for each attempt, and an attempt whose result is
// unknown (the reply was lost, the worker died) is not followed by another until
// the destination was asked and does not have the message. So people are told exactly
// once, under three conditions: the destination can be asked ([Slack] with its
// history can, webhooks cannot); it shows what it took within
// [WithReconcileGrace]; and its client sends nothing more once its context has ended.
//
// Where a destination cannot be asked, nobody can promise that. Then the [Policy]
// decides: hold the message for a person, send it again, or drop it.
//
// # Rows
//
//	pending → sending → sent
//	                  → pending    not sent: again after a pause, or when the rate limit allows
//	                  → failed     refused for good, or no attempt left
//	                  → uncertain  may have been sent → asked → sent, pending or by policy
//	                  → held       may have been sent, a person decides: Resolve
//
// A worker holds a row under a lease with a random token. Every change of a row is
// one conditional UPDATE that names state and token, so a worker that lost its row
// changes nothing. Leases are read by the database's clock. Every change is one log
// line, with the keys row, destination, run, event, generation, attempt, from, to
// and why; payloads and texts are never logged.
//
// SQLite, PostgreSQL, MySQL and MariaDB are supported through the host's gorm
// driver; this package links none. It needs none of the other packages either.
package notify
