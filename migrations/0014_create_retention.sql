-- +goose Up

-- Retention: a tenant's policy says, for each class, for how many months it is
-- kept, the current one included, and not before when anything of it may go.

-- month_refusal says why a month may not be expired, or NULL: for_ever, in_window,
-- not_before or held. A month whose key is gone is beyond refusing: p_request, which
-- expired it, goes on. A hold of a user keeps every month in which there is anything
-- of theirs. Nobody makes it later than it is. Whoever acts on the answer holds
-- memd.hold_lock: holds are set, and policies changed, behind it.
-- +goose StatementBegin
CREATE FUNCTION memd.month_refusal(p_tenant bigint, p_class smallint, p_month integer, p_request uuid, p_now timestamptz) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  at timestamptz := least(p_now, clock_timestamp());
  prefix text := CASE p_class WHEN 0 THEN 'session' ELSE 'memory' END;
  policy jsonb;
  months integer;
BEGIN
  IF EXISTS (SELECT FROM memd.punctures p WHERE p.tenant_no = p_tenant AND p.request_id = p_request AND p.epoch IS NOT NULL) THEN
    RETURN NULL;
  END IF;
  SELECT t.policy INTO policy FROM memd.tenants t WHERE t.tenant_no = p_tenant;
  months := (policy ->> (prefix || '_months'))::integer;
  RETURN CASE
    WHEN coalesce(months, 0) < 1 THEN 'for_ever'
    WHEN p_month > (extract(year FROM at AT TIME ZONE 'UTC') - 1970) * 12 + extract(month FROM at AT TIME ZONE 'UTC') - months THEN 'in_window'
    WHEN nullif(policy ->> (prefix || '_not_before'), '')::timestamptz > at THEN 'not_before'
    WHEN EXISTS (
      SELECT FROM memd.holds h
      LEFT JOIN memd.subjects s ON s.tenant_no = h.tenant_no AND s.user_ref = h.user_ref
      WHERE h.tenant_no = p_tenant AND h.released_at IS NULL AND (h.kind = 4 OR memd.has_month(p_tenant, s.subject_no, p_class, p_month)))
    THEN 'held'
  END;
END $$;
-- has_month says whether there is anything of a subject's in a month.
CREATE FUNCTION memd.has_month(p_tenant bigint, p_subject bigint, p_class smallint, p_month integer) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE p_class WHEN 0 THEN
    EXISTS (SELECT FROM memd.session_heads h WHERE h.tenant_no = p_tenant AND h.subject_no = p_subject AND h.month = p_month)
    OR EXISTS (SELECT FROM memd.artifact_versions v WHERE v.tenant_no = p_tenant AND v.subject_no = p_subject
               AND v.session_no <> 1099511627777 AND v.month = p_month)
  ELSE
    EXISTS (SELECT FROM memd.memories m WHERE m.tenant_no = p_tenant AND m.month = p_month AND p_subject IN (m.owner_no, m.contributor_no))
    OR EXISTS (SELECT FROM memd.memory_contributions c JOIN memd.memories m ON m.tenant_no = c.tenant_no AND m.memory_id = c.memory_id
               WHERE c.tenant_no = p_tenant AND c.contributor_no = p_subject AND m.month = p_month)
  END
$$;

-- Nobody but the schema's owner, who restores, accepts that a month expires which
-- is to be kept.
CREATE FUNCTION memd.refuse_kept_month() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(memd.hold_lock(NEW.tenant_no));
  IF memd.month_refusal(NEW.tenant_no, NEW.class, NEW.month, NEW.request_id, NEW.accepted_at) IS NOT NULL
    OR NOT EXISTS (SELECT FROM memd.tenants t WHERE t.tenant_no = NEW.tenant_no AND t.state BETWEEN 2 AND 5) THEN
    RAISE EXCEPTION 'the month is to be kept' USING ERRCODE = 'MD030';
  END IF;
  RETURN NEW;
END $$;

-- What went with a partition, tenant by tenant: whoever dropped it, each of them
-- reports its own.
CREATE TABLE memd.dropped_events (
  tenant_no bigint NOT NULL,
  month     integer NOT NULL,
  events    bigint NOT NULL CHECK (events > 0),
  PRIMARY KEY (tenant_no, month)
);
GRANT SELECT ON memd.dropped_events TO memd_worker;

-- drop_event_month drops the partition of a month when every tenant that has
-- anything in it has expired it, key and all, and says what became of it: dropped;
-- absent; kept, by somebody who is not to expire it; waits, for somebody whose key
-- has not gone yet; or busy, which is how it is while somebody reads the table for
-- long. Step 6 of an erasure is the rotation.
CREATE FUNCTION memd.drop_event_month(p_month integer) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  name text := 'session_events_' || p_month;
  verdict text;
BEGIN
  IF to_regclass('memd.' || name) IS NULL THEN
    RETURN 'absent';
  END IF;
  WITH RECURSIVE having_events AS (
    (SELECT e.tenant_no FROM memd.session_events e WHERE e.month = p_month ORDER BY e.tenant_no LIMIT 1)
    UNION ALL
    SELECT (SELECT e.tenant_no FROM memd.session_events e WHERE e.month = p_month AND e.tenant_no > h.tenant_no ORDER BY e.tenant_no LIMIT 1)
    FROM having_events h WHERE h.tenant_no IS NOT NULL
  ), having_anything AS (
    SELECT tenant_no FROM having_events WHERE tenant_no IS NOT NULL
    UNION SELECT h.tenant_no FROM memd.session_heads h WHERE h.month = p_month
  )
  SELECT CASE WHEN bool_or(x.request_id IS NULL) THEN 'kept' WHEN bool_or(s.step IS NULL) THEN 'waits' END INTO verdict
  FROM having_anything a
  LEFT JOIN memd.tombstones x ON x.tenant_no = a.tenant_no AND x.kind = 4 AND x.ref = memd.month_ref(0::smallint, p_month)
  LEFT JOIN memd.erasure_steps s ON s.tenant_no = x.tenant_no AND s.request_id = x.request_id AND s.step = 6 AND s.done;
  IF verdict IS NOT NULL THEN
    RETURN verdict;
  END IF;
  -- A lock that is waited for keeps everybody else waiting.
  PERFORM set_config('lock_timeout', '200ms', true);
  -- Nobody deletes while it is counted; who reads may go on.
  EXECUTE format('LOCK TABLE memd.%I IN SHARE ROW EXCLUSIVE MODE', name);
  EXECUTE format('INSERT INTO memd.dropped_events AS d (tenant_no, month, events)
    SELECT e.tenant_no, e.month, count(*) FROM memd.%I e GROUP BY e.tenant_no, e.month
    ON CONFLICT (tenant_no, month) DO UPDATE SET events = d.events + EXCLUDED.events', name);
  EXECUTE format('DROP TABLE memd.%I', name);
  RETURN 'dropped';
EXCEPTION WHEN lock_not_available THEN
  RETURN 'busy';
END $$;

-- delete_month deletes what is left of a month whose tombstone came back with a
-- restore.
CREATE FUNCTION memd.delete_month(p_tenant bigint, p_class smallint, p_month integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n bigint := 0;
BEGIN
  IF p_class = 1 THEN
    DELETE FROM memd.memories WHERE tenant_no = p_tenant AND month = p_month;
    GET DIAGNOSTICS n = ROW_COUNT;
    RETURN n;
  END IF;
  DELETE FROM memd.artifact_chunks c USING memd.artifact_versions v
  WHERE v.tenant_no = p_tenant AND v.month = p_month AND v.session_no <> 1099511627777
    AND c.tenant_no = v.tenant_no AND c.subject_no = v.subject_no AND c.session_no = v.session_no AND c.version_id = v.version_id;
  DELETE FROM memd.artifact_versions WHERE tenant_no = p_tenant AND month = p_month AND session_no <> 1099511627777;
  DELETE FROM memd.artifacts a WHERE a.tenant_no = p_tenant AND a.month = p_month AND a.session_no <> 1099511627777
    AND NOT EXISTS (SELECT FROM memd.artifact_versions v WHERE v.tenant_no = a.tenant_no AND v.subject_no = a.subject_no
                    AND v.session_no = a.session_no AND v.artifact_id = a.artifact_id);
  DELETE FROM memd.session_events WHERE tenant_no = p_tenant AND month = p_month;
  GET DIAGNOSTICS n = ROW_COUNT;
  DELETE FROM memd.session_state WHERE tenant_no = p_tenant AND month = p_month;
  DELETE FROM memd.session_heads WHERE tenant_no = p_tenant AND month = p_month;
  RETURN n;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION memd.month_refusal(bigint, smallint, integer, uuid, timestamptz), memd.has_month(bigint, bigint, smallint, integer),
  memd.refuse_kept_month(), memd.drop_event_month(integer), memd.delete_month(bigint, smallint, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION memd.month_refusal(bigint, smallint, integer, uuid, timestamptz) TO memd_app, memd_worker;
GRANT EXECUTE ON FUNCTION memd.drop_event_month(integer) TO memd_worker;

CREATE TRIGGER keeps_months BEFORE INSERT ON memd.erasures FOR EACH ROW
  WHEN (NEW.kind = 5 AND NOT pg_catalog.has_table_privilege('memd.erasures', 'TRUNCATE')) EXECUTE FUNCTION memd.refuse_kept_month();

-- +goose Down
DROP TRIGGER keeps_months ON memd.erasures;
DROP FUNCTION memd.delete_month(bigint, smallint, integer), memd.drop_event_month(integer), memd.refuse_kept_month(),
  memd.month_refusal(bigint, smallint, integer, uuid, timestamptz), memd.has_month(bigint, bigint, smallint, integer);
DROP TABLE memd.dropped_events;
