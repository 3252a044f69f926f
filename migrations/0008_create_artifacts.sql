-- +goose Up

-- A name under which versions of an artifact are kept: a session's, or, with
-- the own scope as its session, the user's. The name is sealed, and looked up
-- by a digest under the owner's own key. A session's name is sealed with a month, as
-- its versions are; the user's own have none, in which column soever they name one.
CREATE TABLE memd.artifacts (
  tenant_no    bigint      NOT NULL,
  subject_no   bigint      NOT NULL,
  session_no   bigint      NOT NULL CHECK (session_no > 0),
  artifact_id  uuid        NOT NULL,
  name_digest  bytea       NOT NULL CHECK (octet_length(name_digest) = 16),
  sealed_name  bytea       NOT NULL,
  last_version bigint      NOT NULL DEFAULT 0 CHECK (last_version >= 0),
  month        integer     NOT NULL CHECK (month > 0),
  -- Of the save that made the name.
  source_time  timestamptz,
  created_at   timestamptz NOT NULL,
  PRIMARY KEY (tenant_no, subject_no, session_no, artifact_id)
);
CREATE UNIQUE INDEX artifacts_name ON memd.artifacts (tenant_no, subject_no, session_no, name_digest);
CREATE INDEX artifacts_month ON memd.artifacts (month, tenant_no) WHERE session_no <> 1099511627777;

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
  CHECK ((version IS NULL) = (artifact_id IS NULL)),
  CHECK ((version IS NULL) = (sealed_info IS NULL))
);
CREATE UNIQUE INDEX artifact_versions_number
  ON memd.artifact_versions (tenant_no, subject_no, session_no, artifact_id, version);
CREATE INDEX artifact_versions_month ON memd.artifact_versions (month, tenant_no) WHERE session_no <> 1099511627777;
-- Not by tenant: the sweep goes through all of them at once.
CREATE INDEX artifact_versions_unfinished ON memd.artifact_versions (touched_at) WHERE version IS NULL;

-- The bytes of a save, which is there as long as they are: a chunk under one
-- user's numbers cannot be part of another's artifact, so the guard of a chunk
-- asks about the right one, and a chunk whose save was swept away is refused.
CREATE TABLE memd.artifact_chunks (
  tenant_no  bigint  NOT NULL,
  subject_no bigint  NOT NULL,
  session_no bigint  NOT NULL,
  version_id uuid    NOT NULL,
  chunk_no   integer NOT NULL CHECK (chunk_no >= 0),
  sealed     bytea   NOT NULL,
  PRIMARY KEY (tenant_no, subject_no, session_no, version_id, chunk_no)
);
-- Ciphertext does not compress.
ALTER TABLE memd.artifact_chunks ALTER COLUMN sealed SET STORAGE EXTERNAL;
ALTER TABLE memd.artifact_versions ALTER COLUMN sealed_info SET STORAGE EXTERNAL;

-- By column: nothing moves to another owner, and nothing becomes a version by
-- an INSERT. A chunk never changes.
GRANT SELECT, DELETE ON memd.artifacts, memd.artifact_versions, memd.artifact_chunks TO memd_app, memd_worker;
GRANT INSERT (tenant_no, subject_no, session_no, artifact_id, name_digest, sealed_name, month, source_time, created_at)
  ON memd.artifacts TO memd_app;
GRANT UPDATE (last_version) ON memd.artifacts TO memd_app;
GRANT INSERT (tenant_no, subject_no, session_no, version_id, month, source_time, created_at, touched_at)
  ON memd.artifact_versions TO memd_app;
GRANT UPDATE (artifact_id, version, sealed_info, size, chunks, created_at, touched_at) ON memd.artifact_versions TO memd_app;
-- To lock the row that it sweeps (SELECT … FOR UPDATE).
GRANT UPDATE (touched_at) ON memd.artifact_versions TO memd_worker;
GRANT INSERT (tenant_no, subject_no, session_no, version_id, chunk_no, sealed) ON memd.artifact_chunks TO memd_app;

-- Whose artifacts may be read: the user's own, under the own scope and without
-- a session_ref, and those of sessions.
CREATE VIEW memd.artifact_owners AS
  SELECT tenant_no, user_ref, subject_no, 1099511627777 AS session_no, NULL::bytea AS session_ref FROM memd.readable_subjects
  UNION ALL
  SELECT tenant_no, user_ref, subject_no, session_no, session_ref FROM memd.readable_sessions;
-- The month of a session's content: its head's, and of a session without one,
-- that of its admission, so that artifacts never outlive the rest of it.
CREATE VIEW memd.content_months AS
  SELECT x.tenant_no, x.subject_no, x.session_no,
    coalesce(h.month, memd.month_of(coalesce(x.first_source_time, x.admitted_at))) AS month
  FROM memd.sessions x
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
    PERFORM memd.guard_content(t, s, x, m, true);
  END IF;
  IF EXISTS (SELECT FROM new_rows n WHERE n.session_no <> 1099511627777 AND EXISTS (SELECT FROM memd.month_gone(n.tenant_no, 0::smallint, n.month))) THEN
    RAISE EXCEPTION 'refused by the guard' USING ERRCODE = 'MD010';
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
    PERFORM memd.guard_content(t, s, x, m, false);
  END IF;
  IF EXISTS (SELECT FROM new_rows n WHERE n.session_no <> 1099511627777 AND EXISTS (SELECT FROM memd.month_gone(n.tenant_no, 0::smallint, n.month))) THEN
    RAISE EXCEPTION 'refused by the guard' USING ERRCODE = 'MD010';
  END IF;
  RETURN NULL;
END $$;
-- Chunks: the owner, with the source time of the save.
CREATE FUNCTION memd.guard_artifact_chunks() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  t bigint[]; s bigint[]; x bigint[]; m timestamptz[];
  saves bigint;
BEGIN
  SELECT count(*) INTO saves FROM (SELECT DISTINCT tenant_no, subject_no, session_no, version_id FROM new_rows) n;
  SELECT array_agg(n.tenant_no), array_agg(n.subject_no), array_agg(n.session_no), array_agg(r.source_time) INTO t, s, x, m
  FROM (SELECT DISTINCT tenant_no, subject_no, session_no, version_id FROM new_rows) n CROSS JOIN LATERAL (
    SELECT r.source_time FROM memd.artifact_versions r
    WHERE r.tenant_no = n.tenant_no AND r.subject_no = n.subject_no AND r.session_no = n.session_no AND r.version_id = n.version_id
    FOR KEY SHARE) r;
  IF coalesce(cardinality(t), 0) <> saves THEN
    RAISE EXCEPTION 'a chunk has no save' USING ERRCODE = '23503';
  END IF;
  IF saves > 0 THEN
    PERFORM memd.guard_content(t, s, x, m, true);
  END IF;
  IF EXISTS (SELECT FROM (SELECT DISTINCT n.tenant_no, n.session_no, r.month FROM new_rows n JOIN memd.artifact_versions r
      ON r.tenant_no = n.tenant_no AND r.subject_no = n.subject_no AND r.session_no = n.session_no AND r.version_id = n.version_id) n
    WHERE n.session_no <> 1099511627777 AND EXISTS (SELECT FROM memd.month_gone(n.tenant_no, 0::smallint, n.month))) THEN
    RAISE EXCEPTION 'refused by the guard' USING ERRCODE = 'MD010';
  END IF;
  RETURN NULL;
END $$;

-- A version that is deleted loses its number first, and is buried then, so that a
-- restored backup does not bring it back. Erasures leave tombstones of their own.
CREATE FUNCTION memd.bury_artifact_versions() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO memd.tombstones (tenant_no, kind, ref, owner_no, changed_xid, recorded_at)
  SELECT o.tenant_no, 5, uuid_send(o.version_id), o.subject_no, pg_current_xact_id()::text::bigint, now()
  FROM old_rows o JOIN new_rows n ON n.tenant_no = o.tenant_no AND n.subject_no = o.subject_no
    AND n.session_no = o.session_no AND n.version_id = o.version_id
  WHERE o.version IS NOT NULL AND n.version IS NULL
  ON CONFLICT DO NOTHING;
  RETURN NULL;
END $$;
-- delete_artifact_version deletes a version that was buried, with its chunks, and its
-- name when that has no other, and returns how many versions that were. For restores,
-- by the owner.
CREATE FUNCTION memd.delete_artifact_version(p_tenant bigint, p_subject bigint, p_version uuid) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v memd.artifact_versions;
BEGIN
  SELECT x.* INTO v FROM memd.artifact_versions x WHERE x.tenant_no = p_tenant AND x.subject_no = p_subject AND x.version_id = p_version;
  IF NOT FOUND THEN
    RETURN 0;
  END IF;
  DELETE FROM memd.artifact_chunks c WHERE c.tenant_no = p_tenant AND c.subject_no = p_subject AND c.session_no = v.session_no AND c.version_id = p_version;
  DELETE FROM memd.artifact_versions x WHERE x.tenant_no = p_tenant AND x.subject_no = p_subject AND x.session_no = v.session_no AND x.version_id = p_version;
  DELETE FROM memd.artifacts a WHERE a.tenant_no = p_tenant AND a.subject_no = p_subject AND a.session_no = v.session_no AND a.artifact_id = v.artifact_id
    AND NOT EXISTS (SELECT FROM memd.artifact_versions x WHERE x.tenant_no = a.tenant_no AND x.subject_no = a.subject_no
                    AND x.session_no = a.session_no AND x.artifact_id = a.artifact_id);
  RETURN 1;
END $$;

-- What foreign keys would do: nothing goes before what belongs to it, and nothing
-- comes without what it belongs to. By statement and not by row, because looking
-- for what belongs to each single row is most of what it costs to erase many.
-- Each looks after the statement, with the lock that a foreign key takes, so that
-- whoever is first wins. Nobody may change what binds them.
CREATE FUNCTION memd.versions_have_names() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF (SELECT count(*) FROM new_rows WHERE artifact_id IS NOT NULL) <> (
    SELECT count(*) FROM new_rows n CROSS JOIN LATERAL (
      SELECT FROM memd.artifacts a
      WHERE a.tenant_no = n.tenant_no AND a.subject_no = n.subject_no AND a.session_no = n.session_no AND a.artifact_id = n.artifact_id
      FOR KEY SHARE) a)
  THEN
    RAISE EXCEPTION 'a version has no name' USING ERRCODE = '23503';
  END IF;
  RETURN NULL;
END $$;
CREATE FUNCTION memd.names_go_last() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM old_rows o CROSS JOIN LATERAL (
    SELECT FROM memd.artifact_versions v
    WHERE v.tenant_no = o.tenant_no AND v.subject_no = o.subject_no AND v.session_no = o.session_no AND v.artifact_id = o.artifact_id
    LIMIT 1) v)
  THEN
    RAISE EXCEPTION 'a name has versions' USING ERRCODE = '23503';
  END IF;
  RETURN NULL;
END $$;
CREATE FUNCTION memd.saves_go_last() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM old_rows o CROSS JOIN LATERAL (
    SELECT FROM memd.artifact_chunks c
    WHERE c.tenant_no = o.tenant_no AND c.subject_no = o.subject_no AND c.session_no = o.session_no AND c.version_id = o.version_id
    LIMIT 1) c)
  THEN
    RAISE EXCEPTION 'a save has chunks' USING ERRCODE = '23503';
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
CREATE TRIGGER bury AFTER UPDATE ON memd.artifact_versions REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION memd.bury_artifact_versions();
CREATE TRIGGER belongs_insert AFTER INSERT ON memd.artifact_versions REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION memd.versions_have_names();
CREATE TRIGGER belongs_update AFTER UPDATE ON memd.artifact_versions REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION memd.versions_have_names();
CREATE TRIGGER last AFTER DELETE ON memd.artifact_versions REFERENCING OLD TABLE AS old_rows
  FOR EACH STATEMENT EXECUTE FUNCTION memd.saves_go_last();
CREATE TRIGGER last AFTER DELETE ON memd.artifacts REFERENCING OLD TABLE AS old_rows
  FOR EACH STATEMENT EXECUTE FUNCTION memd.names_go_last();
REVOKE ALL ON FUNCTION memd.guard_artifacts_insert(), memd.guard_artifacts_update(), memd.guard_artifact_chunks(),
  memd.versions_have_names(), memd.names_go_last(), memd.saves_go_last(), memd.bury_artifact_versions(),
  memd.delete_artifact_version(bigint, bigint, uuid) FROM PUBLIC;

-- +goose Down
DROP VIEW memd.content_months, memd.artifact_owners;
DROP TABLE memd.artifact_chunks, memd.artifact_versions, memd.artifacts;
DROP FUNCTION memd.guard_artifact_chunks(), memd.guard_artifacts_update(), memd.guard_artifacts_insert(),
  memd.versions_have_names(), memd.names_go_last(), memd.saves_go_last(), memd.bury_artifact_versions(),
  memd.delete_artifact_version(bigint, bigint, uuid);
