-- The tables of package orchestrator for MySQL and MariaDB. Runs.Migrate runs
-- this file; teams with a migration tool of their own run it there. Under
-- another table name, replace onceq_runs everywhere. The collation is binary
-- because the usual ones take run "A" and run "a" for one. Times are UTC epoch
-- milliseconds, 0 for never.
CREATE TABLE onceq_runs (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    run_id VARCHAR(128) NOT NULL UNIQUE,
    requirement MEDIUMTEXT NOT NULL,
    parameters MEDIUMTEXT NOT NULL,
    status VARCHAR(16) NOT NULL,
    generation BIGINT NOT NULL,
    token BIGINT NOT NULL,
    attempts BIGINT NOT NULL,
    phase VARCHAR(256) NOT NULL,
    phases_done BIGINT NOT NULL,
    phases_total BIGINT NOT NULL,
    error TEXT NOT NULL,
    result MEDIUMTEXT NOT NULL,
    from_scratch BOOLEAN NOT NULL,
    settled BOOLEAN NOT NULL,
    revision BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    started_at BIGINT NOT NULL,
    finished_at BIGINT NOT NULL,
    KEY onceq_runs_status_idx (status, id),
    KEY onceq_runs_open_idx (settled, id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin ROW_FORMAT = DYNAMIC;
CREATE TABLE onceq_runs_history (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    run_id VARCHAR(128) NOT NULL,
    at BIGINT NOT NULL,
    kind VARCHAR(32) NOT NULL,
    generation BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    phase VARCHAR(256) NOT NULL,
    duration_ms BIGINT NOT NULL,
    detail TEXT NOT NULL,
    KEY onceq_runs_history_run_idx (run_id, id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin ROW_FORMAT = DYNAMIC;
