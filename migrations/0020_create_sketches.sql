-- +goose Up

-- Sketches of scopes too large for a replica's memory: of each row its id and the
-- bits of its code in clear, which an index of pgvector can search. They are
-- obfuscation, not encryption (docs/design/0019-sketches.md). So they are UNLOGGED,
-- which keeps them out of the write-ahead log, of standbys and of base backups, and
-- in a schema of their own.
CREATE SCHEMA memd_sketches;
GRANT USAGE ON SCHEMA memd_sketches TO memd_app, memd_maintain;

-- Which scopes have sketches. It is UNLOGGED as well: a crash empties both, and a
-- dump without the ones is one without the other. state: 1 asked for, 2 being built,
-- 3 in use. since: the table has every row that was committed by a transaction
-- before that one; what is newer is found among the rows. relation tells the table from one of
-- the same name in another cluster, to whose transactions since means nothing.
CREATE UNLOGGED TABLE memd.sketches (
  tenant_no bigint      NOT NULL,
  owner_no  bigint      NOT NULL,
  dimension smallint    NOT NULL CHECK (dimension > 0),
  state     smallint    NOT NULL DEFAULT 1 CHECK (state BETWEEN 1 AND 3),
  sketch_no bigint,
  relation  oid,
  since     bigint      NOT NULL DEFAULT 0,
  rows      bigint      NOT NULL DEFAULT 0,
  wanted_at timestamptz NOT NULL,
  built_at  timestamptz,
  PRIMARY KEY (tenant_no, owner_no)
);
CREATE SEQUENCE memd.sketch_numbers;

-- The application asks, and says that it still wants them. Who builds says when they
-- are in use; that they are of a certain table only the function below can say.
GRANT SELECT, INSERT (tenant_no, owner_no, dimension, wanted_at), UPDATE (wanted_at) ON memd.sketches TO memd_app;
GRANT SELECT ON memd.sketches TO memd_worker;
GRANT SELECT, DELETE, UPDATE (state, since, rows, built_at) ON memd.sketches TO memd_maintain;

-- +goose StatementBegin
-- create_sketches makes the table for a scope that asked, and returns its number, or
-- NULL if the scope asks no more.
CREATE FUNCTION memd.create_sketches(p_tenant bigint, p_owner bigint, p_bits integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  no bigint;
  name text;
BEGIN
  IF p_bits NOT BETWEEN 64 AND 65536 THEN
    RAISE EXCEPTION 'sketches have 64 to 65536 bits' USING ERRCODE = '22023';
  END IF;
  UPDATE memd.sketches SET state = 2, sketch_no = nextval('memd.sketch_numbers'), since = 0, rows = 0, built_at = NULL
  WHERE tenant_no = p_tenant AND owner_no = p_owner AND state = 1 RETURNING sketch_no INTO no;
  IF no IS NULL THEN
    RETURN NULL;
  END IF;
  name := format('memd_sketches.s%s', no);
  EXECUTE format('CREATE UNLOGGED TABLE %s (memory_id uuid NOT NULL, sketch bit(%s) NOT NULL)', name, p_bits);
  EXECUTE format('ALTER TABLE %s ALTER COLUMN sketch SET STATISTICS 0', name);
  EXECUTE format('GRANT SELECT ON %s TO memd_app', name);
  EXECUTE format('GRANT SELECT, INSERT, DELETE ON %s TO memd_maintain', name);
  UPDATE memd.sketches SET relation = to_regclass(name) WHERE tenant_no = p_tenant AND owner_no = p_owner;
  RETURN no;
END $$;

-- index_sketches makes the indexes of a table whose rows are there.
CREATE FUNCTION memd.index_sketches(p_no bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  vector text;
BEGIN
  SELECT n.nspname INTO vector FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'vector';
  EXECUTE format('CREATE INDEX ON memd_sketches.s%s USING hnsw (sketch %I.bit_hamming_ops)', p_no, vector);
  EXECUTE format('CREATE INDEX ON memd_sketches.s%s (memory_id)', p_no);
END $$;

-- drop_sketches drops the tables that no scope has any more, and returns how many
-- could not be: somebody was reading them for a second.
CREATE FUNCTION memd.drop_sketches() RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  r record;
  kept integer := 0;
BEGIN
  PERFORM set_config('lock_timeout', '1s', true);
  FOR r IN SELECT c.relname FROM pg_class c
           WHERE c.relnamespace = 'memd_sketches'::regnamespace AND c.relkind = 'r'
             AND NOT EXISTS (SELECT FROM memd.sketches s WHERE s.relation = c.oid)
  LOOP
    BEGIN
      EXECUTE format('DROP TABLE IF EXISTS memd_sketches.%I', r.relname);
    EXCEPTION WHEN lock_not_available THEN
      kept := kept + 1;
    END;
  END LOOP;
  RETURN kept;
END $$;

-- What forgets somebody takes the sketches of every scope that holds their words out
-- of use in the same transaction: whoever searches after it scans, and whoever was
-- building finds out when it wants to say that they are in use. They are built
-- again, without.
CREATE FUNCTION memd.void_sketches_of_hidden() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  -- In one order, or two who are forgotten at once could wait for each other.
  PERFORM FROM memd.sketches s WHERE (s.tenant_no, s.owner_no) IN (SELECT n.tenant_no, n.owner_no FROM new_rows n)
  ORDER BY s.tenant_no, s.owner_no FOR UPDATE;
  UPDATE memd.sketches s SET state = 1, sketch_no = NULL, relation = NULL
  FROM new_rows n WHERE s.tenant_no = n.tenant_no AND s.owner_no = n.owner_no;
  RETURN NULL;
END $$;
CREATE FUNCTION memd.void_sketches_of_month() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE memd.sketches s SET state = 1, sketch_no = NULL, relation = NULL
  WHERE s.tenant_no IN (SELECT n.tenant_no FROM new_rows n WHERE n.kind = 4 AND get_byte(n.ref, 1) = 1);
  RETURN NULL;
END $$;
CREATE FUNCTION memd.void_sketches_of_tenant() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM memd.sketches s WHERE s.tenant_no = NEW.tenant_no;
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER void_sketches AFTER INSERT ON memd.hides REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION memd.void_sketches_of_hidden();
CREATE TRIGGER void_sketches AFTER INSERT ON memd.tombstones REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION memd.void_sketches_of_month();
CREATE TRIGGER void_sketches AFTER UPDATE ON memd.tenants FOR EACH ROW
  WHEN (NEW.state >= 6 OR NEW.policy->>'index' = 'sealed' OR NEW.policy->>'space' IS DISTINCT FROM OLD.policy->>'space') EXECUTE FUNCTION memd.void_sketches_of_tenant();

-- A tenant that allows none has none, whoever asks.
CREATE VIEW memd.sketched_tenants AS
  SELECT tenant_no FROM memd.tenants WHERE state BETWEEN 2 AND 5 AND policy->>'index' IS DISTINCT FROM 'sealed';
GRANT SELECT ON memd.sketched_tenants TO memd_worker;

REVOKE ALL ON FUNCTION memd.create_sketches(bigint, bigint, integer), memd.index_sketches(bigint), memd.drop_sketches(),
  memd.void_sketches_of_hidden(), memd.void_sketches_of_month(), memd.void_sketches_of_tenant() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION memd.create_sketches(bigint, bigint, integer), memd.index_sketches(bigint) TO memd_maintain;
GRANT EXECUTE ON FUNCTION memd.drop_sketches() TO memd_maintain, memd_worker;

-- +goose Down
DROP VIEW memd.sketched_tenants;
DROP TRIGGER void_sketches ON memd.hides;
DROP TRIGGER void_sketches ON memd.tombstones;
DROP TRIGGER void_sketches ON memd.tenants;
DROP FUNCTION memd.create_sketches(bigint, bigint, integer), memd.index_sketches(bigint), memd.drop_sketches(),
  memd.void_sketches_of_hidden(), memd.void_sketches_of_month(), memd.void_sketches_of_tenant();
DROP SCHEMA memd_sketches CASCADE;
DROP SEQUENCE memd.sketch_numbers;
DROP TABLE memd.sketches;
