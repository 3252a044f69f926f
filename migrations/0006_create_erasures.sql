-- +goose Up

-- A request to forget somebody or a session, by keyed digest. kind 1: a user;
-- 2: a session. state 1 accepted, 2 running, 3 done.
CREATE TABLE memd.erasures (
  tenant_no    bigint      NOT NULL,
  request_id   uuid        NOT NULL,
  kind         smallint    NOT NULL CHECK (kind IN (1, 2)),
  app          text        NOT NULL,
  user_ref     bytea       NOT NULL CHECK (octet_length(user_ref) = 32),
  session_ref  bytea       CHECK (octet_length(session_ref) = 32),
  state        smallint    NOT NULL CHECK (state BETWEEN 1 AND 3),
  requested_by uuid,
  accepted_at  timestamptz NOT NULL,
  due_at       timestamptz NOT NULL,
  finished_at  timestamptz,
  PRIMARY KEY (tenant_no, request_id),
  CHECK ((kind = 2) = (session_ref IS NOT NULL))
);
CREATE INDEX erasures_open ON memd.erasures (accepted_at) WHERE state < 3;
GRANT SELECT, INSERT ON memd.erasures TO memd_app;
GRANT SELECT, INSERT, UPDATE ON memd.erasures TO memd_worker;

-- The journal: one row a step, with what it counted. A step that is done is
-- never run again.
CREATE TABLE memd.erasure_steps (
  tenant_no   bigint      NOT NULL,
  request_id  uuid        NOT NULL,
  step        smallint    NOT NULL,
  done        boolean     NOT NULL DEFAULT false,
  counts      jsonb       NOT NULL DEFAULT '{}',
  started_at  timestamptz NOT NULL,
  finished_at timestamptz,
  PRIMARY KEY (tenant_no, request_id, step)
);
GRANT SELECT ON memd.erasure_steps TO memd_app;
GRANT SELECT, INSERT, UPDATE ON memd.erasure_steps TO memd_worker;

-- Derived rows that fell although some of their sources survive, so that the
-- agent can derive again. Numbers and ids only.
CREATE TABLE memd.erasure_fallen (
  tenant_no  bigint   NOT NULL,
  request_id uuid     NOT NULL,
  memory_id  uuid     NOT NULL,
  owner_no   bigint   NOT NULL,
  kind       smallint NOT NULL,
  sources    jsonb    NOT NULL,
  PRIMARY KEY (tenant_no, request_id, memory_id)
);
GRANT SELECT ON memd.erasure_fallen TO memd_app;
GRANT SELECT, INSERT ON memd.erasure_fallen TO memd_worker;

-- +goose StatementBegin
CREATE FUNCTION memd.announce_work() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  NOTIFY memd_work;
  RETURN NULL;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION memd.announce_work() FROM PUBLIC;
-- What is accepted holds from then on, whether or not a worker is there: the
-- user is fenced, the session dead. The worker drains the writers and goes on
-- from there. A fence that another request holds stays that one's. The
-- application may accept, and can neither raise nor lower a fence otherwise.
-- +goose StatementBegin
CREATE FUNCTION memd.fence_accepted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NEW.kind = 1 THEN
    INSERT INTO memd.fences AS f (tenant_no, user_ref, state, erased_before, request_id, raised_at)
    VALUES (NEW.tenant_no, NEW.user_ref, 1, NEW.accepted_at, NEW.request_id, NEW.accepted_at)
    ON CONFLICT (tenant_no, user_ref) DO UPDATE SET
      state = 1, erased_before = greatest(f.erased_before, excluded.erased_before),
      request_id = excluded.request_id, raised_at = excluded.raised_at, lifted_at = NULL
    WHERE f.state = 3;
  ELSE
    INSERT INTO memd.tombstones (tenant_no, kind, ref, changed_xid, request_id, recorded_at)
    VALUES (NEW.tenant_no, 1, NEW.session_ref, pg_current_xact_id()::text::bigint, NEW.request_id, NEW.accepted_at)
    ON CONFLICT DO NOTHING;
  END IF;
  RETURN NULL;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION memd.fence_accepted() FROM PUBLIC;
CREATE TRIGGER fence_accepted AFTER INSERT ON memd.erasures FOR EACH ROW EXECUTE FUNCTION memd.fence_accepted();

CREATE TRIGGER announce AFTER INSERT ON memd.erasures FOR EACH STATEMENT EXECUTE FUNCTION memd.announce_work();
CREATE TRIGGER announce AFTER INSERT ON memd.tenants FOR EACH STATEMENT EXECUTE FUNCTION memd.announce_work();

-- +goose Down
DROP TABLE memd.erasure_fallen, memd.erasure_steps, memd.erasures CASCADE;
DROP TRIGGER announce ON memd.tenants;
DROP FUNCTION memd.announce_work(), memd.fence_accepted();
