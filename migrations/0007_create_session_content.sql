-- +goose Up

-- A session's head: what is known of a conversation without opening anything.
-- month is that of its creation, for good: its events and its state are sealed
-- with that month's key and go when the month expires. updated_at only grows,
-- and is what writers say that they have seen.
--
-- Heads and events have no check constraints: PostgreSQL reads each anew for
-- every statement, 4 µs apiece, and the functions below write nothing else than
-- numbers of their own. Heads written by hand are checked by their guard.
CREATE TABLE memd.session_heads (
  tenant_no  bigint      NOT NULL,
  subject_no bigint      NOT NULL,
  session_no bigint      NOT NULL,
  app        text        NOT NULL,
  month      integer     NOT NULL,
  created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL,
  next_seq   bigint      NOT NULL DEFAULT 1,
  events     bigint      NOT NULL DEFAULT 0,
  PRIMARY KEY (tenant_no, subject_no, session_no)
) WITH (fillfactor = 70); -- every append updates a head, in place
CREATE INDEX session_heads_user ON memd.session_heads (tenant_no, subject_no, created_at, session_no);
CREATE INDEX session_heads_app ON memd.session_heads (tenant_no, app, created_at, subject_no, session_no);

-- Events, sealed whole. By the session's month, so that expiring one drops a
-- partition; with the month in both keys an event id is still unique within its
-- session, because a session has one month. No foreign key to the head: a
-- session's number never comes again, so nothing can be found under it later.
CREATE TABLE memd.session_events (
  tenant_no    bigint      NOT NULL,
  subject_no   bigint      NOT NULL,
  session_no   bigint      NOT NULL,
  month        integer     NOT NULL,
  seq          bigint      NOT NULL,
  event_digest bytea       NOT NULL,
  source_time  timestamptz,
  appended_at  timestamptz NOT NULL,
  sealed       bytea       NOT NULL,
  PRIMARY KEY (tenant_no, subject_no, session_no, month, seq)
) PARTITION BY LIST (month);
ALTER TABLE memd.session_events ALTER COLUMN sealed SET STORAGE EXTERNAL;
CREATE UNIQUE INDEX session_events_digest
  ON memd.session_events (tenant_no, subject_no, session_no, month, event_digest);

-- State: one row a key, key and value sealed together. The digest finds the key
-- and dies with the owner's own.
CREATE TABLE memd.session_state (
  tenant_no   bigint      NOT NULL,
  subject_no  bigint      NOT NULL,
  session_no  bigint      NOT NULL,
  month       integer     NOT NULL,
  key_digest  bytea       NOT NULL CHECK (octet_length(key_digest) = 16),
  source_time timestamptz,
  updated_at  timestamptz NOT NULL,
  sealed      bytea       NOT NULL,
  PRIMARY KEY (tenant_no, subject_no, session_no, key_digest)
);
CREATE TABLE memd.user_state (
  tenant_no   bigint      NOT NULL,
  subject_no  bigint      NOT NULL,
  key_digest  bytea       NOT NULL CHECK (octet_length(key_digest) = 16),
  source_time timestamptz,
  updated_at  timestamptz NOT NULL,
  sealed      bytea       NOT NULL,
  PRIMARY KEY (tenant_no, subject_no, key_digest)
);
-- An app's: of its shared subject, and of the user who wrote it last, unless
-- that was declared nobody's word. It goes with either.
CREATE TABLE memd.app_state (
  tenant_no      bigint      NOT NULL,
  app_no         bigint      NOT NULL,
  key_digest     bytea       NOT NULL CHECK (octet_length(key_digest) = 16),
  contributor_no bigint,
  source_time    timestamptz,
  updated_at     timestamptz NOT NULL,
  sealed         bytea       NOT NULL,
  PRIMARY KEY (tenant_no, app_no, key_digest)
);
CREATE INDEX app_state_contributor ON memd.app_state (tenant_no, contributor_no) WHERE contributor_no IS NOT NULL;
ALTER TABLE memd.session_state ALTER COLUMN sealed SET STORAGE EXTERNAL;
ALTER TABLE memd.user_state ALTER COLUMN sealed SET STORAGE EXTERNAL;
ALTER TABLE memd.app_state ALTER COLUMN sealed SET STORAGE EXTERNAL;

-- No right on any partition: whoever wrote to one would pass the guard by. The
-- application changes numbers and replaces values; it moves no row to another
-- owner and deletes nothing.
GRANT SELECT, INSERT ON memd.session_heads, memd.session_events, memd.session_state, memd.user_state, memd.app_state TO memd_app;
GRANT UPDATE (updated_at, next_seq, events) ON memd.session_heads TO memd_app;
GRANT UPDATE (source_time, updated_at, sealed) ON memd.session_state, memd.user_state TO memd_app;
GRANT UPDATE (contributor_no, source_time, updated_at, sealed) ON memd.app_state TO memd_app;
GRANT SELECT, DELETE ON memd.session_heads, memd.session_events, memd.session_state, memd.user_state, memd.app_state TO memd_worker;
GRANT SELECT ON memd.session_heads, memd.session_events, memd.session_state, memd.user_state, memd.app_state TO memd_maintain;

-- Who may be read: no fence up, and the session neither forgotten nor buried,
-- kind 1 with what memory took from it, kind 2 its content alone.
CREATE VIEW memd.dead_sessions AS
  SELECT tenant_no, ref AS session_ref FROM memd.tombstones WHERE kind IN (1, 2);
CREATE VIEW memd.readable_subjects AS
  SELECT s.tenant_no, s.subject_no, s.user_ref, s.app FROM memd.subjects s
  LEFT JOIN memd.fences f ON f.tenant_no = s.tenant_no AND f.user_ref = s.user_ref
  WHERE s.retired_at IS NULL AND coalesce(f.state, 3) = 3;
CREATE VIEW memd.readable_sessions AS
  SELECT s.tenant_no, s.subject_no, s.user_ref, s.app, x.session_no, x.session_ref
  FROM memd.readable_subjects s
  JOIN memd.sessions x ON x.tenant_no = s.tenant_no AND x.subject_no = s.subject_no AND x.state = 1
  WHERE NOT EXISTS (SELECT FROM memd.tombstones d
                    WHERE d.tenant_no = x.tenant_no AND d.kind IN (1, 2) AND d.ref = x.session_ref);
GRANT SELECT ON memd.dead_sessions, memd.readable_subjects, memd.readable_sessions TO memd_app, memd_worker;

-- guard_content is the guard of a session's content and of what belongs to the
-- user beside it: events, state, artifacts. It knows one more refusal: a session
-- whose content alone was deleted takes memories still, and content no more.
--
-- Who writes for one session has, nearly always, nothing against them: no fence
-- ever, no tombstone. That is seen in one look behind the lock; whoever is not
-- plainly in order goes the long way, which knows the reasons.
-- +goose StatementBegin
CREATE FUNCTION memd.guard_content(p_tenant bigint[], p_subject bigint[], p_session bigint[], p_source timestamptz[])
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  locked boolean;
BEGIN
  IF cardinality(p_tenant) = 1 AND current_setting('transaction_isolation') = 'read committed' THEN
    SELECT memd.try_lock(memd.lock_hi(s.user_ref), memd.lock_lo(s.user_ref)) INTO locked
    FROM memd.subjects s WHERE s.tenant_no = p_tenant[1] AND s.subject_no = p_subject[1];
    IF locked AND EXISTS (
      SELECT FROM memd.subjects s
      JOIN memd.tenants t ON t.tenant_no = s.tenant_no AND t.state = 2
      WHERE s.tenant_no = p_tenant[1] AND s.subject_no = p_subject[1] AND s.retired_at IS NULL
        AND NOT EXISTS (SELECT FROM memd.fences f WHERE f.tenant_no = s.tenant_no AND f.user_ref = s.user_ref)
        AND (p_session[1] IS NULL OR p_session[1] = 1099511627777 OR EXISTS (
          SELECT FROM memd.sessions x
          WHERE x.tenant_no = s.tenant_no AND x.subject_no = s.subject_no AND x.session_no = p_session[1] AND x.state = 1
            AND NOT EXISTS (SELECT FROM memd.tombstones d
                            WHERE d.tenant_no = x.tenant_no AND d.kind IN (1, 2) AND d.ref = x.session_ref)))) THEN
      RETURN;
    END IF;
  END IF;
  PERFORM memd.guard(p_tenant, p_subject, p_session, p_source);
  -- guard holds the locks when it returns, so this look is fresh.
  IF EXISTS (SELECT FROM unnest(p_tenant, p_subject, p_session) AS u (tenant_no, subject_no, session_no)
             JOIN memd.sessions x ON x.tenant_no = u.tenant_no AND x.subject_no = u.subject_no AND x.session_no = u.session_no
             JOIN memd.tombstones d ON d.tenant_no = x.tenant_no AND d.kind = 2 AND d.ref = x.session_ref) THEN
    RAISE EXCEPTION 'refused by the guard' USING ERRCODE = 'MD002';
  END IF;
END $$;
-- Rows of a session, each with the time of its words: the oldest counts, and
-- none given counts before all.
CREATE FUNCTION memd.guard_session_rows() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  t bigint[]; s bigint[]; x bigint[]; m timestamptz[];
BEGIN
  SELECT array_agg(v.t), array_agg(v.s), array_agg(v.x), array_agg(v.m) INTO t, s, x, m FROM (
    SELECT n.tenant_no AS t, n.subject_no AS s, n.session_no AS x,
      CASE WHEN bool_and(n.source_time IS NOT NULL) THEN min(n.source_time) END AS m
    FROM new_rows n GROUP BY 1, 2, 3
  ) v;
  IF t IS NOT NULL THEN
    PERFORM memd.guard_content(t, s, x, m);
  END IF;
  RETURN NULL;
END $$;
CREATE FUNCTION memd.guard_session_heads() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  t bigint[]; s bigint[]; x bigint[]; m timestamptz[];
BEGIN
  SELECT array_agg(n.tenant_no), array_agg(n.subject_no), array_agg(n.session_no), array_agg(n.updated_at)
  INTO t, s, x, m FROM new_rows n;
  IF EXISTS (SELECT FROM new_rows n WHERE n.session_no < 1 OR n.session_no = 1099511627777 OR n.month < 1 OR n.next_seq < 1 OR n.events < 0) THEN
    RAISE EXCEPTION 'no such head' USING ERRCODE = '23514';
  END IF;
  IF t IS NOT NULL THEN
    PERFORM memd.guard_content(t, s, x, m);
  END IF;
  RETURN NULL;
END $$;
CREATE FUNCTION memd.guard_user_state() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  t bigint[]; s bigint[]; x bigint[]; m timestamptz[];
BEGIN
  SELECT array_agg(v.t), array_agg(v.s), array_agg(NULL::bigint), array_agg(v.m) INTO t, s, x, m FROM (
    SELECT n.tenant_no AS t, n.subject_no AS s,
      CASE WHEN bool_and(n.source_time IS NOT NULL) THEN min(n.source_time) END AS m
    FROM new_rows n GROUP BY 1, 2
  ) v;
  IF t IS NOT NULL THEN
    PERFORM memd.guard_content(t, s, x, m);
  END IF;
  RETURN NULL;
END $$;
CREATE FUNCTION memd.guard_app_state_insert() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  t bigint[]; s bigint[]; x bigint[]; m timestamptz[];
BEGIN
  SELECT array_agg(v.t), array_agg(v.s), array_agg(NULL::bigint), array_agg(v.m) INTO t, s, x, m FROM (
    SELECT n.tenant_no AS t, n.app_no AS s, n.source_time AS m FROM new_rows n
    UNION SELECT n.tenant_no, n.contributor_no, n.source_time FROM new_rows n WHERE n.contributor_no IS NOT NULL
  ) v;
  IF t IS NOT NULL THEN
    PERFORM memd.guard_content(t, s, x, m);
  END IF;
  RETURN NULL;
END $$;
-- Somebody else may replace the value of a user who is being erased: that value
-- is then gone. A row that keeps it (each sealing begins with a nonce of its
-- own) answers for the old contributor too, so that nobody's words are given
-- another name behind a fence.
CREATE FUNCTION memd.guard_app_state_update() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  t bigint[]; s bigint[]; x bigint[]; m timestamptz[];
BEGIN
  SELECT array_agg(v.t), array_agg(v.s), array_agg(NULL::bigint), array_agg(v.m) INTO t, s, x, m FROM (
    SELECT n.tenant_no AS t, n.app_no AS s, n.source_time AS m FROM new_rows n
    UNION SELECT n.tenant_no, n.contributor_no, n.source_time FROM new_rows n WHERE n.contributor_no IS NOT NULL
    UNION SELECT o.tenant_no, o.contributor_no, n.source_time
      FROM old_rows o JOIN new_rows n ON n.tenant_no = o.tenant_no AND n.app_no = o.app_no AND n.key_digest = o.key_digest
      WHERE o.contributor_no IS NOT NULL AND substr(o.sealed, 1, 12) = substr(n.sealed, 1, 12)
  ) v;
  IF t IS NOT NULL THEN
    PERFORM memd.guard_content(t, s, x, m);
  END IF;
  RETURN NULL;
END $$;
-- +goose StatementEnd

-- The schema's own functions, create_session and append_events, have asked the
-- guard before they write as its owner; asking for each table again would take
-- longer than writing. Everybody else's statements are asked about one by one.
CREATE TRIGGER guard_insert AFTER INSERT ON memd.session_heads REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT WHEN (NOT pg_catalog.has_table_privilege('memd.session_heads', 'TRUNCATE'))
  EXECUTE FUNCTION memd.guard_session_heads();
CREATE TRIGGER guard_update AFTER UPDATE ON memd.session_heads REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT WHEN (NOT pg_catalog.has_table_privilege('memd.session_heads', 'TRUNCATE'))
  EXECUTE FUNCTION memd.guard_session_heads();
CREATE TRIGGER guard_insert AFTER INSERT ON memd.session_events REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT WHEN (NOT pg_catalog.has_table_privilege('memd.session_events', 'TRUNCATE'))
  EXECUTE FUNCTION memd.guard_session_rows();
CREATE TRIGGER guard_update AFTER UPDATE ON memd.session_events REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT WHEN (NOT pg_catalog.has_table_privilege('memd.session_events', 'TRUNCATE'))
  EXECUTE FUNCTION memd.guard_session_rows();
CREATE TRIGGER guard_insert AFTER INSERT ON memd.session_state REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT WHEN (NOT pg_catalog.has_table_privilege('memd.session_state', 'TRUNCATE'))
  EXECUTE FUNCTION memd.guard_session_rows();
CREATE TRIGGER guard_update AFTER UPDATE ON memd.session_state REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT WHEN (NOT pg_catalog.has_table_privilege('memd.session_state', 'TRUNCATE'))
  EXECUTE FUNCTION memd.guard_session_rows();
CREATE TRIGGER guard_insert AFTER INSERT ON memd.user_state REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT WHEN (NOT pg_catalog.has_table_privilege('memd.user_state', 'TRUNCATE'))
  EXECUTE FUNCTION memd.guard_user_state();
CREATE TRIGGER guard_update AFTER UPDATE ON memd.user_state REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT WHEN (NOT pg_catalog.has_table_privilege('memd.user_state', 'TRUNCATE'))
  EXECUTE FUNCTION memd.guard_user_state();
CREATE TRIGGER guard_insert AFTER INSERT ON memd.app_state REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT WHEN (NOT pg_catalog.has_table_privilege('memd.app_state', 'TRUNCATE'))
  EXECUTE FUNCTION memd.guard_app_state_insert();
CREATE TRIGGER guard_update AFTER UPDATE ON memd.app_state REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
  FOR EACH STATEMENT WHEN (NOT pg_catalog.has_table_privilege('memd.app_state', 'TRUNCATE'))
  EXECUTE FUNCTION memd.guard_app_state_update();

-- ensure_event_month makes the partition of a month where it is missing. The
-- new table is attached, which lets writers and readers of the other months go
-- on, and an advisory lock has two who come at once make one. A month far from
-- today is refused: nobody fills the catalogue with partitions.
-- +goose StatementBegin
CREATE FUNCTION memd.ensure_event_month(p_month integer) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  name text := 'session_events_' || p_month;
  today integer := (extract(year FROM now() AT TIME ZONE 'UTC')::integer - 1970) * 12 + extract(month FROM now() AT TIME ZONE 'UTC')::integer;
BEGIN
  IF p_month IS NULL OR p_month < 1 OR abs(p_month - today) > 120 THEN
    RAISE EXCEPTION 'no partition is made for a month ten years away' USING ERRCODE = '22023';
  END IF;
  IF to_regclass('memd.' || name) IS NOT NULL THEN
    RETURN;
  END IF;
  PERFORM pg_advisory_xact_lock((x'6d640700'::bit(32)::bigint << 32) | p_month);
  -- Asked of the table itself: what the session has cached of names does not
  -- hear, while it waits for the lock, that there is one by now.
  IF EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'memd' AND c.relname = name) THEN
    RETURN;
  END IF;
  -- A row with an event of usual length stays in one piece.
  EXECUTE format('CREATE TABLE memd.%I (LIKE memd.session_events INCLUDING ALL) WITH (toast_tuple_target = 8160)', name);
  EXECUTE format('ALTER TABLE memd.session_events ATTACH PARTITION memd.%I FOR VALUES IN (%s)', name, p_month);
END $$;

-- put_state stores values, the newest of each key. p_kinds: 1 session, 2 user,
-- 3 app. Keys are taken in one order, so that two writers wait and do not
-- deadlock. Only the two functions below call it.
CREATE FUNCTION memd.put_state(p_tenant bigint, p_subject bigint, p_session bigint, p_month integer, p_app bigint,
  p_contributor bigint, p_now timestamptz, p_kinds smallint[], p_digests bytea[], p_times timestamptz[], p_sealed bytea[])
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF 1 = ANY (p_kinds) THEN
    INSERT INTO memd.session_state AS s (tenant_no, subject_no, session_no, month, key_digest, source_time, updated_at, sealed)
    SELECT DISTINCT ON (u.digest) p_tenant, p_subject, p_session, p_month, u.digest, u.at, p_now, u.sealed
    FROM unnest(p_kinds, p_digests, p_times, p_sealed) WITH ORDINALITY AS u (kind, digest, at, sealed, n)
    WHERE u.kind = 1 ORDER BY u.digest, u.n DESC
    ON CONFLICT (tenant_no, subject_no, session_no, key_digest) DO UPDATE SET
      source_time = excluded.source_time, updated_at = excluded.updated_at, sealed = excluded.sealed;
  END IF;
  IF 2 = ANY (p_kinds) THEN
    INSERT INTO memd.user_state AS s (tenant_no, subject_no, key_digest, source_time, updated_at, sealed)
    SELECT DISTINCT ON (u.digest) p_tenant, p_subject, u.digest, u.at, p_now, u.sealed
    FROM unnest(p_kinds, p_digests, p_times, p_sealed) WITH ORDINALITY AS u (kind, digest, at, sealed, n)
    WHERE u.kind = 2 ORDER BY u.digest, u.n DESC
    ON CONFLICT (tenant_no, subject_no, key_digest) DO UPDATE SET
      source_time = excluded.source_time, updated_at = excluded.updated_at, sealed = excluded.sealed;
  END IF;
  IF 3 = ANY (p_kinds) THEN
    INSERT INTO memd.app_state AS s (tenant_no, app_no, key_digest, contributor_no, source_time, updated_at, sealed)
    SELECT DISTINCT ON (u.digest) p_tenant, p_app, u.digest, p_contributor, u.at, p_now, u.sealed
    FROM unnest(p_kinds, p_digests, p_times, p_sealed) WITH ORDINALITY AS u (kind, digest, at, sealed, n)
    WHERE u.kind = 3 ORDER BY u.digest, u.n DESC
    ON CONFLICT (tenant_no, app_no, key_digest) DO UPDATE SET contributor_no = excluded.contributor_no,
      source_time = excluded.source_time, updated_at = excluded.updated_at, sealed = excluded.sealed;
  END IF;
END $$;

-- enter_content is what both writers below begin with: locks and check for the
-- session and, where the app's state is written, for its shared subject, before
-- any row is touched. The lock is held to the transaction's end, so what is
-- checked here holds for all that follows.
CREATE FUNCTION memd.enter_content(p_tenant bigint, p_subject bigint, p_session bigint, p_app bigint, p_source timestamptz)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF p_app IS NULL THEN
    PERFORM memd.guard_content(ARRAY[p_tenant], ARRAY[p_subject], ARRAY[p_session], ARRAY[p_source]);
  ELSE
    PERFORM memd.guard_content(ARRAY[p_tenant, p_tenant], ARRAY[p_subject, p_app], ARRAY[p_session, NULL], ARRAY[p_source, p_source]);
  END IF;
END $$;

-- create_session makes a head and the state to begin with. An id that is taken
-- is a violation of the head's key.
CREATE FUNCTION memd.create_session(p_tenant bigint, p_subject bigint, p_session bigint, p_name text, p_month integer,
  p_app bigint, p_impersonal boolean, p_now timestamptz, p_kinds smallint[], p_keys bytea[], p_values bytea[])
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM memd.enter_content(p_tenant, p_subject, p_session, p_app, p_now);
  INSERT INTO memd.session_heads (tenant_no, subject_no, session_no, app, month, created_at, updated_at)
  VALUES (p_tenant, p_subject, p_session, p_name, p_month, p_now, p_now);
  IF cardinality(p_kinds) > 0 THEN
    PERFORM memd.put_state(p_tenant, p_subject, p_session, p_month, p_app, CASE WHEN NOT p_impersonal THEN p_subject END, p_now,
      p_kinds, p_keys, array_fill(p_now, ARRAY[cardinality(p_keys)]), p_values);
  END IF;
END $$;

-- append_events stores the events that are not there yet, in order, with the
-- state that they change, and says of each where it is, when it was appended
-- and whether it is new. A caller who has not seen the last change (p_seen) may
-- repeat what is stored and add nothing (MD021); no head is MD020.
CREATE FUNCTION memd.append_events(p_tenant bigint, p_subject bigint, p_session bigint,
  p_app bigint, p_impersonal boolean, p_seen timestamptz, p_now timestamptz,
  p_digests bytea[], p_times timestamptz[], p_sealed bytea[],
  p_events integer[], p_kinds smallint[], p_keys bytea[], p_key_times timestamptz[], p_values bytea[])
RETURNS TABLE (seq bigint, appended_at timestamptz, fresh boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  many bigint := cardinality(p_digests);
  source timestamptz := p_times[1];
  the_month integer;
  base bigint;
  before timestamptz;
  stored bigint[];
  n bigint;
BEGIN
  -- The oldest words count, and words without a time before all.
  IF many > 1 THEN
    SELECT CASE WHEN bool_and(u.at IS NOT NULL) THEN min(u.at) END INTO source FROM unnest(p_times) AS u (at);
  END IF;
  PERFORM memd.enter_content(p_tenant, p_subject, p_session, p_app, source);
  SELECT h.month, h.next_seq, h.updated_at INTO the_month, base, before FROM memd.session_heads h
  WHERE h.tenant_no = p_tenant AND h.subject_no = p_subject AND h.session_no = p_session FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'no such session' USING ERRCODE = 'MD020';
  END IF;
  IF p_seen < before THEN
    SELECT count(*) INTO n FROM memd.session_events e
    WHERE e.tenant_no = p_tenant AND e.subject_no = p_subject AND e.session_no = p_session
      AND e.month = the_month AND e.event_digest = ANY (p_digests);
    IF n < many THEN
      RAISE EXCEPTION 'the session has changed' USING ERRCODE = 'MD021';
    END IF;
  ELSE
    appended_at := greatest(p_now, before + interval '1 microsecond');
    IF many = 1 THEN
      INSERT INTO memd.session_events (tenant_no, subject_no, session_no, month, seq, event_digest, source_time, appended_at, sealed)
      VALUES (p_tenant, p_subject, p_session, the_month, base, p_digests[1], p_times[1], append_events.appended_at, p_sealed[1])
      ON CONFLICT DO NOTHING;
      GET DIAGNOSTICS n = ROW_COUNT;
    ELSE
      WITH i AS (
        INSERT INTO memd.session_events AS e (tenant_no, subject_no, session_no, month, seq, event_digest, source_time, appended_at, sealed)
        SELECT p_tenant, p_subject, p_session, the_month, base + u.n - 1, u.digest, u.at, append_events.appended_at, u.sealed
        FROM unnest(p_digests, p_times, p_sealed) WITH ORDINALITY AS u (digest, at, sealed, n)
        ON CONFLICT DO NOTHING RETURNING e.seq
      ) SELECT array_agg(i.seq), count(*) INTO stored, n FROM i;
    END IF;
    IF n > 0 THEN
      UPDATE memd.session_heads h SET next_seq = base + many, events = h.events + n, updated_at = append_events.appended_at
      WHERE h.tenant_no = p_tenant AND h.subject_no = p_subject AND h.session_no = p_session;
    END IF;
    IF n = many THEN
      IF cardinality(p_kinds) > 0 THEN
        PERFORM memd.put_state(p_tenant, p_subject, p_session, the_month, p_app, CASE WHEN NOT p_impersonal THEN p_subject END,
          append_events.appended_at, p_kinds, p_keys, p_key_times, p_values);
      END IF;
      fresh := true;
      FOR i IN 0 .. many - 1 LOOP
        seq := base + i;
        RETURN NEXT;
      END LOOP;
      RETURN;
    END IF;
    -- Some were there: what they changed was changed with them, and is not again.
    IF n > 0 AND cardinality(p_kinds) > 0 THEN
      PERFORM memd.put_state(p_tenant, p_subject, p_session, the_month, p_app, CASE WHEN NOT p_impersonal THEN p_subject END,
        append_events.appended_at, array_agg(u.kind ORDER BY u.n), array_agg(u.digest ORDER BY u.n), array_agg(u.at ORDER BY u.n),
        array_agg(u.sealed ORDER BY u.n))
      FROM unnest(p_events, p_kinds, p_keys, p_key_times, p_values) WITH ORDINALITY AS u (event, kind, digest, at, sealed, n)
      WHERE base + u.event - 1 = ANY (stored);
    END IF;
  END IF;
  RETURN QUERY SELECT e.seq, e.appended_at, e.seq = ANY (coalesce(stored, '{}'))
  FROM unnest(p_digests) WITH ORDINALITY AS u (digest, n)
  JOIN memd.session_events e ON e.tenant_no = p_tenant AND e.subject_no = p_subject AND e.session_no = p_session
    AND e.month = the_month AND e.event_digest = u.digest
  ORDER BY u.n;
END $$;

-- append_event is append_events for one event that changes no state, which is
-- what most are: the same lock and the same look, but in the statement that
-- takes the head's next place. p_ref names the lock before anything is read;
-- that it is the subject's is seen behind it. No row of which seq is null:
-- append_events is to be asked, because the caller has not seen the last change
-- or there is no head. An event that is there is a violation of a unique index,
-- and append_events knows where.
CREATE FUNCTION memd.append_event(p_tenant bigint, p_ref bytea, p_subject bigint, p_session bigint, p_seen timestamptz,
  p_now timestamptz, p_digest bytea, p_source timestamptz, p_sealed bytea, OUT seq bigint, OUT appended_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  the_month integer;
BEGIN
  IF current_setting('transaction_isolation') = 'read committed' AND memd.try_lock(memd.lock_hi(p_ref), memd.lock_lo(p_ref)) THEN
    UPDATE memd.session_heads h
    SET next_seq = h.next_seq + 1, events = h.events + 1, updated_at = greatest(p_now, h.updated_at + interval '1 microsecond')
    FROM memd.tenants t, memd.subjects s, memd.sessions x
    WHERE h.tenant_no = p_tenant AND h.subject_no = p_subject AND h.session_no = p_session AND (p_seen IS NULL OR h.updated_at <= p_seen)
      AND t.tenant_no = p_tenant AND t.state = 2
      AND s.tenant_no = p_tenant AND s.subject_no = p_subject AND s.user_ref = p_ref AND s.retired_at IS NULL
      AND x.tenant_no = p_tenant AND x.subject_no = p_subject AND x.session_no = p_session AND x.state = 1
      AND NOT EXISTS (SELECT FROM memd.fences f
                      WHERE f.tenant_no = p_tenant AND f.user_ref = p_ref AND (f.state IN (1, 2)
                        OR f.erased_before IS NOT NULL AND (p_source IS NULL OR f.erased_before > p_source)))
      AND NOT EXISTS (SELECT FROM memd.tombstones d
                      WHERE d.tenant_no = p_tenant AND d.kind IN (1, 2) AND d.ref = x.session_ref)
    RETURNING h.month, h.next_seq - 1, h.updated_at INTO the_month, append_event.seq, append_event.appended_at;
    IF FOUND THEN
      INSERT INTO memd.session_events (tenant_no, subject_no, session_no, month, seq, event_digest, source_time, appended_at, sealed)
      VALUES (p_tenant, p_subject, p_session, the_month, append_event.seq, p_digest, p_source, append_event.appended_at, p_sealed);
      RETURN;
    END IF;
  END IF;
  PERFORM memd.enter_content(p_tenant, p_subject, p_session, NULL, p_source);
END $$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION memd.guard_content(bigint[], bigint[], bigint[], timestamptz[]), memd.guard_session_rows(),
  memd.guard_session_heads(), memd.guard_user_state(), memd.guard_app_state_insert(), memd.guard_app_state_update(),
  memd.enter_content(bigint, bigint, bigint, bigint, timestamptz),
  memd.ensure_event_month(integer),
  memd.put_state(bigint, bigint, bigint, integer, bigint, bigint, timestamptz, smallint[], bytea[], timestamptz[], bytea[]),
  memd.create_session(bigint, bigint, bigint, text, integer, bigint, boolean, timestamptz, smallint[], bytea[], bytea[]),
  memd.append_event(bigint, bytea, bigint, bigint, timestamptz, timestamptz, bytea, timestamptz, bytea),
  memd.append_events(bigint, bigint, bigint, bigint, boolean, timestamptz, timestamptz, bytea[], timestamptz[], bytea[],
    integer[], smallint[], bytea[], timestamptz[], bytea[])
  FROM PUBLIC;
GRANT EXECUTE ON FUNCTION memd.ensure_event_month(integer),
  memd.create_session(bigint, bigint, bigint, text, integer, bigint, boolean, timestamptz, smallint[], bytea[], bytea[]),
  memd.append_event(bigint, bytea, bigint, bigint, timestamptz, timestamptz, bytea, timestamptz, bytea),
  memd.append_events(bigint, bigint, bigint, bigint, boolean, timestamptz, timestamptz, bytea[], timestamptz[], bytea[],
    integer[], smallint[], bytea[], timestamptz[], bytea[])
  TO memd_app;

-- +goose Down
DROP FUNCTION
  memd.append_event(bigint, bytea, bigint, bigint, timestamptz, timestamptz, bytea, timestamptz, bytea),
  memd.append_events(bigint, bigint, bigint, bigint, boolean, timestamptz, timestamptz, bytea[], timestamptz[], bytea[],
    integer[], smallint[], bytea[], timestamptz[], bytea[]),
  memd.create_session(bigint, bigint, bigint, text, integer, bigint, boolean, timestamptz, smallint[], bytea[], bytea[]),
  memd.enter_content(bigint, bigint, bigint, bigint, timestamptz),
  memd.put_state(bigint, bigint, bigint, integer, bigint, bigint, timestamptz, smallint[], bytea[], timestamptz[], bytea[]),
  memd.ensure_event_month(integer);
DROP VIEW memd.readable_sessions, memd.readable_subjects, memd.dead_sessions;
DROP TABLE memd.app_state, memd.user_state, memd.session_state, memd.session_events, memd.session_heads;
DROP FUNCTION memd.guard_app_state_update(), memd.guard_app_state_insert(), memd.guard_user_state(),
  memd.guard_session_heads(), memd.guard_session_rows(), memd.guard_content(bigint[], bigint[], bigint[], timestamptz[]);
