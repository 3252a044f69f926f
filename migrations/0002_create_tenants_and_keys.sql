-- +goose Up

CREATE TABLE memd.tenants (
  tenant_no    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name         text        NOT NULL UNIQUE,
  display_name text        NOT NULL DEFAULT '',
  -- 1 creating, 2 active, 3 suspended, 4 exporting, 5 drained, 6 purging, 7 purged
  state        smallint    NOT NULL CHECK (state BETWEEN 1 AND 7),
  policy       jsonb       NOT NULL,
  created_at   timestamptz NOT NULL,
  updated_at   timestamptz NOT NULL,
  -- Whether the tenant has all that its quotas give it, so that the guard refuses
  -- whatever adds to it. What it had when it was last measured: see 0019.
  full_up      boolean     NOT NULL DEFAULT false,
  used_rows    bigint      NOT NULL DEFAULT 0,
  used_bytes   bigint      NOT NULL DEFAULT 0,
  measured_at  timestamptz,
  measured_ms  bigint      NOT NULL DEFAULT 0
);
-- The application may announce a tenant (state 1). Its state is changed by
-- memd.take_tenant alone, which writes it into the log.
GRANT SELECT ON memd.tenants TO memd_app, memd_worker;
GRANT INSERT (name, display_name, state, policy, created_at, updated_at) ON memd.tenants TO memd_app;
GRANT UPDATE (display_name, policy, updated_at) ON memd.tenants TO memd_app;

-- +goose StatementBegin
CREATE FUNCTION memd.tenant_starts_creating() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NEW.state <> 1 THEN
    RAISE EXCEPTION 'a tenant starts in state creating' USING ERRCODE = 'MD004';
  END IF;
  RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER tenant_starts_creating BEFORE INSERT ON memd.tenants
  FOR EACH ROW EXECUTE FUNCTION memd.tenant_starts_creating();

-- The tenant's KMS key and the epoch at the head of its key tree.
CREATE TABLE memd.tenant_keys (
  tenant_no bigint PRIMARY KEY,
  kms_key   text   NOT NULL,
  epoch     bigint NOT NULL CHECK (epoch >= 1)
);
GRANT SELECT ON memd.tenant_keys TO memd_app;
GRANT SELECT, INSERT, UPDATE ON memd.tenant_keys TO memd_worker;

CREATE VIEW memd.key_epochs AS SELECT tenant_no, epoch FROM memd.tenant_keys;
GRANT SELECT ON memd.key_epochs TO memd_app, memd_worker;

-- One state of a tenant's key tree, sealed under one KMS key version.
CREATE TABLE memd.key_trees (
  tenant_no   bigint      NOT NULL,
  epoch       bigint      NOT NULL CHECK (epoch >= 1),
  kms_version text        NOT NULL,
  digest      bytea       NOT NULL,
  previous    bytea       NOT NULL,
  sealed      bytea       NOT NULL,
  created_at  timestamptz NOT NULL,
  PRIMARY KEY (tenant_no, epoch)
);
ALTER TABLE memd.key_trees ALTER COLUMN sealed SET STORAGE EXTERNAL;
GRANT SELECT ON memd.key_trees TO memd_app;
GRANT SELECT, INSERT, DELETE ON memd.key_trees TO memd_worker;

-- Paths asked to be punctured; epoch says in which state it was done.
CREATE TABLE memd.punctures (
  tenant_no    bigint      NOT NULL,
  path         text        NOT NULL CHECK (path ~ '^[01]+$'),
  request_id   uuid        NOT NULL,
  requested_at timestamptz NOT NULL,
  epoch        bigint,
  PRIMARY KEY (tenant_no, path)
);
CREATE INDEX punctures_pending ON memd.punctures (tenant_no) WHERE epoch IS NULL;
CREATE INDEX punctures_epoch ON memd.punctures (tenant_no, epoch);
GRANT SELECT, INSERT, UPDATE ON memd.punctures TO memd_worker;

-- The journal of rotations; epoch is the one that the rotation makes.
CREATE TABLE memd.rotations (
  tenant_no    bigint      NOT NULL,
  epoch        bigint      NOT NULL,
  state        smallint    NOT NULL,
  old_version  text        NOT NULL,
  new_version  text        NOT NULL DEFAULT '',
  started_at   timestamptz NOT NULL,
  updated_at   timestamptz NOT NULL,
  destroyed_at timestamptz,
  destroy_due  timestamptz,
  PRIMARY KEY (tenant_no, epoch)
);
GRANT SELECT ON memd.rotations TO memd_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON memd.rotations TO memd_worker;

-- Every process that may hold keys, and the epoch it holds for each tenant.
CREATE TABLE memd.instances (
  instance_id uuid PRIMARY KEY,
  kind        text        NOT NULL,
  started_at  timestamptz NOT NULL,
  lease_until timestamptz NOT NULL
);
CREATE TABLE memd.instance_epochs (
  tenant_no   bigint NOT NULL,
  instance_id uuid   NOT NULL REFERENCES memd.instances ON DELETE CASCADE,
  epoch       bigint NOT NULL,
  PRIMARY KEY (tenant_no, instance_id)
);
GRANT SELECT, INSERT, UPDATE, DELETE ON memd.instances, memd.instance_epochs TO memd_app, memd_worker;

-- API keys. tenant_no is null for keys of the installation itself.
CREATE TABLE memd.principals (
  key_id       uuid        PRIMARY KEY,
  tenant_no    bigint,
  name         text        NOT NULL,
  roles        smallint    NOT NULL,
  secret_hash  bytea       NOT NULL UNIQUE CHECK (octet_length(secret_hash) = 32),
  created_at   timestamptz NOT NULL,
  created_by   uuid,
  last_used_at timestamptz,
  revoked_at   timestamptz
);
CREATE INDEX principals_tenant ON memd.principals (tenant_no, created_at);
GRANT SELECT, INSERT ON memd.principals TO memd_app, memd_worker;
-- Revoking is one-way: see the trigger. Roles and hash never change.
GRANT UPDATE (last_used_at, revoked_at) ON memd.principals TO memd_app, memd_worker;

-- +goose StatementBegin
CREATE FUNCTION memd.principal_stays_revoked() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF OLD.revoked_at IS NOT NULL AND NEW.revoked_at IS DISTINCT FROM OLD.revoked_at THEN
    NEW.revoked_at := OLD.revoked_at;
  END IF;
  RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER principal_stays_revoked BEFORE UPDATE ON memd.principals
  FOR EACH ROW EXECUTE FUNCTION memd.principal_stays_revoked();

-- authenticate answers, in one statement, everything that decides whether a
-- call may go on. No row: no such key. revision is that of the view premises.
CREATE FUNCTION memd.authenticate(p_secret_hash bytea)
RETURNS TABLE (key_id uuid, tenant_no bigint, roles smallint, revoked boolean,
               tenant_name text, tenant_state smallint, epoch bigint, policy jsonb, revision xid[])
LANGUAGE sql STABLE AS $$
  SELECT p.key_id, p.tenant_no, p.roles, p.revoked_at IS NOT NULL,
         t.name, t.state, k.epoch, t.policy, ARRAY[p.xmin, t.xmin]
  FROM memd.principals p
  LEFT JOIN memd.tenants t ON t.tenant_no = p.tenant_no
  LEFT JOIN memd.tenant_keys k ON k.tenant_no = p.tenant_no
  WHERE p.secret_hash = p_secret_hash
$$;

-- What authenticate said of a tenant's key holds as long as the rows that it
-- read are the same versions: any change of a row, by whomever, gives it another
-- xmin. Epochs are compared by their readers.
CREATE VIEW memd.premises AS
  SELECT p.secret_hash AS premise, ARRAY[p.xmin, t.xmin] AS revision
  FROM memd.principals p JOIN memd.tenants t ON t.tenant_no = p.tenant_no;
GRANT SELECT ON memd.premises TO memd_app, memd_worker;

-- +goose Down
DROP VIEW memd.premises;
DROP FUNCTION memd.authenticate(bytea);
DROP TABLE memd.principals, memd.instance_epochs, memd.instances, memd.rotations, memd.punctures, memd.key_trees CASCADE;
DROP VIEW memd.key_epochs;
DROP TABLE memd.tenant_keys, memd.tenants CASCADE;
DROP FUNCTION memd.principal_stays_revoked(), memd.tenant_starts_creating();
