-- The tables of package orchestrator for SQLite. Runs.Migrate runs this file;
-- teams with a migration tool of their own run it there. Under another table
-- name, replace onceq_runs everywhere. Times are UTC epoch milliseconds, 0 for never.
CREATE TABLE onceq_runs (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL UNIQUE,
    requirement TEXT NOT NULL,
    parameters TEXT NOT NULL,
    status TEXT NOT NULL,
    generation INTEGER NOT NULL,
    token INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    phase TEXT NOT NULL,
    phases_done INTEGER NOT NULL,
    phases_total INTEGER NOT NULL,
    error TEXT NOT NULL,
    result TEXT NOT NULL,
    from_scratch BOOLEAN NOT NULL,
    settled BOOLEAN NOT NULL,
    revision INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    finished_at INTEGER NOT NULL
);
CREATE INDEX onceq_runs_status_idx ON onceq_runs (status, id);
CREATE INDEX onceq_runs_open_idx ON onceq_runs (settled, id);
CREATE TABLE onceq_runs_history (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL,
    at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    generation INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    phase TEXT NOT NULL,
    duration_ms INTEGER NOT NULL,
    detail TEXT NOT NULL
);
CREATE INDEX onceq_runs_history_run_idx ON onceq_runs_history (run_id, id);
