-- +goose Up

-- Who suspended or resumed a tenant, when and why. The reason is in clear: it is
-- about the tenant, and names nobody.
CREATE TABLE memd.tenant_transitions (
  tenant_no    bigint      NOT NULL,
  at           timestamptz NOT NULL,
  from_state   smallint    NOT NULL,
  to_state     smallint    NOT NULL,
  principal_id uuid        NOT NULL,
  reason       text        NOT NULL CHECK (octet_length(reason) BETWEEN 1 AND 1024)
);
CREATE INDEX tenant_transitions_tenant ON memd.tenant_transitions (tenant_no, at);
GRANT SELECT ON memd.tenant_transitions TO memd_app, memd_worker;

-- +goose StatementBegin
-- suspend_tenant takes an active tenant to suspended (3), or a suspended one back
-- to active (2), and says why. The application has no other way to change a
-- state. False when it was there already. A tenant in any other state, and one
-- whose purge was accepted, though a legal hold may have kept it from beginning,
-- is MD004.
CREATE FUNCTION memd.suspend_tenant(p_tenant bigint, p_state smallint, p_by uuid, p_reason text, p_now timestamptz)
RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  before smallint;
BEGIN
  IF p_state NOT IN (2, 3) THEN
    RAISE EXCEPTION 'a tenant is suspended or resumed' USING ERRCODE = 'MD004';
  END IF;
  -- Whoever accepts a purge holds it shared.
  PERFORM pg_advisory_xact_lock(memd.hold_lock(p_tenant));
  SELECT t.state INTO before FROM memd.tenants t WHERE t.tenant_no = p_tenant FOR UPDATE;
  IF before IS NULL OR before NOT IN (2, 3)
    OR EXISTS (SELECT FROM memd.erasures e WHERE e.tenant_no = p_tenant AND e.kind = 4 AND e.state < 3) THEN
    RAISE EXCEPTION 'the tenant is neither active nor suspended, or is to be purged' USING ERRCODE = 'MD004';
  END IF;
  IF before = p_state THEN
    RETURN false;
  END IF;
  UPDATE memd.tenants t SET state = p_state, updated_at = p_now WHERE t.tenant_no = p_tenant;
  INSERT INTO memd.tenant_transitions (tenant_no, at, from_state, to_state, principal_id, reason)
  VALUES (p_tenant, p_now, before, p_state, p_by, p_reason);
  RETURN true;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION memd.suspend_tenant(bigint, smallint, uuid, text, timestamptz) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION memd.suspend_tenant(bigint, smallint, uuid, text, timestamptz) TO memd_app;

-- +goose Down
DROP FUNCTION memd.suspend_tenant(bigint, smallint, uuid, text, timestamptz);
DROP TABLE memd.tenant_transitions;
