-- The outbox of package notify for PostgreSQL. Outbox.Migrate runs this file;
-- teams with a migration tool of their own run it there. Under another table
-- name, replace notification_logs everywhere: index names are unique in a
-- schema. Times are UTC epoch milliseconds, 0 for never. One column per line:
-- the upgrade of older tables reads them here.
CREATE TABLE notification_logs (
    id BIGSERIAL PRIMARY KEY,
    destination TEXT NOT NULL,
    run_id TEXT NOT NULL,
    event_type TEXT NOT NULL,
    generation INTEGER NOT NULL,
    status TEXT NOT NULL,
    token TEXT NOT NULL,
    lease_until BIGINT NOT NULL,
    attempts INTEGER NOT NULL,
    checks INTEGER NOT NULL,
    next_at BIGINT NOT NULL,
    last_error TEXT NOT NULL,
    receipt TEXT NOT NULL,
    payload TEXT NOT NULL,
    content TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    first_attempt_at BIGINT NOT NULL,
    doubt_at BIGINT NOT NULL,
    sent_at BIGINT NOT NULL
);
CREATE UNIQUE INDEX notification_logs_event_key ON notification_logs (destination, run_id, event_type, generation);
CREATE INDEX notification_logs_due_idx ON notification_logs (destination, status, next_at, id);
