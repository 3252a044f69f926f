-- +goose Up

-- A name under which versions of an artifact are kept: a session's, or, with
-- the own scope as its session, the user's. The name is sealed, and looked up
-- by a digest under the owner's own key.
CREATE TABLE memd.artifacts (
  tenant_no    bigint      NOT NULL,
  subject_no   bigint      NOT NULL,
  session_no   bigint      NOT NULL CHECK (session_no > 0),
  artifact_id  uuid        NOT NULL,
  name_digest  bytea       NOT NULL CHECK (octet_length(name_digest) = 16),
  sealed_name  bytea       NOT NULL,
  last_version bigint      NOT NULL DEFAULT 0 CHECK (last_version >= 0),
  -- Of the save that made the name.
  source_time  timestamptz,
  created_at   timestamptz NOT NULL,
  PRIMARY KEY (tenant_no, subject_no, session_no, artifact_id)
);
CREATE UNIQUE INDEX artifacts_name ON memd.artifacts (tenant_no, subject_no, session_no, name_digest);

-- One save. Its chunks arrive in transactions of their own; the last one gives
-- it its artifact, its number and its sealed description, all at once, and only
-- then is it a version. A row without a number is a save under way, one that
-- broke off, or a deleted version whose chunks are still to go: nobody reads it,
-- and the worker's sweep takes it when nothing has touched it for a while.
CREATE TABLE memd.artifact_versions (
  tenant_no   bigint      NOT NULL,
  subject_no  bigint      NOT NULL,
  session_no  bigint      NOT NULL,
  version_id  uuid        NOT NULL,
  artifact_id uuid,
  version     bigint      CHECK (version >= 0),
  month       integer     NOT NULL CHECK (month > 0),
  sealed_info bytea,
  size        bigint      NOT NULL DEFAULT 0 CHECK (size >= 0),
  chunks      integer     NOT NULL DEFAULT 0 CHECK (chunks >= 0),
  source_time timestamptz,
  created_at  timestamptz NOT NULL,
  touched_at  timestamptz NOT NULL,
  PRIMARY KEY (tenant_no, subject_no, session_no, version_id),
  FOREIGN KEY (tenant_no, subject_no, session_no, artifact_id) REFERENCES memd.artifacts,
  CHECK ((version IS NULL) = (artifact_id IS NULL)),
  CHECK ((version IS NULL) = (sealed_info IS NULL))
);
CREATE UNIQUE INDEX artifact_versions_number
  ON memd.artifact_versions (tenant_no, subject_no, session_no, artifact_id, version);
-- Not by tenant: the sweep goes through all of them at once.
CREATE INDEX artifact_versions_unfinished ON memd.artifact_versions (touched_at) WHERE version IS NULL;

-- The bytes of a save. The foreign key keeps a chunk with its owner: a chunk
-- under one user's numbers cannot be part of another's artifact, so the guard
-- of a chunk asks about the right one; and it refuses a chunk whose save was
-- swept away.
CREATE TABLE memd.artifact_chunks (
  tenant_no  bigint  NOT NULL,
  subject_no bigint  NOT NULL,
  session_no bigint  NOT NULL,
  version_id uuid    NOT NULL,
  chunk_no   integer NOT NULL CHECK (chunk_no >= 0),
  sealed     bytea   NOT NULL,
  PRIMARY KEY (tenant_no, subject_no, session_no, version_id, chunk_no),
  FOREIGN KEY (tenant_no, subject_no, session_no, version_id) REFERENCES memd.artifact_versions
);
-- Ciphertext does not compress.
ALTER TABLE memd.artifact_chunks ALTER COLUMN sealed SET STORAGE EXTERNAL;
ALTER TABLE memd.artifact_versions ALTER COLUMN sealed_info SET STORAGE EXTERNAL;

-- By column: nothing moves to another owner, and nothing becomes a version by
-- an INSERT. A chunk never changes.
GRANT SELECT, DELETE ON memd.artifacts, memd.artifact_versions, memd.artifact_chunks TO memd_app, memd_worker;
GRANT INSERT (tenant_no, subject_no, session_no, artifact_id, name_digest, sealed_name, source_time, created_at)
  ON memd.artifacts TO memd_app;
GRANT UPDATE (last_version) ON memd.artifacts TO memd_app;
GRANT INSERT (tenant_no, subject_no, session_no, version_id, month, source_time, created_at, touched_at)
  ON memd.artifact_versions TO memd_app;
GRANT UPDATE (artifact_id, version, sealed_info, size, chunks, created_at, touched_at) ON memd.artifact_versions TO memd_app;
-- To lock the row that it sweeps (SELECT … FOR UPDATE).
GRANT UPDATE (touched_at) ON memd.artifact_versions TO memd_worker;
GRANT INSERT (tenant_no, subject_no, session_no, version_id, chunk_no, sealed) ON memd.artifact_chunks TO memd_app;
GRANT SELECT ON memd.artifacts, memd.artifact_versions, memd.artifact_chunks TO memd_maintain;

-- Whose artifacts may be read: the user's own, under the own scope and without
-- a session_ref, and those of sessions.
CREATE VIEW memd.artifact_owners AS
  SELECT tenant_no, user_ref, subject_no, 1099511627777 AS session_no, NULL::bytea AS session_ref FROM memd.readable_subjects
  UNION ALL
  SELECT tenant_no, user_ref, subject_no, session_no, session_ref FROM memd.readable_sessions;
-- The month of a session's content: its head's, and of a session without one,
-- that of its admission, so that artifacts never outlive the rest of it.
CREATE VIEW memd.content_months AS
  SELECT x.tenant_no, x.subject_no, x.session_no, coalesce(h.month,
    ((extract(year FROM s.since AT TIME ZONE 'UTC') - 1970) * 12 + extract(month FROM s.since AT TIME ZONE 'UTC'))::integer) AS month
  FROM memd.sessions x
  CROSS JOIN LATERAL (SELECT coalesce(x.first_source_time, x.admitted_at) AS since) s
  LEFT JOIN memd.session_heads h ON h.tenant_no = x.tenant_no AND h.subject_no = x.subject_no AND h.session_no = x.session_no;
GRANT SELECT ON memd.artifact_owners, memd.content_months TO memd_app, memd_worker;

-- +goose StatementBegin
-- Names and versions: the owner, with the source time of the row.
CREATE FUNCTION memd.guard_artifacts_insert() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  t bigint[]; s bigint[]; x bigint[]; m timestamptz[];
BEGIN
  SELECT array_agg(n.tenant_no), array_agg(n.subject_no), array_agg(n.session_no), array_agg(n.source_time)
  INTO t, s, x, m FROM new_rows n;
  IF t IS NOT NULL THEN
    PERFORM memd.guard_content(t, s, x, m);
  END IF;
  RETURN NULL;
END $$;
CREATE FUNCTION memd.guard_artifacts_update() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  t bigint[]; s bigint[]; x bigint[]; m timestamptz[];
BEGIN
  SELECT array_agg(v.t), array_agg(v.s), array_agg(v.x), array_agg(v.m) INTO t, s, x, m FROM (
    SELECT n.tenant_no AS t, n.subject_no AS s, n.session_no AS x, n.source_time AS m FROM new_rows n
    UNION SELECT o.tenant_no, o.subject_no, o.session_no, o.source_time FROM old_rows o
  ) v;
  IF t IS NOT NULL THEN
    PERFORM memd.guard_content(t, s, x, m);
  END IF;
  RETURN NULL;
END $$;
-- Chunks: the owner, with the source time of the save.
CREATE FUNCTION memd.guard_artifact_chunks() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  t bigint[]; s bigint[]; x bigint[]; m timestamptz[];
BEGIN
  SELECT array_agg(v.t), array_agg(v.s), array_agg(v.x), array_agg(v.m) INTO t, s, x, m FROM (
    SELECT DISTINCT n.tenant_no AS t, n.subject_no AS s, n.session_no AS x, r.source_time AS m
    FROM new_rows n LEFT JOIN memd.artifact_versions r
      ON r.tenant_no = n.tenant_no AND r.subject_no = n.subject_no AND r.session_no = n.session_no AND r.version_id = n.version_id
  ) v;
  IF t IS NOT NULL THEN
    PERFORM memd.guard_content(t, s, x, m);
  END IF;
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER guard_insert AFTER INSERT ON memd.artifacts REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION memd.guard_artifacts_insert();
CREATE TRIGGER guard_update AFTER UPDATE ON memd.artifacts REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION memd.guard_artifacts_update();
CREATE TRIGGER guard_insert AFTER INSERT ON memd.artifact_versions REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION memd.guard_artifacts_insert();
CREATE TRIGGER guard_update AFTER UPDATE ON memd.artifact_versions REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION memd.guard_artifacts_update();
CREATE TRIGGER guard_insert AFTER INSERT ON memd.artifact_chunks REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION memd.guard_artifact_chunks();
REVOKE ALL ON FUNCTION memd.guard_artifacts_insert(), memd.guard_artifacts_update(), memd.guard_artifact_chunks() FROM PUBLIC;

-- +goose Down
DROP VIEW memd.content_months, memd.artifact_owners;
DROP TABLE memd.artifact_chunks, memd.artifact_versions, memd.artifacts;
DROP FUNCTION memd.guard_artifact_chunks(), memd.guard_artifacts_update(), memd.guard_artifacts_insert();
