-- +goose Up

-- Compactions of the installation's tables, which all tenants share, and how far
-- each came. Nothing in them is anybody's.
--
-- mode: 1 vacuum, 2 rewrite. cause: 1 schedule, 2 erasure, 3 operator. state: 1
-- asked, 2 running, 3 done, 4 failed. What was deleted before a transaction at the
-- horizon is what the compaction has to remove.
CREATE TABLE memd.compactions (
  compaction_no bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  mode          smallint    NOT NULL CHECK (mode BETWEEN 1 AND 2),
  cause         smallint    NOT NULL CHECK (cause BETWEEN 1 AND 3),
  requested_by  uuid,
  requested_at  timestamptz NOT NULL,
  state         smallint    NOT NULL DEFAULT 1 CHECK (state BETWEEN 1 AND 4),
  horizon       xid8,
  started_at    timestamptz,
  finished_at   timestamptz,
  tries         integer     NOT NULL DEFAULT 0,
  failure       text        NOT NULL DEFAULT '',
  wal_end       pg_lsn
);
-- Whoever asks while another waits is served by the same: it begins after both.
CREATE UNIQUE INDEX compactions_asked ON memd.compactions (mode) WHERE state = 1;
CREATE INDEX compactions_open ON memd.compactions (compaction_no) WHERE state < 3;

-- state: 1 waiting, 2 running, 3 done, 4 gone, 5 failed. A table counts when it is
-- done, and not before. blocked_ms is what was announced, and then measured.
CREATE TABLE memd.compaction_tables (
  compaction_no bigint      NOT NULL REFERENCES memd.compactions ON DELETE CASCADE,
  name          text        NOT NULL,
  content       boolean     NOT NULL,
  state         smallint    NOT NULL DEFAULT 1 CHECK (state BETWEEN 1 AND 5),
  tries         integer     NOT NULL DEFAULT 0,
  failure       text        NOT NULL DEFAULT '',
  sqlstate      text        NOT NULL DEFAULT '',
  bytes_before  bigint      NOT NULL DEFAULT 0,
  bytes_after   bigint      NOT NULL DEFAULT 0,
  announced_ms  bigint      NOT NULL DEFAULT 0,
  blocked_ms    bigint      NOT NULL DEFAULT 0,
  phase         text        NOT NULL DEFAULT '',
  blocks        bigint      NOT NULL DEFAULT 0,
  blocks_total  bigint      NOT NULL DEFAULT 0,
  started_at    timestamptz,
  finished_at   timestamptz,
  PRIMARY KEY (compaction_no, name)
);

-- One row: when compactions run. A window of minutes from a minute of the day (UTC)
-- on days of the week (bit 0 is Sunday) holds what the schedule and erasures ask
-- for; an operator's own request does not wait for it. begun_at and seen_at are when a
-- worker that compacts was there first and last.
CREATE TABLE memd.compaction_settings (
  singleton      boolean     PRIMARY KEY DEFAULT true CHECK (singleton),
  mode           smallint    NOT NULL DEFAULT 1 CHECK (mode BETWEEN 1 AND 2),
  every_seconds  bigint      NOT NULL DEFAULT 86400 CHECK (every_seconds >= 0),
  window_start   integer     NOT NULL DEFAULT 0 CHECK (window_start BETWEEN 0 AND 1439),
  window_minutes integer     NOT NULL DEFAULT 1440 CHECK (window_minutes BETWEEN 1 AND 1440),
  days           smallint    NOT NULL DEFAULT 127 CHECK (days BETWEEN 1 AND 127),
  paused         boolean     NOT NULL DEFAULT false,
  changed_by     uuid,
  changed_at     timestamptz,
  begun_at       timestamptz,
  seen_at        timestamptz
);
INSERT INTO memd.compaction_settings DEFAULT VALUES;

GRANT SELECT ON memd.compactions, memd.compaction_tables, memd.compaction_settings TO memd_app, memd_worker;
GRANT INSERT (mode, cause, requested_by, requested_at), UPDATE (cause) ON memd.compactions TO memd_app;
GRANT UPDATE (mode, every_seconds, window_start, window_minutes, days, paused, changed_by, changed_at) ON memd.compaction_settings TO memd_app;
GRANT INSERT, UPDATE, DELETE ON memd.compactions, memd.compaction_tables TO memd_worker;
GRANT UPDATE (begun_at, seen_at) ON memd.compaction_settings TO memd_worker;

-- ANALYZE copies samples of values into the catalogue, where no compaction of a
-- table reaches them. Nothing is looked up by a sealed value, so none is sampled.
-- memd.ensure_event_month says the same of new partitions.
-- +goose StatementBegin
DO $$
DECLARE
  c record;
BEGIN
  FOR c IN SELECT r.relname, a.attname FROM pg_attribute a JOIN pg_class r ON r.oid = a.attrelid
           WHERE r.relnamespace = 'memd'::regnamespace AND r.relkind IN ('r', 'p') AND a.attname LIKE 'sealed%' AND a.atttypid = 'bytea'::regtype
  LOOP
    EXECUTE format('ALTER TABLE memd.%I ALTER COLUMN %I SET STATISTICS 0', c.relname, c.attname);
  END LOOP;
END $$;
-- +goose StatementEnd

-- +goose Down
DROP TABLE memd.compaction_settings, memd.compaction_tables, memd.compactions;
