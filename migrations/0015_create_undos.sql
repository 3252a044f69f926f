-- +goose Up

-- Erasures of which somebody asks to have the keys back. One asks, another one
-- approves, both by their API keys; epoch is the state of the key tree in which
-- the keys are there again, and source the one that they came from. The reason
-- is sealed under the tenant's keys.
CREATE TABLE memd.undos (
  tenant_no    bigint      NOT NULL,
  request_id   uuid        NOT NULL,
  requested_by uuid        NOT NULL,
  requested_at timestamptz NOT NULL,
  sealed_reason bytea      NOT NULL CHECK (octet_length(sealed_reason) BETWEEN 1 AND 2048),
  approved_by  uuid        CHECK (approved_by <> requested_by),
  approved_at  timestamptz,
  source       bigint,
  paths        text[],
  epoch        bigint,
  PRIMARY KEY (tenant_no, request_id),
  CHECK (epoch IS NULL OR approved_by IS NOT NULL AND source < epoch AND cardinality(paths) > 0)
);
GRANT SELECT ON memd.undos TO memd_worker;

-- +goose StatementBegin
-- undo_erasure takes back what an erasure left behind: the punctures of its
-- subject, its tombstones and its fence, so that a backup that is restored is not
-- emptied again. Nothing is left to be done for it. What was deleted stays so.
CREATE FUNCTION memd.undo_erasure(p_tenant bigint, p_request uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  -- The job's own leaf stays dead.
  DELETE FROM memd.punctures WHERE tenant_no = p_tenant AND request_id = p_request AND path LIKE '0%';
  DELETE FROM memd.tombstones WHERE tenant_no = p_tenant AND request_id = p_request AND kind IN (1, 2);
  DELETE FROM memd.hides WHERE tenant_no = p_tenant AND request_id = p_request;
  -- Of an erasure of the same user before it, the time up to which all is gone.
  UPDATE memd.fences f SET state = 3, request_id = e.request_id, erased_before = e.finished_at, lifted_at = e.finished_at
  FROM (SELECT DISTINCT ON (user_ref) user_ref, request_id, finished_at FROM memd.erasures
        WHERE tenant_no = p_tenant AND kind = 1 AND request_id <> p_request AND finished_at IS NOT NULL
        ORDER BY user_ref, finished_at DESC) e
  WHERE f.tenant_no = p_tenant AND f.request_id = p_request AND f.user_ref = e.user_ref;
  DELETE FROM memd.fences WHERE tenant_no = p_tenant AND request_id = p_request;
  UPDATE memd.erasures SET state = 4, final_at = coalesce(final_at, finished_at), sealed_user_id = NULL, sealed_session_id = NULL,
    sealed_probes = NULL, sealed_salt = NULL
  WHERE tenant_no = p_tenant AND request_id = p_request;
  DELETE FROM memd.replays WHERE tenant_no = p_tenant AND kind = 3 AND id = p_request;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION memd.undo_erasure(bigint, uuid) FROM PUBLIC;

CREATE TRIGGER fact AFTER INSERT OR UPDATE ON memd.undos FOR EACH ROW
  WHEN (NEW.epoch IS NOT NULL) EXECUTE FUNCTION memd.note_fact('11', '{}');

-- +goose Down
DROP TABLE memd.undos;
DROP FUNCTION memd.undo_erasure(bigint, uuid);
