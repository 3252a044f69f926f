-- +goose Up

-- Quotas: how many rows of content, and how many sealed bytes, a tenant may have.
-- Counting at each write would be a row that all writers of a tenant wait for; so
-- what a tenant has is measured every few seconds, by a worker, and what the guard
-- reads beside the tenant's state is one bit.

-- is_full says whether a tenant with this policy has all that it may have.
CREATE FUNCTION memd.is_full(p_policy jsonb, p_rows bigint, p_bytes bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(nullif((p_policy ->> 'max_rows')::bigint, 0) <= p_rows, false)
    OR coalesce(nullif((p_policy ->> 'max_bytes')::bigint, 0) <= p_bytes, false)
$$;

-- A policy counts from its commit on, with what was last measured.
-- +goose StatementBegin
CREATE FUNCTION memd.weigh_tenant() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  NEW.full_up := memd.is_full(NEW.policy, NEW.used_rows, NEW.used_bytes);
  RETURN NEW;
END $$;

-- measure_tenant measures a tenant, and reports whether it is full. A policy that
-- changes meanwhile is the one that counts.
CREATE FUNCTION memd.measure_tenant(p_tenant bigint, p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  begun timestamptz := clock_timestamp();
  has record;
  filled boolean;
BEGIN
  SELECT z."rows", z.bytes INTO has FROM memd.tenant_size(p_tenant) z;
  UPDATE memd.tenants t SET used_rows = has."rows", used_bytes = has.bytes, measured_at = p_now,
    measured_ms = extract(epoch FROM clock_timestamp() - begun) * 1000
  WHERE t.tenant_no = p_tenant RETURNING t.full_up INTO filled;
  RETURN filled;
END $$;
-- +goose StatementEnd
CREATE TRIGGER weigh BEFORE UPDATE OF policy, used_rows, used_bytes ON memd.tenants
  FOR EACH ROW EXECUTE FUNCTION memd.weigh_tenant();

REVOKE ALL ON FUNCTION memd.is_full(jsonb, bigint, bigint), memd.weigh_tenant(), memd.measure_tenant(bigint, timestamptz) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION memd.measure_tenant(bigint, timestamptz) TO memd_worker;

-- +goose Down
DROP TRIGGER weigh ON memd.tenants;
DROP FUNCTION memd.measure_tenant(bigint, timestamptz), memd.weigh_tenant(), memd.is_full(jsonb, bigint, bigint);
