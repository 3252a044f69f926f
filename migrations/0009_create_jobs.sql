-- +goose Up

-- River's tables live in a schema of their own. memd migrate has River make
-- them, after these migrations; the worker's rights on them are given here, in
-- advance. The application has none: a trigger enqueues what it accepts.
CREATE SCHEMA IF NOT EXISTS memd_jobs;
GRANT USAGE ON SCHEMA memd_jobs TO memd_worker;
ALTER DEFAULT PRIVILEGES IN SCHEMA memd_jobs GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO memd_worker;
ALTER DEFAULT PRIVILEGES IN SCHEMA memd_jobs GRANT USAGE, SELECT ON SEQUENCES TO memd_worker;

-- enqueue_job is how every erasure gets into the queue, once as long as it has
-- a job there that is not over. Arguments are two numbers. A tenant's purge has
-- a queue of its own, so that nobody waits behind it.
-- +goose StatementBegin
CREATE FUNCTION memd.enqueue_job(p_tenant bigint, p_job bigint, p_kind smallint, p_at timestamptz) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  q text := CASE p_kind WHEN 4 THEN 'tenants' ELSE 'erasures' END;
BEGIN
  INSERT INTO memd_jobs.river_job (args, kind, max_attempts, queue, scheduled_at, state, unique_key, unique_states)
  VALUES (jsonb_build_object('tenant', p_tenant, 'job', p_job), 'memd_erasure', 100, q, p_at, 'available',
          memd.job_key(p_tenant, p_job), B'11110001')
  ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND unique_states IS NOT NULL
    AND memd_jobs.river_job_state_in_bitmask(unique_states, state) DO NOTHING;
  IF FOUND THEN
    PERFORM pg_notify('memd_jobs.river_insert', json_build_object('queue', q)::text);
  END IF;
  RETURN FOUND;
END $$;
-- job_key is the unique key that River itself makes of kind and arguments.
CREATE FUNCTION memd.job_key(p_tenant bigint, p_job bigint) RETURNS bytea
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT sha256(convert_to('&kind=memd_erasure&args={"job":' || p_job || ',"tenant":' || p_tenant || '}', 'UTF8'))
$$;
CREATE FUNCTION memd.enqueue_accepted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM memd.enqueue_job(NEW.tenant_no, NEW.job_no, NEW.kind, now());
  RETURN NULL;
END $$;
CREATE FUNCTION memd.enqueue_verification() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO memd_jobs.river_job (args, kind, max_attempts, queue, state)
  VALUES (jsonb_build_object('no', NEW.verification_no), 'memd_verification', 10, 'verifications', 'available');
  PERFORM pg_notify('memd_jobs.river_insert', json_build_object('queue', 'verifications')::text);
  RETURN NULL;
END $$;
-- hold_released wakes what waits: jobs that are put off look again at once.
CREATE FUNCTION memd.hold_released() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE memd_jobs.river_job j SET state = 'available', scheduled_at = now()
  FROM memd.erasures e
  WHERE e.tenant_no = NEW.tenant_no AND e.state < 4
    AND (NEW.kind = 4 OR e.kind IN (4, 5) OR e.user_ref = NEW.user_ref)
    AND j.unique_key = memd.job_key(e.tenant_no, e.job_no) AND j.unique_states IS NOT NULL
    AND memd_jobs.river_job_state_in_bitmask(j.unique_states, j.state)
    AND j.state IN ('scheduled', 'retryable', 'available') AND (e.state < 3 OR e.sweep_at <= now());
  PERFORM pg_notify('memd_jobs.river_insert', json_build_object('queue', q)::text)
  FROM unnest(ARRAY['erasures', 'tenants']) q;
  RETURN NULL;
END $$;
-- A purged tenant's API keys go, and with them whatever their names say.
CREATE FUNCTION memd.purge_principals(p_tenant bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n bigint;
BEGIN
  IF NOT EXISTS (SELECT FROM memd.tenants WHERE tenant_no = p_tenant AND state IN (6, 7)) THEN
    RAISE EXCEPTION 'the tenant is not being purged' USING ERRCODE = 'MD004';
  END IF;
  DELETE FROM memd.principals WHERE tenant_no = p_tenant;
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN n;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION memd.enqueue_job(bigint, bigint, smallint, timestamptz), memd.job_key(bigint, bigint),
  memd.enqueue_accepted(), memd.enqueue_verification(), memd.hold_released(), memd.purge_principals(bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION memd.enqueue_job(bigint, bigint, smallint, timestamptz), memd.job_key(bigint, bigint),
  memd.purge_principals(bigint) TO memd_worker;
CREATE TRIGGER enqueue AFTER INSERT ON memd.erasures FOR EACH ROW EXECUTE FUNCTION memd.enqueue_accepted();
CREATE TRIGGER enqueue AFTER INSERT ON memd.verifications FOR EACH ROW EXECUTE FUNCTION memd.enqueue_verification();
CREATE TRIGGER released AFTER UPDATE ON memd.holds FOR EACH ROW
  WHEN (OLD.released_at IS NULL AND NEW.released_at IS NOT NULL) EXECUTE FUNCTION memd.hold_released();

-- +goose Down
DROP TRIGGER enqueue ON memd.erasures;
DROP TRIGGER enqueue ON memd.verifications;
DROP TRIGGER released ON memd.holds;
DROP FUNCTION memd.enqueue_job(bigint, bigint, smallint, timestamptz), memd.job_key(bigint, bigint),
  memd.enqueue_accepted(), memd.enqueue_verification(), memd.hold_released(), memd.purge_principals(bigint);
DROP SCHEMA memd_jobs CASCADE;
