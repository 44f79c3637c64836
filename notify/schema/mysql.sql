-- The outbox of package notify for MySQL and MariaDB. Outbox.Migrate runs this
-- file; teams with a migration tool of their own run it there. Under another
-- table name, replace notification_logs everywhere. The collation is binary
-- because the usual ones take run "A" and run "a" for one. Times are UTC epoch
-- milliseconds, 0 for never. One column per line: the upgrade of older tables
-- reads them here.
CREATE TABLE notification_logs (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    destination VARCHAR(64) NOT NULL,
    run_id VARCHAR(512) NOT NULL,
    event_type VARCHAR(64) NOT NULL,
    generation INT NOT NULL,
    status VARCHAR(16) NOT NULL,
    token VARCHAR(32) NOT NULL,
    lease_until BIGINT NOT NULL,
    attempts INT NOT NULL,
    checks INT NOT NULL,
    next_at BIGINT NOT NULL,
    last_error TEXT NOT NULL,
    receipt TEXT NOT NULL,
    payload MEDIUMTEXT NOT NULL,
    content MEDIUMTEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    first_attempt_at BIGINT NOT NULL,
    doubt_at BIGINT NOT NULL,
    sent_at BIGINT NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin ROW_FORMAT = DYNAMIC;
CREATE UNIQUE INDEX notification_logs_event_key ON notification_logs (destination, run_id, event_type, generation);
CREATE INDEX notification_logs_due_idx ON notification_logs (destination, status, next_at, id);
