-- +goose Up

-- The directory of every subject ever seen: a user of an app (kind 1) or an
-- app's shared scope (kind 2). Append-only: a forgotten user's row stays,
-- retired, and a returning user gets a new number.
CREATE TABLE memd.subjects (
  tenant_no      bigint      NOT NULL,
  subject_no     bigint      NOT NULL CHECK (subject_no > 0),
  app            text        NOT NULL,
  kind           smallint    NOT NULL CHECK (kind IN (1, 2)),
  user_ref       bytea       NOT NULL CHECK (octet_length(user_ref) = 32),
  sealed_user_id bytea       NOT NULL,
  last_session   bigint      NOT NULL DEFAULT 1099511627777, -- (1,1): the own scope
  -- When what they are admitted for was said. Somebody who was once erased
  -- is not entered again on account of words from before.
  first_source_time timestamptz,
  admitted_at    timestamptz NOT NULL,
  retired_at     timestamptz,
  PRIMARY KEY (tenant_no, subject_no)
);
CREATE UNIQUE INDEX subjects_live ON memd.subjects (tenant_no, user_ref) WHERE retired_at IS NULL;
CREATE INDEX subjects_ref ON memd.subjects (tenant_no, user_ref);
CREATE INDEX subjects_app ON memd.subjects (tenant_no, app);

-- By column, because a changed user_ref would slip through every fence.
GRANT SELECT ON memd.subjects TO memd_app, memd_worker;
GRANT INSERT (tenant_no, subject_no, app, kind, user_ref, sealed_user_id, first_source_time, admitted_at) ON memd.subjects TO memd_app;
GRANT UPDATE (retired_at) ON memd.subjects TO memd_worker;

-- The live number of a user or shared scope.
CREATE VIEW memd.live_subjects AS
  SELECT tenant_no, user_ref, subject_no, app FROM memd.subjects WHERE retired_at IS NULL;
GRANT SELECT ON memd.live_subjects TO memd_app, memd_worker;

CREATE TABLE memd.subject_counters (
  tenant_no  bigint PRIMARY KEY,
  generation bigint NOT NULL,
  last       bigint NOT NULL
);

-- next_subject_no gives out a subject number, never twice: not even when the
-- installation's generation was set back by mistake. A number whose
-- admission fails afterwards is lost, which costs nothing.
-- +goose StatementBegin
CREATE FUNCTION memd.next_subject_no(p_tenant bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n bigint;
BEGIN
  INSERT INTO memd.subject_counters AS c (tenant_no, generation, last)
  SELECT p_tenant, i.generation, 1 FROM memd.installation i
  ON CONFLICT (tenant_no) DO UPDATE SET
    last = CASE WHEN c.generation >= excluded.generation THEN c.last + 1 ELSE 1 END,
    generation = greatest(c.generation, excluded.generation)
  RETURNING (generation << 40) | last INTO n;
  RETURN n;
END $$;
-- +goose StatementEnd

-- Sessions ever seen. A deleted session stays as a stub: ref, number, state.
CREATE TABLE memd.sessions (
  tenant_no         bigint      NOT NULL,
  subject_no        bigint      NOT NULL,
  session_no        bigint      NOT NULL CHECK (session_no > 0 AND session_no <> 1099511627777),
  session_ref       bytea       NOT NULL CHECK (octet_length(session_ref) = 32),
  sealed_id         bytea       NOT NULL,
  first_source_time timestamptz,
  admitted_at       timestamptz NOT NULL,
  -- 1 live, 2 forgotten
  state             smallint    NOT NULL DEFAULT 1 CHECK (state IN (1, 2)),
  PRIMARY KEY (tenant_no, subject_no, session_no)
);
CREATE UNIQUE INDEX sessions_ref ON memd.sessions (tenant_no, subject_no, session_ref);
GRANT SELECT ON memd.sessions TO memd_app, memd_worker;
GRANT INSERT (tenant_no, subject_no, session_no, session_ref, sealed_id, first_source_time, admitted_at) ON memd.sessions TO memd_app;
GRANT UPDATE (state, sealed_id) ON memd.sessions TO memd_worker;

-- next_session_nos reserves n session numbers of a subject and returns the first.
-- +goose StatementBegin
CREATE FUNCTION memd.next_session_nos(p_tenant bigint, p_subject bigint, p_n bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  g bigint;
  n bigint;
BEGIN
  IF p_n < 1 OR p_n > 100000 THEN
    RAISE EXCEPTION 'between 1 and 100000 numbers at a time' USING ERRCODE = '22023';
  END IF;
  SELECT generation INTO g FROM memd.installation;
  UPDATE memd.subjects s SET last_session =
    CASE WHEN (s.last_session >> 40) >= g THEN s.last_session + p_n ELSE (g << 40) + p_n END
  WHERE s.tenant_no = p_tenant AND s.subject_no = p_subject
  RETURNING s.last_session - p_n + 1 INTO n;
  IF n IS NULL THEN
    RAISE EXCEPTION 'no such subject' USING ERRCODE = 'MD006';
  END IF;
  -- Otherwise the counter would run over into a generation that is to come.
  IF ((n + p_n - 1) >> 40) <> ((n - 1) >> 40) THEN
    RAISE EXCEPTION 'the subject has no session numbers left' USING ERRCODE = '54000';
  END IF;
  RETURN n;
END $$;
-- +goose StatementEnd

-- Fences, by keyed digest of the user, so that somebody never seen can be
-- fenced too. state: 1 fencing (new writers are refused while the old ones
-- drain), 2 fenced, 3 lifted. erased_before outlives the fence.
CREATE TABLE memd.fences (
  tenant_no     bigint      NOT NULL,
  user_ref      bytea       NOT NULL CHECK (octet_length(user_ref) = 32),
  state         smallint    NOT NULL CHECK (state IN (1, 2, 3)),
  erased_before timestamptz NOT NULL,
  request_id    uuid        NOT NULL,
  raised_at     timestamptz NOT NULL,
  lifted_at     timestamptz,
  PRIMARY KEY (tenant_no, user_ref)
);
GRANT SELECT ON memd.fences TO memd_app;
GRANT SELECT, INSERT, UPDATE ON memd.fences TO memd_worker;

CREATE VIEW memd.fence_states AS SELECT tenant_no, user_ref, state, erased_before FROM memd.fences;
GRANT SELECT ON memd.fence_states TO memd_app, memd_worker;

-- Permanent marks. kind 1: a session (ref = its keyed digest). kind 2: a session's
-- content (ref as before): its memories stay and may grow. kind 3: a memory
-- (ref = its id): versions up to through_version are dead. kind 4: a month of a
-- class (ref = memd.month_ref): retention has expired it. kind 5: a version of an
-- artifact (ref = its id).
CREATE TABLE memd.tombstones (
  tenant_no       bigint      NOT NULL,
  kind            smallint    NOT NULL CHECK (kind BETWEEN 1 AND 5),
  ref             bytea       NOT NULL,
  owner_no        bigint,
  through_version bigint,
  changed_xid     bigint      NOT NULL,
  request_id      uuid,
  recorded_at     timestamptz NOT NULL,
  PRIMARY KEY (tenant_no, kind, ref),
  CHECK ((kind = 3) = (owner_no IS NOT NULL AND through_version IS NOT NULL))
);
CREATE INDEX tombstones_scope ON memd.tombstones (tenant_no, owner_no, changed_xid)
  WHERE kind = 3 AND through_version = 9223372036854775807;
GRANT SELECT ON memd.tombstones TO memd_app;
GRANT SELECT, INSERT ON memd.tombstones TO memd_worker;

-- Memories that were deleted, for readers that keep a scope in memory.
CREATE VIEW memd.deleted_memories AS
  SELECT tenant_no, owner_no, encode(ref, 'hex')::uuid AS memory_id, changed_xid
  FROM memd.tombstones WHERE kind = 3 AND through_version = 9223372036854775807;
CREATE VIEW memd.dead_memories AS
  SELECT tenant_no, ref FROM memd.tombstones WHERE kind = 3 AND through_version = 9223372036854775807;
GRANT SELECT ON memd.deleted_memories, memd.dead_memories TO memd_app, memd_worker;

-- Months that retention has expired, by class: 0 what sessions hold, 1 what
-- memory holds. month_ref is how a tombstone names one.
CREATE FUNCTION memd.month_ref(p_class smallint, p_month integer) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT pg_catalog.int2send(p_class) || pg_catalog.int4send(p_month)
$$;
CREATE VIEW memd.expired_months AS
  SELECT tenant_no, get_byte(ref, 1)::smallint AS class, ('x' || encode(substr(ref, 3), 'hex'))::bit(32)::integer AS month, request_id
  FROM memd.tombstones WHERE kind = 4;
GRANT SELECT ON memd.expired_months TO memd_app, memd_worker;

-- Which contributor's rows a scope hides, from the moment a fence is up. By
-- number, and for good: a number never comes back. contributor_session 0 means
-- every session of the contributor.
CREATE TABLE memd.hides (
  tenant_no           bigint NOT NULL,
  owner_no            bigint NOT NULL,
  contributor_no      bigint NOT NULL,
  contributor_session bigint NOT NULL,
  changed_xid         bigint NOT NULL,
  request_id          uuid   NOT NULL,
  PRIMARY KEY (tenant_no, owner_no, contributor_no, contributor_session)
);
CREATE INDEX hides_scope ON memd.hides (tenant_no, owner_no, changed_xid);
GRANT SELECT ON memd.hides TO memd_app;
GRANT SELECT, INSERT ON memd.hides TO memd_worker;

CREATE VIEW memd.hidden_contributions AS
  SELECT tenant_no, owner_no, contributor_no, contributor_session, changed_xid FROM memd.hides;
GRANT SELECT ON memd.hidden_contributions TO memd_app, memd_worker;

-- +goose Down
DROP VIEW memd.hidden_contributions, memd.expired_months, memd.dead_memories, memd.deleted_memories, memd.fence_states, memd.live_subjects;
DROP TABLE memd.hides, memd.tombstones, memd.fences, memd.sessions, memd.subject_counters, memd.subjects;
DROP FUNCTION memd.month_ref(smallint, integer), memd.next_session_nos(bigint, bigint, bigint), memd.next_subject_no(bigint);
