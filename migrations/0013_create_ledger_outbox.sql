-- +goose Up

-- Facts that must outlive a rollback of the database, on their way to the
-- ledger: triggers write them in the transaction that makes them, and a shipper
-- takes them away once they are durable elsewhere. Numbers, keyed digests,
-- codes and sealed values; nothing that names anybody. kind 1 tombstone, 2
-- fence, 3 erasure, 4 legal hold, 5 tenant, 6 revoked API key, 7 puncture, 8 key
-- tree (without the tree, which the ledger has itself), 9 tenant's transition, 10
-- approval of a purge, 11 undone erasure, 12 purge target, or that one was deleted.
CREATE TABLE memd.ledger_outbox (
  fact_id bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  kind    smallint NOT NULL CHECK (kind BETWEEN 1 AND 12),
  fact    jsonb    NOT NULL
);
GRANT SELECT ON memd.ledger_outbox TO memd_app, memd_worker;

-- One row: the last record of the ledger's journal that this database knows,
-- and the server that it ran on when somebody last compared the two. restores
-- counts restores; while one is under way restoring is true, and until it is
-- released held is, which keeps everything that cannot be undone waiting.
CREATE TABLE memd.ledger_state (
  singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  seq       bigint  NOT NULL DEFAULT 0 CHECK (seq >= 0),
  digest    bytea   NOT NULL DEFAULT '\x',
  server    text    NOT NULL DEFAULT '',
  restores  bigint  NOT NULL DEFAULT 0,
  restoring boolean NOT NULL DEFAULT false,
  held      boolean NOT NULL DEFAULT false
);
INSERT INTO memd.ledger_state DEFAULT VALUES;
GRANT SELECT ON memd.ledger_state TO memd_app, memd_worker;

-- What a restore has yet to do: erasures that are to be carried out again, and
-- holds that were set after them. Empty otherwise.
CREATE TABLE memd.replays (
  place      bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_no  bigint   NOT NULL,
  kind       smallint NOT NULL CHECK (kind IN (3, 4)),
  id         uuid     NOT NULL,
  -- Of an erasure: the state that it was in by the database's own word, 0 if it
  -- was not there, and the one that it had reached. One that had been done is
  -- stopped by no hold of today.
  had        smallint NOT NULL DEFAULT 0,
  reached    smallint NOT NULL DEFAULT 0,
  fact       jsonb    NOT NULL,
  UNIQUE (tenant_no, kind, id)
);
GRANT SELECT ON memd.replays TO memd_worker;

-- server is which server this is, since when, and which history it is on: any
-- restart, failover, restore and copy has another one. The last part is the
-- table's own number, which a dump that is restored in place changes.
-- +goose StatementBegin
CREATE FUNCTION memd.server() RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT concat_ws('/', c.system_identifier,
    CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END,
    (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
    (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()), 'memd.ledger_state'::regclass::oid)
  FROM pg_control_system() c
$$;

-- ledger_position is what is compared on every new connection.
CREATE FUNCTION memd.ledger_position()
RETURNS TABLE (installation uuid, generation bigint, seq bigint, digest bytea, known text, server text,
               restores bigint, restoring boolean, held boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT i.installation_id, i.generation, s.seq, s.digest, s.server, memd.server(), s.restores, s.restoring, s.held
  FROM memd.ledger_state s, memd.installation i
$$;

-- note_facts and note_fact put rows of a table into the outbox, as facts of the
-- first argument's kind, without the columns of the second.
CREATE FUNCTION memd.note_facts() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO memd.ledger_outbox (kind, fact)
  SELECT TG_ARGV[0]::smallint, to_jsonb(n) - TG_ARGV[1]::text[] FROM new_rows n;
  RETURN NULL;
END $$;
CREATE FUNCTION memd.note_fact() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO memd.ledger_outbox (kind, fact) VALUES (TG_ARGV[0]::smallint, to_jsonb(NEW) - TG_ARGV[1]::text[]);
  RETURN NULL;
END $$;

CREATE FUNCTION memd.note_deleted_target() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO memd.ledger_outbox (kind, fact)
  VALUES (12, jsonb_build_object('tenant_no', OLD.tenant_no, 'target_id', OLD.target_id, 'deleted', true));
  RETURN NULL;
END $$;

-- ledger_advance notes that the next record of the journal is in every ledger,
-- and takes its facts out of the outbox. False: somebody else was there first.
CREATE FUNCTION memd.ledger_advance(p_seq bigint, p_previous bytea, p_digest bytea, p_facts bigint[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE memd.ledger_state s SET seq = p_seq, digest = p_digest WHERE s.seq = p_seq - 1 AND s.digest = p_previous;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  DELETE FROM memd.ledger_outbox WHERE fact_id = ANY (p_facts);
  RETURN true;
END $$;

-- adopt_server takes note of the server that this database is on now, and raises
-- the generation to one that the ledger has given to it. Once for each server:
-- nobody can use up the generations.
CREATE FUNCTION memd.adopt_server(p_server text, p_generation bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE memd.ledger_state s SET server = p_server
  WHERE p_server = memd.server() AND s.server <> p_server AND NOT s.restoring;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  UPDATE memd.installation SET generation = p_generation WHERE generation < p_generation;
  RETURN true;
END $$;

-- replay_row puts a row back as it was: whole, over whatever is there.
CREATE FUNCTION memd.replay_row(p_table regclass, p_key text, p_fact jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  names text;
  n bigint;
BEGIN
  SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) INTO names
  FROM pg_attribute a WHERE a.attrelid = p_table AND a.attnum > 0 AND NOT a.attisdropped
    AND a.attidentity = '' AND p_fact ? a.attname;
  EXECUTE format('UPDATE %1$s SET (%2$s) = (SELECT %2$s FROM jsonb_populate_record(NULL::%1$s, $1))
    WHERE (%3$s) = (SELECT %3$s FROM jsonb_populate_record(NULL::%1$s, $1))', p_table, names, p_key) USING p_fact;
  GET DIAGNOSTICS n = ROW_COUNT;
  IF n = 0 THEN
    EXECUTE format('INSERT INTO %1$s (%2$s) OVERRIDING SYSTEM VALUE SELECT %2$s FROM jsonb_populate_record(NULL::%1$s, $1)',
      p_table, concat_ws(', ', names, (SELECT quote_ident(a.attname) FROM pg_attribute a
        WHERE a.attrelid = p_table AND a.attnum > 0 AND a.attidentity <> ''))) USING p_fact;
  END IF;
END $$;

-- replay_rows buries memories again, all that a record names at once, and returns
-- how many fell. For restores, by the owner.
CREATE FUNCTION memd.replay_rows(p_facts jsonb[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n bigint;
BEGIN
  INSERT INTO memd.tombstones AS t
  SELECT DISTINCT ON (d.tenant_no, d.ref) d.*
  FROM unnest(p_facts) f, jsonb_populate_record(NULL::memd.tombstones,
    f || jsonb_build_object('changed_xid', pg_current_xact_id()::text::bigint)) d
  ORDER BY d.tenant_no, d.ref, d.through_version DESC
  ON CONFLICT (tenant_no, kind, ref) DO UPDATE SET
    through_version = greatest(t.through_version, excluded.through_version), changed_xid = excluded.changed_xid;
  DELETE FROM memd.memories m
  USING unnest(p_facts) f, jsonb_populate_record(NULL::memd.tombstones, f) d
  WHERE m.tenant_no = d.tenant_no AND m.memory_id = encode(d.ref, 'hex')::uuid AND m.version <= d.through_version;
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN n;
END $$;

-- replay_fact brings one fact of the ledger back into a database that has lost
-- it, and returns how many rows fell by it. For restores, by the owner.
CREATE FUNCTION memd.replay_fact(p_kind smallint, p_fact jsonb) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  d memd.tombstones;
  had smallint;
  n bigint := 0;
BEGIN
  CASE p_kind
  WHEN 1 THEN
    d := jsonb_populate_record(NULL::memd.tombstones,
      p_fact || jsonb_build_object('changed_xid', pg_current_xact_id()::text::bigint));
    INSERT INTO memd.tombstones AS t VALUES (d.*)
    ON CONFLICT (tenant_no, kind, ref) DO UPDATE SET
      through_version = greatest(t.through_version, excluded.through_version), changed_xid = excluded.changed_xid;
    IF d.kind = 5 THEN
      n := memd.delete_artifact_version(d.tenant_no, d.owner_no, encode(d.ref, 'hex')::uuid);
    END IF;
    IF d.kind = 4 THEN
      SELECT sum(memd.delete_month(d.tenant_no, x.class, x.month)) INTO n
      FROM memd.expired_months x WHERE x.tenant_no = d.tenant_no AND memd.month_ref(x.class, x.month) = d.ref;
    END IF;
  WHEN 2 THEN
    PERFORM memd.replay_row('memd.fences', 'tenant_no, user_ref', p_fact);
  WHEN 3 THEN
    -- What this database has done itself is not carried out again: by now the
    -- user may have returned. Nor does an erasure go back to an earlier state:
    -- that fact was on its way.
    SELECT e.state INTO had FROM memd.erasures e
    WHERE e.tenant_no = (p_fact ->> 'tenant_no')::bigint AND e.request_id = (p_fact ->> 'request_id')::uuid;
    IF had > (p_fact ->> 'state')::smallint THEN
      RETURN 0;
    END IF;
    -- What was swept is swept again, and then final again.
    PERFORM memd.replay_row('memd.erasures', 'tenant_no, request_id', CASE
      WHEN had = 3 AND (p_fact ->> 'state')::smallint = 4 THEN p_fact || '{"state": 3, "final_at": null}' ELSE p_fact END);
    UPDATE memd.replays SET reached = (p_fact ->> 'state')::smallint
    WHERE tenant_no = (p_fact ->> 'tenant_no')::bigint AND kind = 3 AND id = (p_fact ->> 'request_id')::uuid;
    IF NOT FOUND AND (coalesce(had, 0) < 3 OR had < (p_fact ->> 'state')::smallint) THEN
      INSERT INTO memd.replays (tenant_no, kind, id, had, reached, fact)
      VALUES ((p_fact ->> 'tenant_no')::bigint, 3, (p_fact ->> 'request_id')::uuid, coalesce(had, 0), (p_fact ->> 'state')::smallint, '{}');
    END IF;
  WHEN 4 THEN
    -- One in force waits: what had been erased before it was set is erased first.
    IF p_fact ->> 'released_at' IS NULL THEN
      INSERT INTO memd.replays (tenant_no, kind, id, fact)
      VALUES ((p_fact ->> 'tenant_no')::bigint, 4, (p_fact ->> 'hold_id')::uuid, p_fact)
      ON CONFLICT (tenant_no, kind, id) DO UPDATE SET fact = excluded.fact;
    ELSE
      DELETE FROM memd.replays WHERE tenant_no = (p_fact ->> 'tenant_no')::bigint AND kind = 4 AND id = (p_fact ->> 'hold_id')::uuid;
      PERFORM memd.replay_row('memd.holds', 'tenant_no, hold_id', p_fact);
    END IF;
  WHEN 5 THEN
    -- A tenant begins in the state creating, whatever it became.
    IF NOT EXISTS (SELECT FROM memd.tenants WHERE tenant_no = (p_fact ->> 'tenant_no')::bigint) THEN
      PERFORM memd.replay_row('memd.tenants', 'tenant_no', p_fact || '{"state": 1}');
    END IF;
    PERFORM memd.replay_row('memd.tenants', 'tenant_no', p_fact);
    PERFORM setval(pg_get_serial_sequence('memd.tenants', 'tenant_no'), max(tenant_no)) FROM memd.tenants;
  WHEN 6 THEN
    UPDATE memd.principals SET revoked_at = (p_fact ->> 'revoked_at')::timestamptz
    WHERE key_id = (p_fact ->> 'key_id')::uuid AND revoked_at IS NULL;
  WHEN 7 THEN
    PERFORM memd.replay_row('memd.punctures', 'tenant_no, path', p_fact);
  WHEN 8 THEN
    NULL; -- With the tree itself, by whoever reads the ledger.
  WHEN 9 THEN
    INSERT INTO memd.tenant_transitions SELECT * FROM jsonb_populate_record(NULL::memd.tenant_transitions, p_fact)
    EXCEPT ALL SELECT * FROM memd.tenant_transitions WHERE tenant_no = (p_fact ->> 'tenant_no')::bigint;
  WHEN 10 THEN
    PERFORM memd.replay_row('memd.approvals', 'tenant_no, approval_id', p_fact);
  WHEN 11 THEN
    PERFORM memd.replay_row('memd.undos', 'tenant_no, request_id', p_fact);
    PERFORM memd.undo_erasure((p_fact ->> 'tenant_no')::bigint, (p_fact ->> 'request_id')::uuid);
  WHEN 12 THEN
    -- Of two with one name the later is there, or comes with a fact of its own; a
    -- tenant that is being purged gets none.
    IF p_fact ? 'deleted' THEN
      DELETE FROM memd.purge_targets g
      WHERE g.tenant_no = (p_fact ->> 'tenant_no')::bigint AND g.target_id = (p_fact ->> 'target_id')::uuid;
    ELSIF EXISTS (SELECT FROM memd.tenants t WHERE t.tenant_no = (p_fact ->> 'tenant_no')::bigint AND t.state < 6) THEN
      INSERT INTO memd.purge_targets SELECT * FROM jsonb_populate_record(NULL::memd.purge_targets, p_fact) ON CONFLICT DO NOTHING;
    END IF;
  END CASE;
  RETURN n;
END $$;

-- reopen_erasure has an erasure begin again, from its first step.
CREATE FUNCTION memd.reopen_erasure(p_tenant bigint, p_request uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE memd.erasures SET state = 1, finished_at = NULL, sweep_at = NULL, final_at = NULL, tries = 0, failed_at = NULL, failure = ''
  WHERE tenant_no = p_tenant AND request_id = p_request;
  DELETE FROM memd.erasure_steps WHERE tenant_no = p_tenant AND request_id = p_request;
  DELETE FROM memd.erasure_subjects WHERE tenant_no = p_tenant AND request_id = p_request;
  UPDATE memd.tenants t SET state = 6 FROM memd.erasures e
  WHERE e.tenant_no = p_tenant AND e.request_id = p_request AND e.kind = 4 AND t.tenant_no = p_tenant AND t.state = 7;
END $$;

-- begin_restore and end_restore frame a restore; release_restore lets what
-- cannot be undone go on after it.
CREATE FUNCTION memd.begin_restore() RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  UPDATE memd.ledger_state SET restoring = true, held = true
$$;
CREATE FUNCTION memd.end_restore(p_generation bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE memd.ledger_state SET restoring = false, restores = restores + 1, server = memd.server() WHERE restoring;
  UPDATE memd.installation SET generation = p_generation WHERE generation < p_generation;
  -- What was approved, but not asked for yet, was approved on another day.
  UPDATE memd.approvals SET voided_at = now() WHERE request_id IS NULL AND voided_at IS NULL;
  DELETE FROM memd.undos WHERE epoch IS NULL; -- An approval is of the past that did not happen.
  PERFORM memd.end_all_exports('restored', now());
  -- The queue is of a past that did not happen: what is open is put into it anew.
  IF to_regclass('memd_jobs.river_job') IS NOT NULL THEN
    EXECUTE 'DELETE FROM memd_jobs.river_job';
    PERFORM memd.enqueue_job(e.tenant_no, e.job_no, e.kind, greatest(e.sweep_at, now())) FROM memd.erasures e WHERE e.state < 4;
  END IF;
END $$;
CREATE FUNCTION memd.release_restore() RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE memd.ledger_state SET held = false WHERE held AND NOT restoring;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM memd.enqueue_job(e.tenant_no, e.job_no, e.kind, greatest(e.sweep_at, now())) FROM memd.erasures e WHERE e.state < 4;
  RETURN true;
END $$;

-- replay_hold sets a hold again.
CREATE FUNCTION memd.replay_hold(p_fact jsonb) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT memd.replay_row('memd.holds', 'tenant_no, hold_id', p_fact)
$$;

-- note_all puts every fact of the database into the outbox again, for a ledger
-- that was lost.
CREATE FUNCTION memd.note_all() RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n bigint;
BEGIN
  INSERT INTO memd.ledger_outbox (kind, fact)
  SELECT v.kind, v.fact FROM (
    SELECT 5::smallint AS kind, 1 AS place, to_jsonb(t) - '{full_up,used_rows,used_bytes,measured_at,measured_ms}'::text[] AS fact FROM memd.tenants t
    UNION ALL SELECT 10, 1, to_jsonb(a) FROM memd.approvals a
    UNION ALL SELECT 4, 7, to_jsonb(h) FROM memd.holds h
    UNION ALL SELECT 3, 2, to_jsonb(e) FROM memd.erasures e
    UNION ALL SELECT 2, 3, to_jsonb(f) FROM memd.fences f
    UNION ALL SELECT 1, 4, to_jsonb(d) - 'changed_xid' FROM memd.tombstones d
    UNION ALL SELECT 7, 5, to_jsonb(p) FROM memd.punctures p
    UNION ALL SELECT 8, 6, to_jsonb(k) - 'sealed' FROM memd.key_trees k
    UNION ALL SELECT 9, 7, to_jsonb(x) FROM memd.tenant_transitions x
    UNION ALL SELECT 12, 7, to_jsonb(g) FROM memd.purge_targets g
    UNION ALL SELECT 11, 8, to_jsonb(u) FROM memd.undos u WHERE u.epoch IS NOT NULL
    UNION ALL SELECT 6, 7, jsonb_build_object('key_id', r.key_id, 'revoked_at', r.revoked_at)
    FROM memd.principals r WHERE r.revoked_at IS NOT NULL
  ) v ORDER BY v.place;
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN n;
END $$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION memd.server(), memd.ledger_position(), memd.note_facts(), memd.note_fact(), memd.note_deleted_target(),
  memd.ledger_advance(bigint, bytea, bytea, bigint[]), memd.adopt_server(text, bigint),
  memd.replay_row(regclass, text, jsonb), memd.replay_rows(jsonb[]), memd.replay_fact(smallint, jsonb), memd.note_all(), memd.replay_hold(jsonb),
  memd.reopen_erasure(bigint, uuid), memd.begin_restore(), memd.end_restore(bigint), memd.release_restore() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION memd.ledger_position(), memd.ledger_advance(bigint, bytea, bytea, bigint[]),
  memd.adopt_server(text, bigint) TO memd_app, memd_worker;

-- Named to fire last: what another trigger writes on account of a row comes
-- after the row only where that is said here.
CREATE TRIGGER fact_insert AFTER INSERT ON memd.tombstones REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION memd.note_facts('1', '{changed_xid}');
CREATE TRIGGER fact_update AFTER UPDATE ON memd.tombstones REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION memd.note_facts('1', '{changed_xid}');
CREATE TRIGGER fact_insert AFTER INSERT ON memd.punctures REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION memd.note_facts('7', '{}');
CREATE TRIGGER fact_update AFTER UPDATE ON memd.punctures REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION memd.note_facts('7', '{}');
CREATE TRIGGER fact AFTER INSERT OR UPDATE ON memd.fences
  FOR EACH ROW EXECUTE FUNCTION memd.note_fact('2', '{}');
-- Before what an accepted erasure does: first the request, then its fence.
CREATE TRIGGER a_fact AFTER INSERT ON memd.erasures
  FOR EACH ROW EXECUTE FUNCTION memd.note_fact('3', '{}');
CREATE TRIGGER fact_update AFTER UPDATE ON memd.erasures FOR EACH ROW
  WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION memd.note_fact('3', '{}');
-- What a tenant has is measured, and no fact.
CREATE TRIGGER fact_insert AFTER INSERT ON memd.tenants FOR EACH ROW
  EXECUTE FUNCTION memd.note_fact('5', '{full_up,used_rows,used_bytes,measured_at,measured_ms}');
CREATE TRIGGER fact_update AFTER UPDATE ON memd.tenants FOR EACH ROW
  WHEN ((OLD.name, OLD.display_name, OLD.state, OLD.policy, OLD.updated_at) IS DISTINCT FROM (NEW.name, NEW.display_name, NEW.state, NEW.policy, NEW.updated_at))
  EXECUTE FUNCTION memd.note_fact('5', '{full_up,used_rows,used_bytes,measured_at,measured_ms}');
CREATE TRIGGER fact AFTER UPDATE ON memd.principals FOR EACH ROW
  WHEN (OLD.revoked_at IS NULL AND NEW.revoked_at IS NOT NULL)
  EXECUTE FUNCTION memd.note_fact('6', '{tenant_no,name,roles,secret_hash,created_at,created_by,last_used_at}');
CREATE TRIGGER fact AFTER INSERT OR UPDATE ON memd.holds
  FOR EACH ROW EXECUTE FUNCTION memd.note_fact('4', '{}');
CREATE TRIGGER fact AFTER INSERT ON memd.key_trees
  FOR EACH ROW EXECUTE FUNCTION memd.note_fact('8', '{sealed}');
CREATE TRIGGER fact AFTER INSERT ON memd.purge_targets
  FOR EACH ROW EXECUTE FUNCTION memd.note_fact('12', '{}');
CREATE TRIGGER fact_delete AFTER DELETE ON memd.purge_targets
  FOR EACH ROW EXECUTE FUNCTION memd.note_deleted_target();
CREATE TRIGGER fact AFTER INSERT ON memd.tenant_transitions
  FOR EACH ROW EXECUTE FUNCTION memd.note_fact('9', '{}');
CREATE TRIGGER fact AFTER INSERT OR UPDATE ON memd.approvals
  FOR EACH ROW EXECUTE FUNCTION memd.note_fact('10', '{}');

-- +goose Down
DROP TRIGGER fact_insert ON memd.tombstones;
DROP TRIGGER fact_update ON memd.tombstones;
DROP TRIGGER fact_insert ON memd.punctures;
DROP TRIGGER fact_update ON memd.punctures;
DROP TRIGGER fact ON memd.fences;
DROP TRIGGER a_fact ON memd.erasures;
DROP TRIGGER fact_update ON memd.erasures;
DROP TRIGGER fact_insert ON memd.tenants;
DROP TRIGGER fact_update ON memd.tenants;
DROP TRIGGER fact ON memd.principals;
DROP TRIGGER fact ON memd.holds;
DROP TRIGGER fact ON memd.key_trees;
DROP TRIGGER fact ON memd.purge_targets;
DROP TRIGGER fact_delete ON memd.purge_targets;
DROP TRIGGER fact ON memd.tenant_transitions;
DROP TRIGGER fact ON memd.approvals;
DROP FUNCTION memd.release_restore(), memd.end_restore(bigint), memd.begin_restore(), memd.reopen_erasure(bigint, uuid), memd.replay_hold(jsonb), memd.note_all(), memd.replay_fact(smallint, jsonb), memd.replay_rows(jsonb[]), memd.replay_row(regclass, text, jsonb),
  memd.adopt_server(text, bigint), memd.ledger_advance(bigint, bytea, bytea, bigint[]), memd.note_fact(), memd.note_facts(), memd.note_deleted_target(),
  memd.ledger_position(), memd.server();
DROP TABLE memd.replays, memd.ledger_state, memd.ledger_outbox;
