-- +goose Up

-- A request to forget, by keyed digest. kind 1: a user; 2: a session and what
-- memory took from it; 3: a session's content alone; 4: the tenant; 5: a month of
-- one class, 0 what sessions hold or 1 what memory holds. state 1
-- accepted, 2 running, 3 done (gone, verified, its keys destroyed or asked to
-- be), 4 final (swept again and verified again). What names somebody is sealed
-- under the job's own leaf of the key tree, and goes at the end.
CREATE TABLE memd.erasures (
  tenant_no         bigint      NOT NULL,
  request_id        uuid        NOT NULL,
  job_no            bigint      NOT NULL CHECK (job_no > 0),
  kind              smallint    NOT NULL CHECK (kind BETWEEN 1 AND 5),
  app               text        NOT NULL,
  user_ref          bytea       CHECK (octet_length(user_ref) = 32),
  session_ref       bytea       CHECK (octet_length(session_ref) = 32),
  class             smallint    CHECK (class IN (0, 1)),
  month             integer     CHECK (month > 0),
  sealed_user_id    bytea,
  sealed_session_id bytea,
  sealed_probes     bytea,
  -- SHA-256 of salt and subject, for the receipt; the salt is the requester's.
  commitment        bytea       CHECK (octet_length(commitment) = 32),
  sealed_salt       bytea,
  state             smallint    NOT NULL DEFAULT 1 CHECK (state BETWEEN 1 AND 4),
  requested_by      uuid,
  accepted_at       timestamptz NOT NULL,
  due_at            timestamptz NOT NULL,
  sweep_at          timestamptz,
  finished_at       timestamptz,
  final_at          timestamptz,
  -- How often it stopped since it last got on, when, and why: a code.
  tries             integer     NOT NULL DEFAULT 0,
  failed_at         timestamptz,
  failure           text        NOT NULL DEFAULT '' CHECK (failure ~ '^[a-z_]{0,40}$'),
  PRIMARY KEY (tenant_no, request_id),
  CHECK ((kind IN (4, 5)) = (user_ref IS NULL)),
  CHECK ((kind IN (2, 3)) = (session_ref IS NOT NULL)),
  CHECK ((kind = 5) = (class IS NOT NULL) AND (kind = 5) = (month IS NOT NULL))
);
CREATE UNIQUE INDEX erasures_job ON memd.erasures (tenant_no, job_no);
CREATE INDEX erasures_open ON memd.erasures (accepted_at) WHERE state < 4;
CREATE INDEX erasures_list ON memd.erasures (tenant_no, accepted_at, request_id);
GRANT SELECT ON memd.erasures TO memd_app;
-- By column: the application can accept, and cannot say that it is done.
GRANT INSERT (tenant_no, request_id, job_no, kind, app, user_ref, session_ref, class, month, sealed_user_id, sealed_session_id,
              commitment, sealed_salt, requested_by, accepted_at, due_at) ON memd.erasures TO memd_app;
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

-- Of a tenant's purge: the subjects that are done, written after the last
-- delete of each.
CREATE TABLE memd.erasure_subjects (
  tenant_no  bigint      NOT NULL,
  request_id uuid        NOT NULL,
  subject_no bigint      NOT NULL,
  purged_at  timestamptz NOT NULL,
  PRIMARY KEY (tenant_no, request_id, subject_no)
);
GRANT SELECT ON memd.erasure_subjects TO memd_app;
GRANT SELECT, INSERT ON memd.erasure_subjects TO memd_worker;

-- Further looks of the verifier at an erasure that is done.
CREATE TABLE memd.verifications (
  verification_no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_no       bigint      NOT NULL,
  request_id      uuid        NOT NULL,
  asked_at        timestamptz NOT NULL,
  done_at         timestamptz,
  checks          jsonb       NOT NULL DEFAULT '[]',
  budget          jsonb       NOT NULL DEFAULT '{}' -- of its searches; what it does not name is the worker's
);
CREATE INDEX verifications_open ON memd.verifications (tenant_no, request_id) WHERE done_at IS NULL;
GRANT SELECT, INSERT (tenant_no, request_id, asked_at, budget) ON memd.verifications TO memd_app;
GRANT SELECT, UPDATE (done_at, checks) ON memd.verifications TO memd_worker;

-- Rows that the verifier named and an operator wants deleted. They stay, as the
-- record of who did.
CREATE TABLE memd.survivors (
  tenant_no  bigint      NOT NULL,
  request_id uuid        NOT NULL,
  table_name text        NOT NULL CHECK (table_name ~ '^[a-z_]{1,40}$'),
  row_id     text        NOT NULL CHECK (row_id ~ '^[0-9a-f/-]{1,160}$'),
  asked_by   uuid        NOT NULL,
  asked_at   timestamptz NOT NULL,
  removed_at timestamptz,
  PRIMARY KEY (tenant_no, request_id, table_name, row_id)
);
GRANT SELECT, INSERT (tenant_no, request_id, table_name, row_id, asked_by, asked_at) ON memd.survivors TO memd_app;
GRANT SELECT, UPDATE (removed_at) ON memd.survivors TO memd_worker;

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

-- Legal holds. kind 1: a user; 2: a session; 4: the tenant. The reason is
-- sealed under a job number of its own.
CREATE TABLE memd.holds (
  tenant_no     bigint      NOT NULL,
  hold_id       uuid        NOT NULL,
  job_no        bigint      NOT NULL CHECK (job_no > 0),
  kind          smallint    NOT NULL CHECK (kind IN (1, 2, 4)),
  app           text        NOT NULL,
  user_ref      bytea       CHECK (octet_length(user_ref) = 32),
  session_ref   bytea       CHECK (octet_length(session_ref) = 32),
  sealed_reason bytea       NOT NULL,
  author        uuid        NOT NULL,
  created_at    timestamptz NOT NULL,
  released_by   uuid,
  released_at   timestamptz,
  PRIMARY KEY (tenant_no, hold_id),
  CHECK ((kind = 4) = (user_ref IS NULL)),
  CHECK ((kind = 2) = (session_ref IS NOT NULL))
);
CREATE INDEX holds_in_force ON memd.holds (tenant_no) WHERE released_at IS NULL;
GRANT SELECT ON memd.holds TO memd_app, memd_worker;
GRANT INSERT (tenant_no, hold_id, job_no, kind, app, user_ref, session_ref, sealed_reason, author, created_at) ON memd.holds TO memd_app;
GRANT UPDATE (released_by, released_at) ON memd.holds TO memd_app;
-- The words of a hold go with whom they are about.
GRANT UPDATE (sealed_reason) ON memd.holds TO memd_worker;

-- Holds and the beginnings of steps take turns, by tenant: a hold that was
-- answered is seen by every step that begins later, and sees every step that
-- began earlier. The lock is pg.LockHolds.
CREATE FUNCTION memd.hold_lock(p_tenant bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT (28004::bigint << 48) | (7::bigint << 40) | (p_tenant & 1099511627775)
$$;
-- +goose StatementBegin
CREATE FUNCTION memd.hold_waits() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF TG_OP = 'UPDATE' THEN
    -- Released once, by whoever was first.
    IF OLD.released_at IS NOT NULL THEN
      NEW.released_at := OLD.released_at;
      NEW.released_by := OLD.released_by;
    END IF;
    RETURN NEW;
  END IF;
  PERFORM pg_advisory_xact_lock(memd.hold_lock(NEW.tenant_no));
  RETURN NEW;
END $$;
-- held says whether a hold keeps an erasure from going on.
CREATE FUNCTION memd.held(p_tenant bigint, p_kind smallint, p_user bytea, p_session bytea) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(memd.hold_lock(p_tenant));
  RETURN EXISTS (
    SELECT FROM memd.holds h
    WHERE h.tenant_no = p_tenant AND h.released_at IS NULL
      AND (h.kind = 4 OR p_kind = 4
           OR h.user_ref = p_user AND (h.kind = 1 OR p_kind = 1 OR h.session_ref = p_session)));
END $$;
-- memory_held says whether a hold keeps a row from being swept when its time has
-- passed: one on the tenant, on whoever owns it or contributed to it, or on one of
-- the sessions that it came from.
CREATE FUNCTION memd.memory_held(p_tenant bigint, p_memory uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(memd.hold_lock(p_tenant));
  IF NOT EXISTS (SELECT FROM memd.holds h WHERE h.tenant_no = p_tenant AND h.released_at IS NULL) THEN
    RETURN false;
  END IF;
  RETURN EXISTS (
    SELECT FROM memd.holds h
    WHERE h.tenant_no = p_tenant AND h.released_at IS NULL AND (h.kind = 4 OR EXISTS (
      SELECT FROM (
        SELECT m.owner_no AS subject_no, NULL::bigint AS session_no FROM memd.memories m WHERE m.tenant_no = p_tenant AND m.memory_id = p_memory
        UNION ALL SELECT m.contributor_no, m.contributor_session FROM memd.memories m WHERE m.tenant_no = p_tenant AND m.memory_id = p_memory
        UNION ALL SELECT c.contributor_no, c.contributor_session FROM memd.memory_contributions c
        WHERE c.tenant_no = p_tenant AND c.memory_id = p_memory) p
      JOIN memd.subjects s ON s.tenant_no = p_tenant AND s.subject_no = p.subject_no AND s.user_ref = h.user_ref
      LEFT JOIN memd.sessions x ON x.tenant_no = p_tenant AND x.subject_no = p.subject_no AND x.session_no = p.session_no
      WHERE h.kind = 1 OR x.session_ref = h.session_ref)));
END $$;
-- +goose StatementEnd
CREATE TRIGGER waits BEFORE INSERT OR UPDATE ON memd.holds FOR EACH ROW EXECUTE FUNCTION memd.hold_waits();

CREATE TABLE memd.job_counters (
  tenant_no  bigint PRIMARY KEY,
  generation bigint NOT NULL,
  last       bigint NOT NULL
);
-- next_job_no gives out a job number, never twice: see next_subject_no.
-- +goose StatementBegin
CREATE FUNCTION memd.next_job_no(p_tenant bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n bigint;
BEGIN
  INSERT INTO memd.job_counters AS c (tenant_no, generation, last)
  SELECT p_tenant, i.generation, 1 FROM memd.installation i
  ON CONFLICT (tenant_no) DO UPDATE SET
    last = CASE WHEN c.generation >= excluded.generation THEN c.last + 1 ELSE 1 END,
    generation = greatest(c.generation, excluded.generation)
  RETURNING (generation << 40) | last INTO n;
  RETURN n;
END $$;

CREATE FUNCTION memd.announce_work() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  NOTIFY memd_work;
  RETURN NULL;
END $$;
-- What is accepted holds from then on, whether or not a worker is there: the
-- user is fenced, the session dead, the tenant past the point of no return, the
-- month closed to writers. The
-- worker drains the writers and goes on from there. A fence that another request
-- holds stays that one's. Under a legal hold nothing is fenced: the request waits
-- as it was accepted, and the worker fences when the hold is released. The
-- application may accept, and can neither raise nor lower a fence otherwise. In a
-- restore all of that comes back by itself, as it was.
CREATE FUNCTION memd.fence_accepted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF (SELECT s.restoring FROM memd.ledger_state s) THEN
    RETURN NULL;
  END IF;
  IF memd.held(NEW.tenant_no, NEW.kind, NEW.user_ref, NEW.session_ref) THEN
    IF NEW.kind = 4 AND NOT EXISTS (SELECT FROM memd.tenants t WHERE t.tenant_no = NEW.tenant_no AND t.state = 5) THEN
      RAISE EXCEPTION 'the tenant is not drained' USING ERRCODE = 'MD004';
    END IF;
    IF NEW.kind = 4 AND NOT EXISTS (SELECT FROM memd.approvals a WHERE a.tenant_no = NEW.tenant_no
        AND a.request_id = NEW.request_id AND a.approved_by IS DISTINCT FROM NEW.requested_by) THEN
      RAISE EXCEPTION 'nobody but the requester has approved it' USING ERRCODE = 'MD013';
    END IF;
    RETURN NULL;
  END IF;
  CASE NEW.kind
  WHEN 1 THEN
    INSERT INTO memd.fences AS f (tenant_no, user_ref, state, erased_before, request_id, raised_at)
    VALUES (NEW.tenant_no, NEW.user_ref, 1, NEW.accepted_at, NEW.request_id, NEW.accepted_at)
    ON CONFLICT (tenant_no, user_ref) DO UPDATE SET
      state = 1, erased_before = greatest(f.erased_before, excluded.erased_before),
      request_id = excluded.request_id, raised_at = excluded.raised_at, lifted_at = NULL
    WHERE f.state = 3;
  WHEN 2, 3 THEN
    INSERT INTO memd.tombstones (tenant_no, kind, ref, changed_xid, request_id, recorded_at)
    VALUES (NEW.tenant_no, NEW.kind - 1, NEW.session_ref, pg_current_xact_id()::text::bigint, NEW.request_id, NEW.accepted_at)
    ON CONFLICT DO NOTHING;
  WHEN 4 THEN
    PERFORM memd.begin_purge(NEW.tenant_no, NEW.request_id, NEW.accepted_at);
  WHEN 5 THEN
    INSERT INTO memd.tombstones (tenant_no, kind, ref, changed_xid, request_id, recorded_at)
    VALUES (NEW.tenant_no, 4, memd.month_ref(NEW.class, NEW.month), pg_current_xact_id()::text::bigint, NEW.request_id, NEW.accepted_at)
    ON CONFLICT DO NOTHING;
  END CASE;
  RETURN NULL;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION memd.announce_work(), memd.fence_accepted(), memd.hold_waits(), memd.hold_lock(bigint),
  memd.held(bigint, smallint, bytea, bytea), memd.memory_held(bigint, uuid), memd.next_job_no(bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION memd.memory_held(bigint, uuid) TO memd_worker;
GRANT EXECUTE ON FUNCTION memd.held(bigint, smallint, bytea, bytea), memd.next_job_no(bigint) TO memd_app, memd_worker;
CREATE TRIGGER fence_accepted AFTER INSERT ON memd.erasures FOR EACH ROW EXECUTE FUNCTION memd.fence_accepted();

CREATE TRIGGER announce AFTER INSERT ON memd.tenants FOR EACH STATEMENT EXECUTE FUNCTION memd.announce_work();

-- +goose Down
DROP TABLE memd.holds, memd.erasure_fallen, memd.erasure_subjects, memd.erasure_steps, memd.verifications, memd.survivors, memd.erasures, memd.job_counters CASCADE;
DROP TRIGGER announce ON memd.tenants;
DROP FUNCTION memd.announce_work(), memd.fence_accepted(), memd.hold_waits(), memd.memory_held(bigint, uuid), memd.held(bigint, smallint, bytea, bytea),
  memd.hold_lock(bigint), memd.next_job_no(bigint);
