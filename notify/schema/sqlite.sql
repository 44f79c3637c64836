-- The outbox of package notify for SQLite. Outbox.Migrate runs this file; teams
-- with a migration tool of their own run it there. Under another table name,
-- replace notification_logs everywhere. Times are UTC epoch milliseconds, 0 for
-- never. One column per line: the upgrade of older tables reads them here.
CREATE TABLE notification_logs (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    destination TEXT NOT NULL,
    run_id TEXT NOT NULL,
    event_type TEXT NOT NULL,
    generation INTEGER NOT NULL,
    status TEXT NOT NULL,
    token TEXT NOT NULL,
    lease_until INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    checks INTEGER NOT NULL,
    next_at INTEGER NOT NULL,
    last_error TEXT NOT NULL,
    receipt TEXT NOT NULL,
    payload TEXT NOT NULL,
    content TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    first_attempt_at INTEGER NOT NULL,
    doubt_at INTEGER NOT NULL,
    sent_at INTEGER NOT NULL
);
CREATE UNIQUE INDEX notification_logs_event_key ON notification_logs (destination, run_id, event_type, generation);
CREATE INDEX notification_logs_due_idx ON notification_logs (destination, status, next_at, id);
