-- +goose Up

-- pgvector must be installed on the server before this runs. memd migrate has
-- made the extension already, or said who must: some packages mark it as
-- trusted, which lets the database's owner create it, and others do not.
CREATE EXTENSION IF NOT EXISTS vector;

CREATE SCHEMA IF NOT EXISTS memd;

-- Roles are the cluster's, not the database's, so they may be there already.
-- None has a password: an operator sets one, or an authentication method that
-- needs none.
-- +goose StatementBegin
DO $$
DECLARE
  r text;
BEGIN
  FOREACH r IN ARRAY ARRAY['memd_app', 'memd_worker', 'memd_maintain'] LOOP
    BEGIN
      EXECUTE format('CREATE ROLE %I LOGIN', r);
    EXCEPTION WHEN duplicate_object OR unique_violation THEN
      NULL;
    END;
  END LOOP;
END $$;
-- +goose StatementEnd

-- A writer that hangs would hold its subjects' locks and so delay a fence.
ALTER ROLE memd_app SET statement_timeout = '30s';
ALTER ROLE memd_app SET idle_in_transaction_session_timeout = '10s';
ALTER ROLE memd_worker SET idle_in_transaction_session_timeout = '60s';

-- A failed statement is logged with the value that it could not read, so the
-- sessions of these roles log no errors: memd logs their codes itself. Only a
-- superuser may say so; where there is none, the operator sets it (README).
-- +goose StatementBegin
DO $$
DECLARE
  r text;
BEGIN
  FOREACH r IN ARRAY ARRAY['memd_app', 'memd_worker', 'memd_maintain'] LOOP
    BEGIN
      EXECUTE format('ALTER ROLE %I SET log_min_messages = ''log''', r);
      EXECUTE format('ALTER ROLE %I SET log_min_error_statement = ''panic''', r);
    EXCEPTION WHEN insufficient_privilege THEN
      RAISE WARNING 'role % may log the errors of its statements: set log_min_messages = log for it', r;
    END;
  END LOOP;
END $$;
-- +goose StatementEnd

GRANT USAGE ON SCHEMA memd TO memd_app, memd_worker, memd_maintain;

-- harden applies what CREATE DATABASE ... TEMPLATE and pg_restore do not carry
-- along. Without TEMP nobody can shadow a table by a temporary one.
-- +goose StatementBegin
CREATE FUNCTION memd.harden() RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  EXECUTE format('REVOKE TEMPORARY, CREATE ON DATABASE %I FROM PUBLIC', current_database());
  EXECUTE format('GRANT CONNECT ON DATABASE %I TO memd_app, memd_worker, memd_maintain', current_database());
  REVOKE CREATE ON SCHEMA public FROM PUBLIC;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION memd.harden() FROM PUBLIC;

-- One row: this installation, and its generation, which every rollback raises
-- so that no number is ever given out twice.
CREATE TABLE memd.installation (
  singleton       boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  installation_id uuid   NOT NULL,
  generation      bigint NOT NULL DEFAULT 1 CHECK (generation >= 1)
);
INSERT INTO memd.installation (installation_id) VALUES (gen_random_uuid());
GRANT SELECT ON memd.installation TO memd_app, memd_worker;

-- +goose Down
DROP SCHEMA memd CASCADE;
