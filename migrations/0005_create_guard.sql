-- +goose Up

-- The guard: no write past a fence, by any path. Every content table has
-- statement triggers that take the shared advisory lock of the owner and of
-- every contributor and then look, in a statement of its own with a fresh
-- snapshot, at fences, tombstones, the tenant's state and erased_before. A
-- fence commits 'fencing' and then takes the same lock exclusively, so a
-- writer either committed before the fence drained, or sees it.
--
-- Functions qualify every name and pin search_path: a temporary table or an
-- operator in another schema cannot stand in for what they read.

CREATE FUNCTION memd.lock_hi(p_ref bytea) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT (get_byte(p_ref, 0) << 24) | (get_byte(p_ref, 1) << 16) | (get_byte(p_ref, 2) << 8) | get_byte(p_ref, 3)
$$;
CREATE FUNCTION memd.lock_lo(p_ref bytea) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT (get_byte(p_ref, 4) << 24) | (get_byte(p_ref, 5) << 16) | (get_byte(p_ref, 6) << 8) | get_byte(p_ref, 7)
$$;

-- month_gone has a row when retention has expired a month of a class. It returns
-- rows because, like refusals, it is to become part of the query that calls it: a
-- function of a value that looks into a table is parsed and planned at every call.
CREATE FUNCTION memd.month_gone(p_tenant bigint, p_class smallint, p_month integer)
RETURNS TABLE (expired_at timestamptz) LANGUAGE sql STABLE AS $$
  SELECT d.recorded_at FROM memd.tombstones d
  WHERE d.tenant_no = p_tenant AND d.kind = 4 AND d.ref = memd.month_ref(p_class, p_month)
$$;

-- try_lock takes one user's lock, shared, if that can be done without waiting.
CREATE FUNCTION memd.try_lock(p_hi integer, p_lo integer) RETURNS boolean LANGUAGE sql VOLATILE AS $$
  SELECT pg_catalog.pg_try_advisory_xact_lock_shared(p_hi, p_lo)
$$;

-- lock_refs takes the shared locks of the given refs, sorted, without waiting,
-- and says whether it got them all; wait_refs waits for them.
-- +goose StatementBegin
CREATE FUNCTION memd.lock_refs(p_refs bytea[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  got boolean;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'isolation above READ COMMITTED is refused: it could not see a fence' USING ERRCODE = 'MD007';
  END IF;
  IF (SELECT count(DISTINCT r) FROM unnest(p_refs) r) > 64 THEN
    RAISE EXCEPTION 'more than 64 subjects in one write' USING ERRCODE = 'MD011';
  END IF;
  SELECT bool_and(memd.try_lock(k.hi, k.lo)) INTO got
  FROM (SELECT DISTINCT memd.lock_hi(r) AS hi, memd.lock_lo(r) AS lo FROM unnest(p_refs) r ORDER BY 1, 2 OFFSET 0) k;
  RETURN coalesce(got, true);
END $$;
CREATE FUNCTION memd.wait_refs(p_refs bytea[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(k.hi, k.lo)
  FROM (SELECT DISTINCT memd.lock_hi(r) AS hi, memd.lock_lo(r) AS lo FROM unnest(p_refs) r ORDER BY 1, 2 OFFSET 0) k;
END $$;
-- refusals says why a write on account of (subject, session, source time) is
-- refused, or NULL. A null session asks about the subject alone. p_grows: the
-- write adds to what the tenant has, so its quotas are asked as well. It becomes part
-- of the query that calls it and sees what that sees, which is why it pins no
-- search_path: those who call it do.
CREATE FUNCTION memd.refusals(p_tenant bigint, p_subject bigint, p_session bigint, p_source timestamptz, p_grows boolean)
RETURNS TABLE (code text) LANGUAGE sql STABLE AS $$
  SELECT CASE
    WHEN t.state IS DISTINCT FROM 2::smallint THEN 'MD004'
    WHEN f.state IN (1, 2) THEN 'MD001'
    WHEN d.ref IS NOT NULL OR x.state = 2 THEN 'MD002'
    WHEN s.subject_no IS NULL OR s.retired_at IS NOT NULL THEN 'MD006'
    WHEN p_session <> 1099511627777 AND x.session_no IS NULL THEN 'MD006'
    WHEN f.erased_before IS NOT NULL AND p_source IS NULL THEN 'MD012'
    WHEN f.erased_before > p_source THEN 'MD005'
    WHEN p_grows AND t.full_up THEN 'MD023'
  END
  FROM (SELECT) one
  LEFT JOIN memd.tenants t ON t.tenant_no = p_tenant
  LEFT JOIN memd.subjects s ON s.tenant_no = p_tenant AND s.subject_no = p_subject
  LEFT JOIN memd.sessions x ON x.tenant_no = p_tenant AND x.subject_no = p_subject AND x.session_no = p_session
  LEFT JOIN memd.fences f ON f.tenant_no = s.tenant_no AND f.user_ref = s.user_ref
  LEFT JOIN memd.tombstones d ON d.tenant_no = x.tenant_no AND d.kind = 1 AND d.ref = x.session_ref
$$;
-- guard locks, then checks (subject, session, source time) triples; a null
-- session checks the subject alone. The guard triggers call it, so the way of a
-- writer that is not refused is two queries long.
CREATE FUNCTION memd.guard(p_tenant bigint[], p_subject bigint[], p_session bigint[], p_source timestamptz[], p_grows boolean)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  locked boolean;
  strangers boolean;
  subjects bigint;
  code text;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'isolation above READ COMMITTED is refused: it could not see a fence' USING ERRCODE = 'MD007';
  END IF;
  SELECT coalesce(bool_and(memd.try_lock(k.hi, k.lo)) FILTER (WHERE k.hi IS NOT NULL), true),
    bool_or(k.hi IS NULL), count(k.hi)
  INTO locked, strangers, subjects
  FROM (SELECT DISTINCT memd.lock_hi(s.user_ref) AS hi, memd.lock_lo(s.user_ref) AS lo
        FROM unnest(p_tenant, p_subject) AS u (tenant_no, subject_no)
        LEFT JOIN memd.subjects s ON s.tenant_no = u.tenant_no AND s.subject_no = u.subject_no
        ORDER BY 1, 2 OFFSET 0) k;
  IF subjects > 64 THEN
    RAISE EXCEPTION 'more than 64 subjects in one write' USING ERRCODE = 'MD011';
  END IF;
  LOOP
    SELECT min(v.code) INTO code
    FROM (SELECT DISTINCT * FROM unnest(p_tenant, p_subject, p_session, p_source)
          AS u (tenant_no, subject_no, session_no, source_time)) r,
      LATERAL memd.refusals(r.tenant_no, r.subject_no, r.session_no, r.source_time, p_grows) v;
    -- A fence holds or awaits one of the locks: what would be refused anyway
    -- is refused at once, the rest waits for the drain and looks again.
    EXIT WHEN code IS NOT NULL OR locked;
    PERFORM memd.wait_refs(array_agg(DISTINCT s.user_ref))
    FROM unnest(p_tenant, p_subject) AS u (tenant_no, subject_no)
    JOIN memd.subjects s ON s.tenant_no = u.tenant_no AND s.subject_no = u.subject_no;
    locked := true;
  END LOOP;
  -- Whoever was admitted since the first look is known to the last one, but
  -- not locked.
  IF code IS NULL AND strangers THEN
    code := 'MD006';
  END IF;
  IF code IS NOT NULL THEN
    RAISE EXCEPTION 'refused by the guard' USING ERRCODE = code;
  END IF;
END $$;
-- +goose StatementEnd

-- enter is the writer's first statement: locks before any row is touched, so
-- that no writer holds a row while it waits for a fence. It refuses behind a fence
-- also a writer who turns out to have nothing to write: what is there already must
-- not be told either.
-- +goose StatementBegin
CREATE FUNCTION memd.enter(p_tenant bigint, p_subjects bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  locked boolean;
  subjects bigint;
  refs bytea[];
  fenced boolean;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'isolation above READ COMMITTED is refused: it could not see a fence' USING ERRCODE = 'MD007';
  END IF;
  SELECT coalesce(bool_and(memd.try_lock(k.hi, k.lo)), true), count(*), bool_or(k.up) INTO locked, subjects, fenced
  FROM (SELECT DISTINCT memd.lock_hi(s.user_ref) AS hi, memd.lock_lo(s.user_ref) AS lo, f.user_ref IS NOT NULL AS up
        FROM memd.subjects s
        LEFT JOIN memd.fences f ON f.tenant_no = s.tenant_no AND f.user_ref = s.user_ref AND f.state IN (1, 2)
        WHERE s.tenant_no = p_tenant AND s.subject_no = ANY (p_subjects)
        ORDER BY 1, 2 OFFSET 0) k;
  IF subjects > 64 THEN
    RAISE EXCEPTION 'more than 64 subjects in one write' USING ERRCODE = 'MD011';
  END IF;
  IF fenced THEN
    RAISE EXCEPTION 'refused by the guard' USING ERRCODE = 'MD001';
  END IF;
  IF locked THEN
    RETURN;
  END IF;
  SELECT array_agg(DISTINCT s.user_ref) INTO refs
  FROM memd.subjects s WHERE s.tenant_no = p_tenant AND s.subject_no = ANY (p_subjects);
  SELECT EXISTS (SELECT FROM memd.fences f
                 WHERE f.tenant_no = p_tenant AND f.user_ref = ANY (refs) AND f.state IN (1, 2)) INTO fenced;
  IF fenced THEN
    RAISE EXCEPTION 'refused by the guard' USING ERRCODE = 'MD001';
  END IF;
  PERFORM memd.wait_refs(refs);
END $$;
-- +goose StatementEnd

-- memories: owner and inline contributor; a deleted memory does not come back.
-- +goose StatementBegin
-- Every row that is added comes by here, and nearly every statement adds rows of
-- one conversation of one user: those are asked about once, in two queries, and
-- guard is called only when somebody holds the lock or is not known. The oldest
-- row speaks for all.
CREATE FUNCTION memd.guard_memories_insert() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  t bigint; s bigint; x bigint; m timestamptz;
  ref bytea;
  alike boolean;
  sound boolean;
  code text;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'isolation above READ COMMITTED is refused: it could not see a fence' USING ERRCODE = 'MD007';
  END IF;
  SELECT v.t, v.s, v.x, v.m, v.alike, v.sound, o.user_ref INTO t, s, x, m, alike, sound, ref
  FROM (SELECT min(n.tenant_no) AS t, min(n.owner_no) AS s, min(n.contributor_session) AS x,
          CASE WHEN bool_and(n.source_time IS NOT NULL) THEN min(n.source_time) END AS m,
          min(n.tenant_no) = max(n.tenant_no) AND bool_and(n.owner_no = n.contributor_no)
            AND min(n.owner_no) = max(n.owner_no) AND min(n.contributor_session) = max(n.contributor_session) AS alike,
          bool_and(n.kind BETWEEN 1 AND 3 AND n.month > 0 AND n.version > 0 AND n.more_contributions BETWEEN 0 AND 1023
            AND n.dimension >= 0 AND (n.dimension > 0) = (n.sealed_vector IS NOT NULL)
            AND (n.sealed_text IS NOT NULL OR n.sealed_vector IS NOT NULL)) AS sound
        FROM new_rows n OFFSET 0) v
  LEFT JOIN memd.subjects o ON o.tenant_no = v.t AND o.subject_no = v.s;
  IF t IS NULL THEN
    RETURN NULL;
  END IF;
  IF NOT sound THEN
    RAISE EXCEPTION 'a row is not as rows must be' USING ERRCODE = '23514';
  END IF;
  IF NOT alike THEN
    PERFORM memd.guard(array_agg(v.t), array_agg(v.s), array_agg(v.x), array_agg(v.m), true) FROM (
      SELECT n.tenant_no AS t, n.owner_no AS s, NULL::bigint AS x, n.source_time AS m FROM new_rows n
      UNION SELECT n.tenant_no, n.contributor_no, n.contributor_session, n.source_time FROM new_rows n
    ) v;
  ELSIF ref IS NULL OR NOT memd.try_lock(memd.lock_hi(ref), memd.lock_lo(ref)) THEN
    PERFORM memd.guard(ARRAY[t], ARRAY[s], ARRAY[x], ARRAY[m], true);
  ELSE
    SELECT v.code INTO code FROM memd.refusals(t, s, x, m, true) v;
  END IF;
  IF code IS NULL THEN
    SELECT v.code INTO code FROM (
      SELECT 'MD003' AS code FROM new_rows n JOIN memd.tombstones d
        ON d.tenant_no = n.tenant_no AND d.kind = 3 AND d.ref = uuid_send(n.memory_id) AND d.through_version >= n.version
      UNION ALL SELECT 'MD010' FROM (SELECT DISTINCT n.tenant_no, n.month FROM new_rows n) n
        WHERE EXISTS (SELECT FROM memd.month_gone(n.tenant_no, 1::smallint, n.month))
    ) v LIMIT 1;
  END IF;
  IF code IS NOT NULL THEN
    RAISE EXCEPTION 'refused by the guard' USING ERRCODE = code;
  END IF;
  RETURN NULL;
END $$;
CREATE FUNCTION memd.guard_memories_update() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  t bigint[]; s bigint[]; x bigint[]; m timestamptz[];
  grown bigint;
BEGIN
  SELECT array_agg(v.t), array_agg(v.s), array_agg(v.x), array_agg(v.m) INTO t, s, x, m FROM (
    SELECT n.tenant_no AS t, n.owner_no AS s, NULL::bigint AS x, n.source_time AS m FROM new_rows n
    UNION SELECT n.tenant_no, n.contributor_no, n.contributor_session, n.source_time FROM new_rows n
    UNION SELECT o.tenant_no, o.owner_no, NULL::bigint, o.source_time FROM old_rows o
    UNION SELECT o.tenant_no, o.contributor_no, o.contributor_session, o.source_time FROM old_rows o
    UNION SELECT c.tenant_no, c.contributor_no, c.contributor_session, n.source_time
          FROM new_rows n JOIN memd.memory_contributions c
          ON c.tenant_no = n.tenant_no AND c.memory_id = n.memory_id
  ) v;
  IF t IS NULL THEN
    RETURN NULL;
  END IF;
  IF NOT (SELECT bool_and(n.kind BETWEEN 1 AND 3 AND n.month > 0 AND n.version > 0 AND n.more_contributions BETWEEN 0 AND 1023
            AND n.dimension >= 0 AND (n.dimension > 0) = (n.sealed_vector IS NOT NULL)
            AND (n.sealed_text IS NOT NULL OR n.sealed_vector IS NOT NULL)) FROM new_rows n) THEN
    RAISE EXCEPTION 'a row is not as rows must be' USING ERRCODE = '23514';
  END IF;
  -- What a tenant that is full may still write is less.
  SELECT sum(u.b) INTO grown FROM (
    SELECT coalesce(octet_length(n.sealed_text), 0) + coalesce(octet_length(n.sealed_vector), 0) + coalesce(octet_length(n.sealed_metadata), 0) AS b FROM new_rows n
    UNION ALL
    SELECT -coalesce(octet_length(o.sealed_text), 0) - coalesce(octet_length(o.sealed_vector), 0) - coalesce(octet_length(o.sealed_metadata), 0) FROM old_rows o
  ) u;
  PERFORM memd.guard(t, s, x, m, grown > 0);
  IF EXISTS (SELECT FROM (SELECT n.tenant_no, n.month FROM new_rows n UNION SELECT o.tenant_no, o.month FROM old_rows o) u
             WHERE EXISTS (SELECT FROM memd.month_gone(u.tenant_no, 1::smallint, u.month))) THEN
    RAISE EXCEPTION 'refused by the guard' USING ERRCODE = 'MD010';
  END IF;
  -- What an update replaced must not come back with a restore.
  INSERT INTO memd.tombstones AS d (tenant_no, kind, ref, owner_no, through_version, changed_xid, recorded_at)
  SELECT o.tenant_no, 3, uuid_send(o.memory_id), o.owner_no, o.version, pg_current_xact_id()::text::bigint, now()
  FROM old_rows o JOIN new_rows n ON n.tenant_no = o.tenant_no AND n.memory_id = o.memory_id
  WHERE n.content_digest <> o.content_digest
  ON CONFLICT (tenant_no, kind, ref) DO UPDATE SET through_version = greatest(d.through_version, excluded.through_version);
  RETURN NULL;
END $$;
-- Further contributions: the contributor, and the row that they go into.
CREATE FUNCTION memd.guard_contributions() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  t bigint[]; s bigint[]; x bigint[]; m timestamptz[];
BEGIN
  SELECT array_agg(v.t), array_agg(v.s), array_agg(v.x), array_agg(v.m) INTO t, s, x, m FROM (
    SELECT n.tenant_no AS t, n.contributor_no AS s, n.contributor_session AS x, r.source_time AS m
    FROM new_rows n JOIN memd.memories r ON r.tenant_no = n.tenant_no AND r.memory_id = n.memory_id
    UNION SELECT r.tenant_no, r.owner_no, NULL::bigint, r.source_time
    FROM new_rows n JOIN memd.memories r ON r.tenant_no = n.tenant_no AND r.memory_id = n.memory_id
  ) v;
  IF t IS NOT NULL THEN
    PERFORM memd.guard(t, s, x, m, true);
  END IF;
  RETURN NULL;
END $$;
-- Lineage: the row that it is of, and the session that it names.
CREATE FUNCTION memd.guard_sources() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  t bigint[]; s bigint[]; x bigint[]; m timestamptz[];
BEGIN
  SELECT array_agg(v.t), array_agg(v.s), array_agg(v.x), array_agg(v.m) INTO t, s, x, m FROM (
    SELECT n.tenant_no AS t, n.source_subject AS s, n.source_session AS x, r.source_time AS m
    FROM new_rows n JOIN memd.memories r ON r.tenant_no = n.tenant_no AND r.memory_id = n.memory_id
    WHERE n.source_subject IS NOT NULL
    UNION SELECT r.tenant_no, r.owner_no, NULL::bigint, r.source_time
    FROM new_rows n JOIN memd.memories r ON r.tenant_no = n.tenant_no AND r.memory_id = n.memory_id
    UNION SELECT r.tenant_no, r.contributor_no, r.contributor_session, r.source_time
    FROM new_rows n JOIN memd.memories r ON r.tenant_no = n.tenant_no AND r.memory_id = n.memory_id
  ) v;
  IF t IS NOT NULL THEN
    PERFORM memd.guard(t, s, x, m, true);
  END IF;
  RETURN NULL;
END $$;
-- Admission: subjects are checked by their ref, because nobody else vouches
-- for it; sessions also by their own ref. A user who was once erased must say
-- when the words that they are admitted for were spoken: a late write that is
-- refused must not leave them, their sealed id, in the directory again.
CREATE FUNCTION memd.guard_subjects() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  refs bytea[];
  code text;
BEGIN
  SELECT array_agg(DISTINCT n.user_ref) INTO refs FROM new_rows n;
  IF refs IS NULL THEN
    RETURN NULL;
  END IF;
  FOR i IN 1..2 LOOP
    IF i = 1 AND memd.lock_refs(refs) THEN
      CONTINUE;
    END IF;
    SELECT v.code INTO code FROM (
      SELECT CASE
        WHEN t.state IS DISTINCT FROM 2::smallint THEN 'MD004'
        WHEN f.state IN (1, 2) THEN 'MD001'
        WHEN f.erased_before IS NOT NULL AND n.first_source_time IS NULL THEN 'MD012'
        WHEN f.erased_before > n.first_source_time THEN 'MD005'
        WHEN t.full_up THEN 'MD023'
      END AS code
      FROM new_rows n
      LEFT JOIN memd.tenants t ON t.tenant_no = n.tenant_no
      LEFT JOIN memd.fences f ON f.tenant_no = n.tenant_no AND f.user_ref = n.user_ref
    ) v WHERE v.code IS NOT NULL ORDER BY v.code LIMIT 1;
    IF code IS NOT NULL THEN
      RAISE EXCEPTION 'refused by the guard' USING ERRCODE = code;
    END IF;
    IF i = 1 THEN
      PERFORM memd.wait_refs(refs);
    END IF;
  END LOOP;
  RETURN NULL;
END $$;
CREATE FUNCTION memd.guard_sessions() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  t bigint[]; s bigint[]; x bigint[]; m timestamptz[];
BEGIN
  SELECT array_agg(n.tenant_no), array_agg(n.subject_no), array_agg(n.session_no), array_agg(n.first_source_time)
  INTO t, s, x, m FROM new_rows n;
  IF t IS NOT NULL THEN
    PERFORM memd.guard(t, s, x, m, true);
  END IF;
  RETURN NULL;
END $$;
-- +goose StatementEnd

CREATE TRIGGER guard_insert AFTER INSERT ON memd.memories REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION memd.guard_memories_insert();
CREATE TRIGGER guard_update AFTER UPDATE ON memd.memories REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION memd.guard_memories_update();
CREATE TRIGGER guard_insert AFTER INSERT ON memd.memory_contributions REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION memd.guard_contributions();
-- What the schema's own triggers write, as its owner, goes through: a row that
-- is deleted must not be held up by a fence of whoever derived from it.
CREATE TRIGGER guard_insert AFTER INSERT ON memd.memory_sources REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT WHEN (NOT pg_catalog.has_table_privilege('memd.memory_sources', 'TRUNCATE'))
  EXECUTE FUNCTION memd.guard_sources();
CREATE TRIGGER guard_insert AFTER INSERT ON memd.subjects REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION memd.guard_subjects();
CREATE TRIGGER guard_insert AFTER INSERT ON memd.sessions REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION memd.guard_sessions();

-- Readers follow a scope by the transaction that last changed each row, so it
-- is set here, for every writer alike, and so is the version.
-- +goose StatementBegin
CREATE FUNCTION memd.stamp_memory() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  NEW.changed_xid := pg_current_xact_id()::text::bigint;
  IF TG_OP = 'UPDATE' THEN
    NEW.version := OLD.version + 1;
  END IF;
  RETURN NEW;
END $$;
-- A delete leaves a tombstone, whoever deletes. Rows that an erasure deletes
-- are covered by its hides already, and those of a month that has expired by the
-- month's; what the sweep deletes was never returned any more, and leaves none, or
-- every row that expires would leave one for ever.
CREATE FUNCTION memd.bury_memories() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO memd.tombstones AS d (tenant_no, kind, ref, owner_no, through_version, changed_xid, recorded_at)
  SELECT o.tenant_no, 3, uuid_send(o.memory_id), o.owner_no, 9223372036854775807, pg_current_xact_id()::text::bigint, now()
  FROM (SELECT DISTINCT r.tenant_no, r.owner_no, r.contributor_no, r.contributor_session, r.month FROM old_rows r OFFSET 0) g
  JOIN old_rows o ON (o.tenant_no, o.owner_no, o.contributor_no, o.contributor_session, o.month)
    = (g.tenant_no, g.owner_no, g.contributor_no, g.contributor_session, g.month)
  WHERE NOT EXISTS (SELECT FROM memd.month_gone(g.tenant_no, 1::smallint, g.month))
    AND NOT EXISTS (SELECT FROM memd.hides h
                    WHERE h.tenant_no = g.tenant_no AND h.owner_no = g.owner_no
                      AND h.contributor_no IN (g.contributor_no, g.owner_no)
                      AND h.contributor_session = 0)
    AND NOT EXISTS (SELECT FROM memd.hides h
                    WHERE h.tenant_no = g.tenant_no AND h.owner_no = g.owner_no
                      AND h.contributor_no = g.contributor_no
                      AND h.contributor_session = g.contributor_session)
    AND (o.expires_at IS NULL OR o.expires_at > now() OR coalesce(current_setting('memd.sweep', true), '') <> 'on')
  ON CONFLICT (tenant_no, kind, ref) DO UPDATE SET
    through_version = excluded.through_version, changed_xid = excluded.changed_xid;
  RETURN NULL;
END $$;
-- +goose StatementEnd
-- When a derived row goes and what was derived from it stays, that stays derived
-- from the sources of the row that went: deleting one of those with everything
-- derived from it must still reach it.
-- +goose StatementBegin
CREATE FUNCTION memd.bridge_sources() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM old_rows) THEN
    RETURN NULL;
  END IF;
  -- Held, because the foreign key would fail on one that goes at the same time.
  WITH heirs AS MATERIALIZED (
    SELECT m.tenant_no, m.memory_id FROM memd.memories m
    WHERE (m.tenant_no, m.memory_id) IN (
      SELECT s.tenant_no, s.memory_id FROM old_rows o
      JOIN memd.memory_sources s ON s.tenant_no = o.tenant_no AND s.source_memory = o.memory_id)
    ORDER BY m.memory_id FOR KEY SHARE OF m
  )
  INSERT INTO memd.memory_sources (tenant_no, memory_id, ordinal, source_memory, source_subject, source_session)
  SELECT b.tenant_no, b.memory_id, b.last + row_number() OVER (PARTITION BY b.tenant_no, b.memory_id),
    b.source_memory, b.source_subject, b.source_session
  FROM (
    SELECT DISTINCT s.tenant_no, s.memory_id, o.source_memory, o.source_subject, o.source_session,
      (SELECT max(x.ordinal) FROM memd.memory_sources x WHERE x.tenant_no = s.tenant_no AND x.memory_id = s.memory_id) AS last
    FROM old_rows o
    JOIN memd.memory_sources s ON s.tenant_no = o.tenant_no AND s.source_memory = o.memory_id
    JOIN heirs m ON m.tenant_no = s.tenant_no AND m.memory_id = s.memory_id
    WHERE NOT EXISTS (
      SELECT FROM memd.memory_sources h WHERE h.tenant_no = s.tenant_no AND h.memory_id = s.memory_id
        AND h.source_memory IS NOT DISTINCT FROM o.source_memory
        AND h.source_subject IS NOT DISTINCT FROM o.source_subject
        AND h.source_session IS NOT DISTINCT FROM o.source_session)
  ) b;
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER bridge AFTER DELETE ON memd.memory_sources REFERENCING OLD TABLE AS old_rows
  FOR EACH STATEMENT EXECUTE FUNCTION memd.bridge_sources();
CREATE TRIGGER stamp BEFORE INSERT OR UPDATE ON memd.memories FOR EACH ROW EXECUTE FUNCTION memd.stamp_memory();
CREATE TRIGGER bury AFTER DELETE ON memd.memories REFERENCING OLD TABLE AS old_rows
  FOR EACH STATEMENT EXECUTE FUNCTION memd.bury_memories();

-- At commit a row has exactly the contributions that it claims.
-- +goose StatementBegin
CREATE FUNCTION memd.check_contributions() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  want bigint;
  have bigint;
BEGIN
  SELECT m.more_contributions INTO want FROM memd.memories m
  WHERE m.tenant_no = NEW.tenant_no AND m.memory_id = NEW.memory_id;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  SELECT count(*) INTO have FROM memd.memory_contributions c
  WHERE c.tenant_no = NEW.tenant_no AND c.memory_id = NEW.memory_id;
  IF want <> have THEN
    RAISE EXCEPTION 'a row must have the contributions that it claims' USING ERRCODE = 'MD008';
  END IF;
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE CONSTRAINT TRIGGER has_contributions_insert AFTER INSERT ON memd.memories
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.more_contributions <> 0)
  EXECUTE FUNCTION memd.check_contributions();
CREATE CONSTRAINT TRIGGER has_contributions_update AFTER UPDATE ON memd.memories
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.more_contributions <> 0 OR OLD.more_contributions <> 0)
  EXECUTE FUNCTION memd.check_contributions();
CREATE CONSTRAINT TRIGGER has_contributions AFTER INSERT OR UPDATE ON memd.memory_contributions
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION memd.check_contributions();

-- check_sources holds the sources of a derived row still while it is written:
-- present, and at the version that was read.
-- +goose StatementBegin
CREATE FUNCTION memd.check_sources(p_tenant bigint, p_ids uuid[], p_versions bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n bigint;
BEGIN
  SELECT count(*) INTO n FROM (
    SELECT m.memory_id, m.version FROM memd.memories m
    WHERE m.tenant_no = p_tenant AND m.memory_id = ANY (p_ids)
    ORDER BY m.memory_id FOR SHARE
  ) m JOIN unnest(p_ids, p_versions) AS u (id, version) ON u.id = m.memory_id AND u.version = m.version;
  IF n <> cardinality(p_ids) THEN
    RAISE EXCEPTION 'a source is gone or has changed' USING ERRCODE = 'MD009';
  END IF;
END $$;
-- +goose StatementEnd

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA memd FROM PUBLIC;
-- Firing a trigger needs no grant on its function; creating one would.
GRANT EXECUTE ON FUNCTION memd.enter(bigint, bigint[]), memd.check_sources(bigint, uuid[], bigint[]),
  memd.next_subject_no(bigint), memd.next_session_nos(bigint, bigint, bigint), memd.authenticate(bytea),
  memd.scope_head(bigint, bytea, bigint, bigint, bytea, xid[])
  TO memd_app, memd_worker;

-- +goose Down
DROP TRIGGER guard_insert ON memd.memories;
DROP TRIGGER guard_update ON memd.memories;
DROP TRIGGER stamp ON memd.memories;
DROP TRIGGER bury ON memd.memories;
DROP TRIGGER bridge ON memd.memory_sources;
DROP TRIGGER has_contributions_insert ON memd.memories;
DROP TRIGGER has_contributions_update ON memd.memories;
DROP TRIGGER guard_insert ON memd.memory_contributions;
DROP TRIGGER has_contributions ON memd.memory_contributions;
DROP TRIGGER guard_insert ON memd.memory_sources;
DROP TRIGGER guard_insert ON memd.subjects;
DROP TRIGGER guard_insert ON memd.sessions;
DROP FUNCTION memd.check_sources(bigint, uuid[], bigint[]), memd.check_contributions(), memd.bury_memories(), memd.bridge_sources(),
  memd.stamp_memory(), memd.guard_sessions(), memd.guard_subjects(), memd.guard_sources(), memd.guard_contributions(),
  memd.guard_memories_update(), memd.guard_memories_insert(), memd.enter(bigint, bigint[]),
  memd.guard(bigint[], bigint[], bigint[], timestamptz[], boolean), memd.refusals(bigint, bigint, bigint, timestamptz, boolean),
  memd.wait_refs(bytea[]), memd.lock_refs(bytea[]),
  memd.try_lock(integer, integer), memd.lock_lo(bytea), memd.lock_hi(bytea);
