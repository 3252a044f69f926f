-- +goose Up

-- The space that a row's vector is of: the tenant's policy numbers what its embedder
-- and dimension have been. Vectors of two spaces are never compared.
ALTER TABLE memd.memories ADD COLUMN space smallint NOT NULL DEFAULT 1;
GRANT UPDATE (space) ON memd.memories TO memd_app;

-- Embedding a tenant's rows anew after its policy changed, and how far that is. after
-- is the row up to which the pass has come; found, how many rows of another space the
-- pass has met that could be embedded; done, how many were, in all passes.
CREATE TABLE memd.reembeddings (
  tenant_no   bigint      NOT NULL,
  space       smallint    NOT NULL,
  started_at  timestamptz NOT NULL,
  finished_at timestamptz,
  pass_began  timestamptz NOT NULL,
  after       uuid        NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
  found       bigint      NOT NULL DEFAULT 0,
  done        bigint      NOT NULL DEFAULT 0,
  PRIMARY KEY (tenant_no, space)
);
GRANT SELECT, INSERT ON memd.reembeddings TO memd_app;
GRANT UPDATE (finished_at, pass_began, after, found, done) ON memd.reembeddings TO memd_app;

-- Whoever has not heard yet that the policy has changed writes nothing into the space
-- before: a call that began with the old one is refused, and made again with the new.
-- What a row has already may stay as it is.
-- +goose StatementBegin
CREATE FUNCTION memd.guard_spaces_insert() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM (SELECT DISTINCT n.tenant_no, n.space FROM new_rows n WHERE n.dimension > 0) n
             JOIN memd.tenants t ON t.tenant_no = n.tenant_no
             WHERE n.space <> coalesce((t.policy->>'space')::smallint, 1)) THEN
    RAISE EXCEPTION 'the embedder has changed' USING ERRCODE = 'MD015';
  END IF;
  RETURN NULL;
END $$;
CREATE FUNCTION memd.guard_spaces_update() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM (SELECT DISTINCT n.tenant_no, n.space FROM new_rows n
               JOIN old_rows o ON o.tenant_no = n.tenant_no AND o.memory_id = n.memory_id
               WHERE n.dimension > 0 AND (n.space <> o.space OR o.dimension = 0)) n
             JOIN memd.tenants t ON t.tenant_no = n.tenant_no
             WHERE n.space <> coalesce((t.policy->>'space')::smallint, 1)) THEN
    RAISE EXCEPTION 'the embedder has changed' USING ERRCODE = 'MD015';
  END IF;
  RETURN NULL;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION memd.guard_spaces_insert(), memd.guard_spaces_update() FROM PUBLIC;
CREATE TRIGGER guard_spaces_insert AFTER INSERT ON memd.memories REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION memd.guard_spaces_insert();
CREATE TRIGGER guard_spaces_update AFTER UPDATE ON memd.memories REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION memd.guard_spaces_update();

-- +goose Down
DROP TRIGGER guard_spaces_insert ON memd.memories;
DROP TRIGGER guard_spaces_update ON memd.memories;
DROP FUNCTION memd.guard_spaces_insert(), memd.guard_spaces_update();
DROP TABLE memd.reembeddings;
ALTER TABLE memd.memories DROP COLUMN space;
