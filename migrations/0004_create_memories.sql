-- +goose Up

-- A stored row: its text, vector and metadata sealed, its first contribution
-- inline. toast_tuple_target keeps a row with a vector in one piece. What a row
-- must be like is for the guard to check: PostgreSQL parses a table's constraints
-- anew for every statement, which was a quarter of what adding a row took it.
CREATE TABLE memd.memories (
  tenant_no           bigint      NOT NULL,
  memory_id           uuid        NOT NULL,
  owner_no            bigint      NOT NULL,
  kind                smallint    NOT NULL, -- 1 raw, 2 fact, 3 summary
  month               integer     NOT NULL,
  contributor_no      bigint      NOT NULL,
  contributor_session bigint      NOT NULL,
  more_contributions  smallint    NOT NULL DEFAULT 0,
  source_time         timestamptz,
  created_at          timestamptz NOT NULL,
  updated_at          timestamptz NOT NULL,
  expires_at          timestamptz,
  version             bigint      NOT NULL DEFAULT 1,
  edited              boolean     NOT NULL DEFAULT false,
  dimension           smallint    NOT NULL DEFAULT 0,
  vector_format       smallint    NOT NULL DEFAULT 0,
  content_digest      bytea       NOT NULL,
  sealed_text         bytea,
  sealed_vector       bytea,
  sealed_metadata     bytea,
  changed_xid         bigint      NOT NULL DEFAULT 0,
  PRIMARY KEY (tenant_no, memory_id)
) WITH (toast_tuple_target = 8160);
-- Ciphertext does not compress.
ALTER TABLE memd.memories
  ALTER COLUMN sealed_text SET STORAGE EXTERNAL,
  ALTER COLUMN sealed_vector SET STORAGE EXTERNAL,
  ALTER COLUMN sealed_metadata SET STORAGE EXTERNAL;
CREATE INDEX memories_scope ON memd.memories (tenant_no, owner_no, changed_xid);
CREATE INDEX memories_list ON memd.memories (tenant_no, owner_no, created_at, memory_id);
CREATE INDEX memories_contributor ON memd.memories (tenant_no, contributor_no, contributor_session, month);
CREATE INDEX memories_month ON memd.memories (tenant_no, month);
-- Not by tenant: the sweep goes through all of them at once.
CREATE INDEX memories_expiry ON memd.memories (expires_at) WHERE expires_at IS NOT NULL;

-- Further contributions of derived rows: the flattened closure of their sources'.
CREATE TABLE memd.memory_contributions (
  tenant_no           bigint NOT NULL,
  memory_id           uuid   NOT NULL,
  contributor_no      bigint NOT NULL,
  contributor_session bigint NOT NULL,
  PRIMARY KEY (tenant_no, memory_id, contributor_no, contributor_session),
  FOREIGN KEY (tenant_no, memory_id) REFERENCES memd.memories ON DELETE CASCADE
);
CREATE INDEX memory_contributions_contributor ON memd.memory_contributions (tenant_no, contributor_no, contributor_session);

-- Direct lineage: what a derived row was made from.
CREATE TABLE memd.memory_sources (
  tenant_no      bigint   NOT NULL,
  memory_id      uuid     NOT NULL,
  ordinal        integer  NOT NULL,
  source_memory  uuid,
  source_subject bigint,
  source_session bigint,
  PRIMARY KEY (tenant_no, memory_id, ordinal),
  FOREIGN KEY (tenant_no, memory_id) REFERENCES memd.memories ON DELETE CASCADE,
  CHECK ((source_memory IS NULL) = (source_session IS NOT NULL)),
  CHECK ((source_subject IS NULL) = (source_session IS NULL))
);
CREATE INDEX memory_sources_memory ON memd.memory_sources (tenant_no, source_memory) WHERE source_memory IS NOT NULL;

-- The application can neither move a row to another owner nor strip a
-- contribution: those columns and deletes are not granted.
GRANT SELECT, INSERT, DELETE ON memd.memories TO memd_app;
GRANT SELECT, DELETE ON memd.memories TO memd_worker;
GRANT UPDATE (kind, month, more_contributions, source_time, updated_at, expires_at, edited,
              dimension, vector_format, content_digest, sealed_text, sealed_vector, sealed_metadata)
  ON memd.memories TO memd_app;
GRANT SELECT, INSERT ON memd.memory_contributions, memd.memory_sources TO memd_app;
GRANT SELECT ON memd.memory_contributions, memd.memory_sources TO memd_worker;

-- +goose StatementBegin
-- delete_orphans deletes the contributions and sources of a row that is not there:
-- what foreign keys do, where somebody circumvented them.
CREATE FUNCTION memd.delete_orphans(p_tenant bigint, p_memory uuid) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  DELETE FROM memd.memory_contributions c WHERE c.tenant_no = p_tenant AND c.memory_id = p_memory
    AND NOT EXISTS (SELECT FROM memd.memories m WHERE m.tenant_no = p_tenant AND m.memory_id = p_memory);
  DELETE FROM memd.memory_sources c WHERE c.tenant_no = p_tenant AND c.memory_id = p_memory
    AND NOT EXISTS (SELECT FROM memd.memories m WHERE m.tenant_no = p_tenant AND m.memory_id = p_memory)
$$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION memd.delete_orphans(bigint, uuid) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION memd.delete_orphans(bigint, uuid) TO memd_worker;

-- scope_head is what a reader asks that has a scope in memory: whether anything
-- changed for it since transaction p_since. It becomes part of the statement
-- that calls it. The tables are named, not their views, because each relation of
-- a statement is locked once, and the cheap places for locks are sixteen.
CREATE FUNCTION memd.scope_head(p_tenant bigint, p_ref bytea, p_known bigint, p_since bigint, p_premise bytea, p_revision xid[])
RETURNS TABLE (epoch bigint, state smallint, subject_no bigint, snapshot text, changed boolean, held boolean)
LANGUAGE sql STABLE AS $$
  SELECT
    coalesce((SELECT k.epoch FROM memd.tenant_keys k WHERE k.tenant_no = p_tenant), 0),
    coalesce((SELECT f.state FROM memd.fences f WHERE f.tenant_no = p_tenant AND f.user_ref = p_ref), 0::smallint),
    s.subject_no,
    pg_current_snapshot()::text,
    EXISTS (SELECT FROM memd.memories m
            WHERE m.tenant_no = p_tenant AND m.owner_no = p_known AND m.changed_xid >= p_since)
    OR EXISTS (SELECT FROM memd.tombstones x
               WHERE x.kind = 3 AND x.through_version = 9223372036854775807
                 AND x.tenant_no = p_tenant AND x.owner_no = p_known AND x.changed_xid >= p_since)
    OR EXISTS (SELECT FROM memd.hides h
               WHERE h.tenant_no = p_tenant AND h.owner_no = p_known AND h.changed_xid >= p_since),
    (SELECT ARRAY[p.xmin, t.xmin] FROM memd.principals p JOIN memd.tenants t ON t.tenant_no = p.tenant_no
     WHERE p.secret_hash = p_premise) = p_revision
  FROM memd.subjects s WHERE s.tenant_no = p_tenant AND s.user_ref = p_ref AND s.retired_at IS NULL
$$;

-- +goose Down
DROP FUNCTION memd.delete_orphans(bigint, uuid);
DROP FUNCTION memd.scope_head(bigint, bytea, bigint, bigint, bytea, xid[]);
DROP TABLE memd.memory_sources, memd.memory_contributions, memd.memories;
