-- +goose Up

-- A session's head: what is known of a conversation without opening anything.
-- month is that of its creation, for good: its events and its state are sealed
-- with that month's key and go when the month expires. updated_at only grows,
-- and is what writers say that they have seen.
--
-- user_ref and session_ref are the directory's, copied once: what an append has
-- to know of its user and session is then in the row that it updates anyway.
--
-- Heads and events have no check constraints: PostgreSQL reads each anew for
-- every statement, 4 µs apiece, and the functions below write nothing else than
-- numbers of their own.
CREATE TABLE memd.session_heads (
  tenant_no   bigint      NOT NULL,
  subject_no  bigint      NOT NULL,
  session_no  bigint      NOT NULL,
  user_ref    bytea       NOT NULL,
  session_ref bytea       NOT NULL,
  app         text        NOT NULL,
  month       integer     NOT NULL,
  created_at  timestamptz NOT NULL,
  updated_at  timestamptz NOT NULL,
  next_seq    bigint      NOT NULL DEFAULT 1,
  events      bigint      NOT NULL DEFAULT 0,
  PRIMARY KEY (tenant_no, subject_no, session_no)
) WITH (fillfactor = 70); -- every append updates a head, in place
CREATE INDEX session_heads_app ON memd.session_heads (tenant_no, app, created_at, subject_no, session_no);
-- Whose sessions a month has: a month that nobody has any more drops its partition.
CREATE INDEX session_heads_month ON memd.session_heads (month, tenant_no);

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
CREATE INDEX session_state_month ON memd.session_state (month, tenant_no);
ALTER TABLE memd.session_state ALTER COLUMN sealed SET STORAGE EXTERNAL;
ALTER TABLE memd.user_state ALTER COLUMN sealed SET STORAGE EXTERNAL;
ALTER TABLE memd.app_state ALTER COLUMN sealed SET STORAGE EXTERNAL;

-- Nobody may write but the functions below, which ask the guard first: the
-- application has no right to insert or change a row, so there is no statement
-- of its own that a trigger would have to stop. And no right on any partition.
GRANT SELECT ON memd.session_heads, memd.session_events, memd.session_state, memd.user_state, memd.app_state TO memd_app;
GRANT SELECT, DELETE ON memd.session_heads, memd.session_events, memd.session_state, memd.user_state, memd.app_state TO memd_worker;

-- Who may be read: no fence up, and the session neither forgotten nor buried,
-- kind 1 with what memory took from it, kind 2 its content alone.
-- The index, because the tombstones of rows, kind 3, may be many more.
CREATE INDEX tombstones_session ON memd.tombstones (tenant_no, ref) WHERE kind IN (1, 2);
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
-- ever, no tombstone. That is seen in one look behind the lock, by whole keys;
-- whoever is not plainly in order goes the long way, which knows the reasons.
-- +goose StatementBegin
CREATE FUNCTION memd.guard_content(p_tenant bigint[], p_subject bigint[], p_session bigint[], p_source timestamptz[], p_grows boolean)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ref bytea;
BEGIN
  IF cardinality(p_tenant) = 1 AND current_setting('transaction_isolation') = 'read committed' THEN
    SELECT s.user_ref INTO ref FROM memd.subjects s WHERE s.tenant_no = p_tenant[1] AND s.subject_no = p_subject[1];
    IF memd.try_lock(memd.lock_hi(ref), memd.lock_lo(ref)) THEN
      IF EXISTS (SELECT FROM memd.tenants t WHERE t.tenant_no = p_tenant[1] AND t.state = 2 AND NOT (p_grows AND t.full_up))
        AND EXISTS (SELECT FROM memd.subjects s WHERE s.tenant_no = p_tenant[1] AND s.subject_no = p_subject[1] AND s.retired_at IS NULL)
        AND NOT EXISTS (SELECT FROM memd.fences f WHERE f.tenant_no = p_tenant[1] AND f.user_ref = ref)
        AND (p_session[1] IS NULL OR p_session[1] = 1099511627777 OR EXISTS (
          SELECT FROM memd.sessions x
          WHERE x.tenant_no = p_tenant[1] AND x.subject_no = p_subject[1] AND x.session_no = p_session[1] AND x.state = 1
            AND NOT EXISTS (SELECT FROM memd.tombstones d
                            WHERE d.tenant_no = p_tenant[1] AND d.kind IN (1, 2) AND d.ref = x.session_ref))) THEN
        RETURN;
      END IF;
    END IF;
  END IF;
  PERFORM memd.guard(p_tenant, p_subject, p_session, p_source, p_grows);
  -- guard holds the locks when it returns, so this look is fresh.
  IF EXISTS (SELECT FROM unnest(p_tenant, p_subject, p_session) AS u (tenant_no, subject_no, session_no)
             JOIN memd.sessions x ON x.tenant_no = u.tenant_no AND x.subject_no = u.subject_no AND x.session_no = u.session_no
             JOIN memd.tombstones d ON d.tenant_no = x.tenant_no AND d.kind = 2 AND d.ref = x.session_ref) THEN
    RAISE EXCEPTION 'refused by the guard' USING ERRCODE = 'MD002';
  END IF;
END $$;
-- +goose StatementEnd

-- month_of is memd.MonthOf: the months since January 1970, which is 1.
CREATE FUNCTION memd.month_of(p_time timestamptz) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT ((extract(year FROM p_time AT TIME ZONE 'UTC') - 1970) * 12 + extract(month FROM p_time AT TIME ZONE 'UTC'))::integer
$$;

-- ensure_event_month makes the partition of a month where it is missing. The
-- new table is attached, which lets writers and readers of the other months go
-- on, and an advisory lock has two who come at once make one. A month far from
-- today is refused: nobody fills the catalogue with partitions.
-- +goose StatementBegin
CREATE FUNCTION memd.ensure_event_month(p_month integer) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  name text := 'session_events_' || p_month;
BEGIN
  IF p_month IS NULL OR p_month < 1 OR abs(p_month - memd.month_of(now())) > 120 THEN
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
  EXECUTE format('ALTER TABLE memd.%I ALTER COLUMN sealed SET STATISTICS 0', name); -- as in 0018
  EXECUTE format('ALTER TABLE memd.session_events ATTACH PARTITION memd.%I FOR VALUES IN (%s)', name, p_month);
END $$;

-- put_state stores values, the newest of each key. p_kinds: 1 session, 2 user,
-- 3 app. Keys are taken in one order, so that two writers wait and do not
-- deadlock. Only the two functions below call it.
--
-- A value of the app's that is kept (each sealing begins with a nonce of its
-- own) stays its writer's: nobody's words are given another name, to outlive
-- their erasure. What is more than a reader could ever be given is refused
-- (MD022): memd.MaxStateKeys and memd.MaxStateOfOwner, for each owner. Writers of
-- one owner's state take turns, or several at once would each find room for
-- itself: a session's on its head, a user's and an app's on a lock of their own.
CREATE FUNCTION memd.state_lock(p_tenant bigint, p_owner bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT (28004::bigint << 48) | (8::bigint << 40) | (hashint8extended(p_owner, p_tenant) & 1099511627775)
$$;
CREATE FUNCTION memd.put_state(p_tenant bigint, p_subject bigint, p_session bigint, p_month integer, p_app bigint,
  p_contributor bigint, p_now timestamptz, p_kinds smallint[], p_digests bytea[], p_times timestamptz[], p_sealed bytea[])
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  keys bigint;
  bytes bigint;
BEGIN
  IF 2 = ANY (p_kinds) THEN
    PERFORM pg_advisory_xact_lock(memd.state_lock(p_tenant, p_subject));
  END IF;
  IF 3 = ANY (p_kinds) THEN
    PERFORM pg_advisory_xact_lock(memd.state_lock(p_tenant, p_app));
  END IF;
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
      source_time = excluded.source_time, updated_at = excluded.updated_at, sealed = excluded.sealed
    WHERE substr(s.sealed, 1, 12) <> substr(excluded.sealed, 1, 12);
  END IF;
  SELECT max(o.keys), max(o.bytes) INTO keys, bytes FROM (
    SELECT count(*) AS keys, sum(octet_length(x.sealed)) AS bytes FROM memd.session_state x
    WHERE 1 = ANY (p_kinds) AND x.tenant_no = p_tenant AND x.subject_no = p_subject AND x.session_no = p_session
    UNION ALL
    SELECT count(*), sum(octet_length(x.sealed)) FROM memd.user_state x
    WHERE 2 = ANY (p_kinds) AND x.tenant_no = p_tenant AND x.subject_no = p_subject
    UNION ALL
    SELECT count(*), sum(octet_length(x.sealed)) FROM memd.app_state x
    WHERE 3 = ANY (p_kinds) AND x.tenant_no = p_tenant AND x.app_no = p_app
  ) o;
  IF keys > 10000 OR bytes > 16777216 THEN
    RAISE EXCEPTION 'more state than one owner may have' USING ERRCODE = 'MD022';
  END IF;
END $$;

-- enter_content is what the writers below begin with: locks and check for the
-- session and, where the app's state is written, for its shared subject, before
-- any row is touched. The lock is held to the transaction's end, so what is
-- checked here holds for all that follows. What is called the app's must be the
-- shared subject of the user's own app.
CREATE FUNCTION memd.enter_content(p_tenant bigint, p_subject bigint, p_session bigint, p_app bigint, p_source timestamptz)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF p_app IS NULL THEN
    PERFORM memd.guard_content(ARRAY[p_tenant], ARRAY[p_subject], ARRAY[p_session], ARRAY[p_source], true);
    RETURN;
  END IF;
  PERFORM memd.guard_content(ARRAY[p_tenant, p_tenant], ARRAY[p_subject, p_app], ARRAY[p_session, NULL], ARRAY[p_source, p_source], true);
  IF NOT EXISTS (SELECT FROM memd.subjects s JOIN memd.subjects a ON a.tenant_no = s.tenant_no AND a.app = s.app AND a.kind = 2
                 WHERE s.tenant_no = p_tenant AND s.subject_no = p_subject AND a.subject_no = p_app) THEN
    RAISE EXCEPTION 'not the app of the user' USING ERRCODE = 'MD006';
  END IF;
END $$;

-- create_session makes a head and the state to begin with. Only a user's session
-- has one, not the own scope and nobody's in particular; its app and its refs are
-- the directory's, and its month is that of its creation. An id that is taken is
-- a violation of the head's key.
CREATE FUNCTION memd.create_session(p_tenant bigint, p_subject bigint, p_session bigint, p_app bigint, p_impersonal boolean,
  p_now timestamptz, p_kinds smallint[], p_keys bytea[], p_values bytea[])
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM memd.enter_content(p_tenant, p_subject, p_session, p_app, p_now);
  IF EXISTS (SELECT FROM memd.month_gone(p_tenant, 0::smallint, memd.month_of(p_now))) THEN
    RAISE EXCEPTION 'refused by the guard' USING ERRCODE = 'MD010';
  END IF;
  INSERT INTO memd.session_heads (tenant_no, subject_no, session_no, user_ref, session_ref, app, month, created_at, updated_at)
  SELECT s.tenant_no, s.subject_no, x.session_no, s.user_ref, x.session_ref, s.app, memd.month_of(p_now), p_now, p_now
  FROM memd.subjects s JOIN memd.sessions x ON x.tenant_no = s.tenant_no AND x.subject_no = s.subject_no
  WHERE s.tenant_no = p_tenant AND s.subject_no = p_subject AND s.kind = 1 AND x.session_no = p_session;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'no session of a user' USING ERRCODE = 'MD006';
  END IF;
  IF cardinality(p_kinds) > 0 THEN
    PERFORM memd.put_state(p_tenant, p_subject, p_session, memd.month_of(p_now), p_app, CASE WHEN NOT p_impersonal THEN p_subject END,
      p_now, p_kinds, p_keys, array_fill(p_now, ARRAY[cardinality(p_kinds)]), p_values);
  END IF;
END $$;

-- append_events stores the events that are not there yet, in order, with the
-- state that they change (p_events says which of the events did, from 1), and
-- says of each where it is, when it was appended and whether it is new. State
-- is as old as its event. A caller who has not seen the last change (p_seen) may
-- repeat what is stored and add nothing (MD021); no head is MD020.
CREATE FUNCTION memd.append_events(p_tenant bigint, p_subject bigint, p_session bigint,
  p_app bigint, p_impersonal boolean, p_seen timestamptz, p_now timestamptz,
  p_digests bytea[], p_times timestamptz[], p_sealed bytea[],
  p_events integer[], p_kinds smallint[], p_keys bytea[], p_values bytea[])
RETURNS TABLE (seq bigint, appended_at timestamptz, fresh boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  many bigint := cardinality(p_digests);
  source timestamptz := p_times[1];
  the_month integer;
  base bigint;
  before timestamptz;
  stored bigint[];
  added bigint;
BEGIN
  -- Or what has no time would be stored unasked.
  IF cardinality(p_times) IS DISTINCT FROM many OR cardinality(p_sealed) IS DISTINCT FROM many THEN
    RAISE EXCEPTION 'each event has a time, or NULL, and a value' USING ERRCODE = '22023';
  END IF;
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
  IF EXISTS (SELECT FROM memd.month_gone(p_tenant, 0::smallint, the_month)) THEN
    RAISE EXCEPTION 'refused by the guard' USING ERRCODE = 'MD010';
  END IF;
  IF p_seen < before THEN
    SELECT count(*) INTO added FROM memd.session_events e
    WHERE e.tenant_no = p_tenant AND e.subject_no = p_subject AND e.session_no = p_session
      AND e.month = the_month AND e.event_digest = ANY (p_digests);
    IF added < many THEN
      RAISE EXCEPTION 'the session has changed' USING ERRCODE = 'MD021';
    END IF;
  ELSE
    appended_at := greatest(p_now, before + interval '1 microsecond');
    IF many = 1 THEN
      INSERT INTO memd.session_events (tenant_no, subject_no, session_no, month, seq, event_digest, source_time, appended_at, sealed)
      VALUES (p_tenant, p_subject, p_session, the_month, base, p_digests[1], p_times[1], append_events.appended_at, p_sealed[1])
      ON CONFLICT DO NOTHING;
      GET DIAGNOSTICS added = ROW_COUNT;
    ELSE
      WITH i AS (
        INSERT INTO memd.session_events AS e (tenant_no, subject_no, session_no, month, seq, event_digest, source_time, appended_at, sealed)
        SELECT p_tenant, p_subject, p_session, the_month, base + u.n - 1, u.digest, u.at, append_events.appended_at, u.sealed
        FROM unnest(p_digests, p_times, p_sealed) WITH ORDINALITY AS u (digest, at, sealed, n)
        ON CONFLICT DO NOTHING RETURNING e.seq
      ) SELECT array_agg(i.seq), count(*) INTO stored, added FROM i;
    END IF;
    IF added > 0 THEN
      UPDATE memd.session_heads h SET next_seq = base + many, events = h.events + added, updated_at = append_events.appended_at
      WHERE h.tenant_no = p_tenant AND h.subject_no = p_subject AND h.session_no = p_session;
    END IF;
    -- What an event that was there changed was changed with it, and is not again.
    IF added > 0 AND cardinality(p_kinds) > 0 THEN
      PERFORM memd.put_state(p_tenant, p_subject, p_session, the_month, p_app, CASE WHEN NOT p_impersonal THEN p_subject END,
        append_events.appended_at, array_agg(u.kind ORDER BY u.n), array_agg(u.digest ORDER BY u.n), array_agg(t.at ORDER BY u.n),
        array_agg(u.sealed ORDER BY u.n))
      FROM unnest(p_events, p_kinds, p_keys, p_values) WITH ORDINALITY AS u (event, kind, digest, sealed, n)
      JOIN unnest(p_times) WITH ORDINALITY AS t (at, n) ON t.n = u.event
      WHERE added = many OR base + u.event - 1 = ANY (stored);
    END IF;
    IF added = many THEN
      fresh := true;
      FOR i IN 0 .. many - 1 LOOP
        seq := base + i;
        RETURN NEXT;
      END LOOP;
      RETURN;
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
-- takes the head's next place, and by whole keys. p_ref names the lock, and the
-- refs the fence and the tombstone, before anything is read; that they are the
-- session's is seen behind it. While there is a head its user is not retired and
-- its session not deleted: erasing either deletes the head first, behind the
-- fence or the tombstone that is looked for here.
--
-- It returns the event's place, and NULL when nothing was written and
-- append_events is to be asked, which knows why: the caller has not seen the
-- last change, which may lie ahead of p_now where clocks differ; there is no
-- head; or the guard refuses. An event that is there is a violation of a unique
-- index, and append_events knows where.
CREATE FUNCTION memd.append_event(p_tenant bigint, p_ref bytea, p_session_ref bytea, p_subject bigint, p_session bigint,
  p_seen timestamptz, p_now timestamptz, p_digest bytea, p_source timestamptz, p_sealed bytea) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  the_month integer;
  place bigint;
BEGIN
  IF current_setting('transaction_isolation') = 'read committed' AND memd.try_lock(memd.lock_hi(p_ref), memd.lock_lo(p_ref)) THEN
    UPDATE memd.session_heads h SET next_seq = h.next_seq + 1, events = h.events + 1, updated_at = p_now
    WHERE h.tenant_no = p_tenant AND h.subject_no = p_subject AND h.session_no = p_session
      AND h.user_ref = p_ref AND h.session_ref = p_session_ref
      AND h.updated_at < p_now AND (p_seen IS NULL OR h.updated_at <= p_seen)
      AND EXISTS (SELECT FROM memd.tenants t WHERE t.tenant_no = p_tenant AND t.state = 2 AND NOT t.full_up)
      AND NOT EXISTS (SELECT FROM memd.fences f WHERE f.tenant_no = p_tenant AND f.user_ref = p_ref
                        AND (f.state IN (1, 2) OR p_source IS NULL OR f.erased_before > p_source))
      AND NOT EXISTS (SELECT FROM memd.tombstones d WHERE d.tenant_no = p_tenant AND d.kind IN (1, 2) AND d.ref = p_session_ref)
      AND NOT EXISTS (SELECT FROM memd.month_gone(p_tenant, 0::smallint, h.month))
    RETURNING h.month, h.next_seq - 1 INTO the_month, place;
    IF FOUND THEN
      INSERT INTO memd.session_events (tenant_no, subject_no, session_no, month, seq, event_digest, source_time, appended_at, sealed)
      VALUES (p_tenant, p_subject, p_session, the_month, place, p_digest, p_source, p_now, p_sealed);
    END IF;
  END IF;
  RETURN place;
END $$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION memd.guard_content(bigint[], bigint[], bigint[], timestamptz[], boolean), memd.month_of(timestamptz),
  memd.enter_content(bigint, bigint, bigint, bigint, timestamptz), memd.ensure_event_month(integer),
  memd.put_state(bigint, bigint, bigint, integer, bigint, bigint, timestamptz, smallint[], bytea[], timestamptz[], bytea[]),
  memd.state_lock(bigint, bigint),
  memd.create_session(bigint, bigint, bigint, bigint, boolean, timestamptz, smallint[], bytea[], bytea[]),
  memd.append_event(bigint, bytea, bytea, bigint, bigint, timestamptz, timestamptz, bytea, timestamptz, bytea),
  memd.append_events(bigint, bigint, bigint, bigint, boolean, timestamptz, timestamptz, bytea[], timestamptz[], bytea[],
    integer[], smallint[], bytea[], bytea[])
  FROM PUBLIC;
GRANT EXECUTE ON FUNCTION memd.ensure_event_month(integer),
  memd.create_session(bigint, bigint, bigint, bigint, boolean, timestamptz, smallint[], bytea[], bytea[]),
  memd.append_event(bigint, bytea, bytea, bigint, bigint, timestamptz, timestamptz, bytea, timestamptz, bytea),
  memd.append_events(bigint, bigint, bigint, bigint, boolean, timestamptz, timestamptz, bytea[], timestamptz[], bytea[],
    integer[], smallint[], bytea[], bytea[])
  TO memd_app;
-- The view of months in 0008 is read as who asks.
GRANT EXECUTE ON FUNCTION memd.month_of(timestamptz) TO memd_app, memd_worker;

-- +goose Down
DROP FUNCTION
  memd.append_event(bigint, bytea, bytea, bigint, bigint, timestamptz, timestamptz, bytea, timestamptz, bytea),
  memd.append_events(bigint, bigint, bigint, bigint, boolean, timestamptz, timestamptz, bytea[], timestamptz[], bytea[],
    integer[], smallint[], bytea[], bytea[]),
  memd.create_session(bigint, bigint, bigint, bigint, boolean, timestamptz, smallint[], bytea[], bytea[]),
  memd.enter_content(bigint, bigint, bigint, bigint, timestamptz),
  memd.put_state(bigint, bigint, bigint, integer, bigint, bigint, timestamptz, smallint[], bytea[], timestamptz[], bytea[]),
  memd.ensure_event_month(integer), memd.month_of(timestamptz), memd.state_lock(bigint, bigint);
DROP VIEW memd.readable_sessions, memd.readable_subjects, memd.dead_sessions;
DROP INDEX memd.tombstones_session;
DROP TABLE memd.app_state, memd.user_state, memd.session_state, memd.session_events, memd.session_heads;
DROP FUNCTION memd.guard_content(bigint[], bigint[], bigint[], timestamptz[], boolean);
