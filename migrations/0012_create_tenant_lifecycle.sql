-- +goose Up

-- Who took a tenant from one state to another, when and why. What somebody gave as
-- the reason is sealed under the tenant's keys; reason is what memd itself says.
-- principal_id is the API key that asked, and null for what the worker does by
-- itself.
CREATE TABLE memd.tenant_transitions (
  tenant_no     bigint      NOT NULL,
  at            timestamptz NOT NULL,
  from_state    smallint    NOT NULL,
  to_state      smallint    NOT NULL,
  principal_id  uuid,
  reason        text        NOT NULL CHECK (octet_length(reason) <= 100),
  sealed_reason bytea       CHECK (octet_length(sealed_reason) BETWEEN 1 AND 2048),
  CHECK ((reason = '') = (sealed_reason IS NOT NULL))
);
CREATE INDEX tenant_transitions_tenant ON memd.tenant_transitions (tenant_no, at);
GRANT SELECT ON memd.tenant_transitions TO memd_app, memd_worker;

-- Consents to a tenant's purge. digest is that of the dry run that was shown to
-- the approver; request_id is the purge that it was spent on, once.
CREATE TABLE memd.approvals (
  tenant_no   bigint      NOT NULL,
  approval_id uuid        NOT NULL,
  digest      bytea       NOT NULL CHECK (octet_length(digest) = 32),
  approved_by uuid        NOT NULL,
  approved_at timestamptz NOT NULL,
  expires_at  timestamptz NOT NULL,
  request_id  uuid,
  voided_at   timestamptz,
  PRIMARY KEY (tenant_no, approval_id),
  CHECK (expires_at > approved_at),
  CHECK (request_id IS NULL OR voided_at IS NULL)
);
CREATE UNIQUE INDEX approvals_request ON memd.approvals (tenant_no, request_id);
GRANT SELECT ON memd.approvals TO memd_app, memd_worker;

-- take_tenant is the only way from state to state, with its entry in the log.
-- False when the tenant was there already; MD004 when no way leads there. Nobody
-- may call it: the functions after it say who may go which way.
-- +goose StatementBegin
CREATE FUNCTION memd.take_tenant(p_tenant bigint, p_to smallint, p_by uuid, p_reason text, p_sealed bytea, p_now timestamptz)
RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  before smallint;
BEGIN
  SELECT t.state INTO before FROM memd.tenants t WHERE t.tenant_no = p_tenant FOR UPDATE;
  IF before = p_to THEN
    RETURN false;
  END IF;
  IF before IS NULL OR (before, p_to) NOT IN (
    (1, 2),                 -- its keys are there
    (2, 3), (3, 4), (3, 5), (4, 5), -- suspended, exporting, drained
    (3, 2), (4, 2), (5, 2), (4, 3), (5, 3), (5, 4), -- and back
    (5, 6), (6, 7)          -- purging, purged
  ) THEN
    RAISE EXCEPTION 'no way leads from the tenant''s state to this one' USING ERRCODE = 'MD004';
  END IF;
  UPDATE memd.tenants t SET state = p_to, updated_at = p_now WHERE t.tenant_no = p_tenant;
  INSERT INTO memd.tenant_transitions (tenant_no, at, from_state, to_state, principal_id, reason, sealed_reason)
  VALUES (p_tenant, p_now, before, p_to, p_by, p_reason, p_sealed);
  RETURN true;
END $$;

-- move_tenant goes the ways of the reversible phase, for the application. A
-- tenant that is not set up, and one whose purge was accepted, though a legal
-- hold may have kept it from beginning, is MD004. Leaving drained voids consents.
CREATE FUNCTION memd.move_tenant(p_tenant bigint, p_to smallint, p_by uuid, p_reason bytea, p_now timestamptz)
RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  -- Whoever accepts a purge holds it shared.
  PERFORM pg_advisory_xact_lock(memd.hold_lock(p_tenant));
  IF p_to NOT BETWEEN 2 AND 5
    OR EXISTS (SELECT FROM memd.tenants t WHERE t.tenant_no = p_tenant AND t.state NOT BETWEEN 2 AND 5)
    OR EXISTS (SELECT FROM memd.erasures e WHERE e.tenant_no = p_tenant AND e.kind = 4 AND e.state < 3) THEN
    RAISE EXCEPTION 'the tenant is not in the reversible phase' USING ERRCODE = 'MD004';
  END IF;
  IF NOT memd.take_tenant(p_tenant, p_to, p_by, '', p_reason, p_now) THEN
    RETURN false;
  END IF;
  UPDATE memd.approvals a SET voided_at = p_now
  WHERE a.tenant_no = p_tenant AND a.request_id IS NULL AND a.voided_at IS NULL;
  RETURN true;
END $$;

-- activate_tenant, begin_purge and end_purge are the worker's. A tenant without
-- a key tree is not activated: it would refuse every call with a fault instead of
-- a reason.
CREATE FUNCTION memd.activate_tenant(p_tenant bigint, p_now timestamptz)
RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM memd.tenant_keys k WHERE k.tenant_no = p_tenant) THEN
    RAISE EXCEPTION 'the tenant has no keys' USING ERRCODE = 'MD004';
  END IF;
  IF EXISTS (SELECT FROM memd.tenants t WHERE t.tenant_no = p_tenant AND t.state > 2 FOR UPDATE) THEN
    RAISE EXCEPTION 'the tenant is past being activated' USING ERRCODE = 'MD004';
  END IF;
  RETURN memd.take_tenant(p_tenant, 2::smallint, NULL, 'its keys are made', NULL, p_now);
END $$;

-- begin_purge takes a tenant past the point of no return, on account of a
-- request that was accepted and approved. The request is taken for the tenant's:
-- whoever accepts one calls it too.
CREATE FUNCTION memd.begin_purge(p_tenant bigint, p_request uuid, p_now timestamptz)
RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  requester uuid;
BEGIN
  SELECT e.requested_by INTO requester FROM memd.erasures e
  JOIN memd.approvals a ON a.tenant_no = e.tenant_no AND a.request_id = e.request_id AND a.approved_by IS DISTINCT FROM e.requested_by
  WHERE e.tenant_no = p_tenant AND e.request_id = p_request AND e.kind = 4;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'nobody but the requester has approved it' USING ERRCODE = 'MD013';
  END IF;
  RETURN memd.take_tenant(p_tenant, 6::smallint, requester, 'purge ' || p_request, NULL, p_now);
END $$;
CREATE FUNCTION memd.end_purge(p_tenant bigint, p_now timestamptz)
RETURNS boolean LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT memd.take_tenant(p_tenant, 7::smallint, NULL, 'everything is gone', NULL, p_now)
$$;

-- give_up_tenant ends a tenant whose keys are lost, from whatever state, with its
-- API keys. For the owner alone: nobody can open what it had, or seal a reason.
CREATE FUNCTION memd.give_up_tenant(p_tenant bigint, p_now timestamptz)
RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  before smallint;
BEGIN
  SELECT t.state INTO before FROM memd.tenants t WHERE t.tenant_no = p_tenant FOR UPDATE;
  IF before IS NULL OR before = 7 THEN
    RETURN false;
  END IF;
  DELETE FROM memd.principals p WHERE p.tenant_no = p_tenant;
  UPDATE memd.tenants t SET state = 7, updated_at = p_now WHERE t.tenant_no = p_tenant;
  INSERT INTO memd.tenant_transitions (tenant_no, at, from_state, to_state, reason)
  VALUES (p_tenant, p_now, before, 7, 'its keys are lost for good');
  RETURN true;
END $$;

-- approve_purge records a consent: of a key with the role approver (16) that
-- belongs to no tenant, to the purge of a tenant that is drained.
CREATE FUNCTION memd.approve_purge(p_tenant bigint, p_id uuid, p_digest bytea, p_by uuid, p_now timestamptz, p_expires timestamptz)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(memd.hold_lock(p_tenant));
  IF NOT EXISTS (SELECT FROM memd.tenants t WHERE t.tenant_no = p_tenant AND t.state = 5) THEN
    RAISE EXCEPTION 'the tenant is not drained' USING ERRCODE = 'MD004';
  END IF;
  IF NOT memd.may_approve(p_by) THEN
    RAISE EXCEPTION 'the key may not approve' USING ERRCODE = '42501';
  END IF;
  INSERT INTO memd.approvals (tenant_no, approval_id, digest, approved_by, approved_at, expires_at)
  VALUES (p_tenant, p_id, p_digest, p_by, p_now, p_expires);
END $$;
CREATE FUNCTION memd.may_approve(p_key uuid) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (SELECT FROM memd.principals p
    WHERE p.key_id = p_key AND p.tenant_no IS NULL AND p.revoked_at IS NULL AND p.roles & 16 <> 0)
$$;
-- void_approval takes a consent back that was not spent.
CREATE FUNCTION memd.void_approval(p_tenant bigint, p_id uuid, p_now timestamptz)
RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE memd.approvals a SET voided_at = p_now
  WHERE a.tenant_no = p_tenant AND a.approval_id = p_id AND a.request_id IS NULL AND a.voided_at IS NULL;
  RETURN FOUND;
END $$;
-- spend_approval spends a consent on a request, in the transaction that accepts
-- it: one that is good still, of a key that is good still and not the
-- requester's, to what the tenant is now. MD013 when there is none.
CREATE FUNCTION memd.spend_approval(p_tenant bigint, p_request uuid, p_digest bytea, p_by uuid, p_now timestamptz)
RETURNS uuid LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  id uuid;
BEGIN
  UPDATE memd.approvals a SET request_id = p_request
  WHERE a.tenant_no = p_tenant AND a.approval_id = (
    SELECT b.approval_id FROM memd.approvals b
    WHERE b.tenant_no = p_tenant AND b.request_id IS NULL AND b.voided_at IS NULL AND b.expires_at > p_now
      AND b.digest = p_digest AND b.approved_by IS DISTINCT FROM p_by AND memd.may_approve(b.approved_by)
    ORDER BY b.expires_at DESC LIMIT 1 FOR UPDATE)
  RETURNING a.approval_id INTO id;
  IF id IS NULL THEN
    RAISE EXCEPTION 'nobody else has approved it' USING ERRCODE = 'MD013';
  END IF;
  RETURN id;
END $$;

-- A tenant that is being purged, or is gone, gets nothing new that would outlive
-- it: no API key, no purge target.
CREATE FUNCTION memd.tenant_lives() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  now smallint;
BEGIN
  -- A purge that begins meanwhile waits for this, or is waited for.
  SELECT t.state INTO now FROM memd.tenants t WHERE t.tenant_no = NEW.tenant_no FOR KEY SHARE;
  IF now >= 6 THEN
    RAISE EXCEPTION 'the tenant is being purged' USING ERRCODE = 'MD004';
  END IF;
  RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER tenant_lives BEFORE INSERT ON memd.principals
  FOR EACH ROW WHEN (NEW.tenant_no IS NOT NULL) EXECUTE FUNCTION memd.tenant_lives();
CREATE TRIGGER tenant_lives BEFORE INSERT ON memd.purge_targets FOR EACH ROW EXECUTE FUNCTION memd.tenant_lives();

-- What is done on a schedule is done for active tenants alone.
CREATE VIEW memd.active_tenants AS SELECT tenant_no FROM memd.tenants WHERE state = 2;
GRANT SELECT ON memd.active_tenants TO memd_app, memd_worker;

-- tenant_size is what a tenant has, asked of the tables by the tenant's number
-- alone: rows of content, and the bytes that are sealed in them.
CREATE FUNCTION memd.tenant_size(p_tenant bigint) RETURNS TABLE ("rows" bigint, bytes bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(sum(v.n), 0)::bigint, coalesce(sum(v.b), 0)::bigint FROM (
    SELECT count(*) AS n, sum(coalesce(octet_length(sealed_text), 0) + coalesce(octet_length(sealed_vector), 0)
      + coalesce(octet_length(sealed_metadata), 0)) AS b FROM memd.memories WHERE tenant_no = p_tenant
    UNION ALL SELECT count(*), sum(octet_length(sealed)) FROM memd.session_events WHERE tenant_no = p_tenant
    UNION ALL SELECT count(*), sum(octet_length(sealed)) FROM memd.session_state WHERE tenant_no = p_tenant
    UNION ALL SELECT count(*), sum(octet_length(sealed)) FROM memd.user_state WHERE tenant_no = p_tenant
    UNION ALL SELECT count(*), sum(octet_length(sealed)) FROM memd.app_state WHERE tenant_no = p_tenant
    UNION ALL SELECT count(*), sum(octet_length(sealed)) FROM memd.artifact_chunks WHERE tenant_no = p_tenant
  ) v
$$;

-- strangers are subjects to whom something belongs and whom the directory does
-- not know: they came by a way past admission. Asked of the tables by the
-- tenant's number alone, which is the check of the directory that does not read
-- the directory.
CREATE FUNCTION memd.strangers(p_tenant bigint, p_limit integer)
RETURNS TABLE (store text, subject_no bigint, things bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT v.store, v.no, count(*) FROM (
    SELECT 'memories' AS store, owner_no AS no FROM memd.memories WHERE tenant_no = p_tenant
    UNION ALL SELECT 'memories', contributor_no FROM memd.memories WHERE tenant_no = p_tenant AND contributor_no <> owner_no
    UNION ALL SELECT 'memories', contributor_no FROM memd.memory_contributions WHERE tenant_no = p_tenant
    UNION ALL SELECT 'sessions', subject_no FROM memd.sessions WHERE tenant_no = p_tenant
    UNION ALL SELECT 'sessions', subject_no FROM memd.session_heads WHERE tenant_no = p_tenant
    UNION ALL SELECT 'session_events', subject_no FROM memd.session_events WHERE tenant_no = p_tenant
    UNION ALL SELECT 'session_state', subject_no FROM memd.session_state WHERE tenant_no = p_tenant
    UNION ALL SELECT 'user_state', subject_no FROM memd.user_state WHERE tenant_no = p_tenant
    UNION ALL SELECT 'app_state', app_no FROM memd.app_state WHERE tenant_no = p_tenant
    UNION ALL SELECT 'app_state', contributor_no FROM memd.app_state WHERE tenant_no = p_tenant AND contributor_no IS NOT NULL
    UNION ALL SELECT 'artifacts', subject_no FROM memd.artifacts WHERE tenant_no = p_tenant
    UNION ALL SELECT 'artifact_versions', subject_no FROM memd.artifact_versions WHERE tenant_no = p_tenant
    UNION ALL SELECT 'artifact_chunks', subject_no FROM memd.artifact_chunks WHERE tenant_no = p_tenant
  ) v
  WHERE NOT EXISTS (SELECT FROM memd.subjects s WHERE s.tenant_no = p_tenant AND s.subject_no = v.no)
  GROUP BY 1, 2 ORDER BY 1, 2 LIMIT p_limit
$$;

REVOKE ALL ON FUNCTION memd.take_tenant(bigint, smallint, uuid, text, bytea, timestamptz), memd.give_up_tenant(bigint, timestamptz), memd.move_tenant(bigint, smallint, uuid, bytea, timestamptz),
  memd.activate_tenant(bigint, timestamptz), memd.begin_purge(bigint, uuid, timestamptz), memd.end_purge(bigint, timestamptz),
  memd.approve_purge(bigint, uuid, bytea, uuid, timestamptz, timestamptz), memd.may_approve(uuid),
  memd.void_approval(bigint, uuid, timestamptz), memd.spend_approval(bigint, uuid, bytea, uuid, timestamptz), memd.tenant_lives(),
  memd.tenant_size(bigint), memd.strangers(bigint, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION memd.move_tenant(bigint, smallint, uuid, bytea, timestamptz),
  memd.approve_purge(bigint, uuid, bytea, uuid, timestamptz, timestamptz), memd.void_approval(bigint, uuid, timestamptz),
  memd.spend_approval(bigint, uuid, bytea, uuid, timestamptz) TO memd_app;
GRANT EXECUTE ON FUNCTION memd.activate_tenant(bigint, timestamptz), memd.begin_purge(bigint, uuid, timestamptz),
  memd.end_purge(bigint, timestamptz) TO memd_worker;
GRANT EXECUTE ON FUNCTION memd.tenant_size(bigint), memd.strangers(bigint, integer) TO memd_app, memd_worker;

-- +goose Down
DROP TRIGGER tenant_lives ON memd.principals;
DROP TRIGGER tenant_lives ON memd.purge_targets;
DROP VIEW memd.active_tenants;
DROP FUNCTION memd.strangers(bigint, integer), memd.tenant_size(bigint), memd.tenant_lives(),
  memd.spend_approval(bigint, uuid, bytea, uuid, timestamptz), memd.void_approval(bigint, uuid, timestamptz), memd.may_approve(uuid),
  memd.approve_purge(bigint, uuid, bytea, uuid, timestamptz, timestamptz), memd.end_purge(bigint, timestamptz),
  memd.begin_purge(bigint, uuid, timestamptz), memd.activate_tenant(bigint, timestamptz),
  memd.move_tenant(bigint, smallint, uuid, bytea, timestamptz), memd.take_tenant(bigint, smallint, uuid, text, bytea, timestamptz);
DROP TABLE memd.approvals, memd.tenant_transitions;
