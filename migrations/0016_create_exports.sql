-- +goose Up

-- An export: a sealed archive of what a tenant has (kind 1), or one of its users
-- (kind 2). It is made of parts, each a file of its own for a bounded group of
-- subjects, sealed to the customer's public keys, and of a manifest, which comes
-- last. state: 1 being made, 2 ready, 3 ended, what is left of it is being
-- deleted, 4 deleted, and seen to be. Nothing in here names or shows anybody.
CREATE TABLE memd.exports (
  tenant_no       bigint      NOT NULL,
  export_id       uuid        NOT NULL,
  kind            smallint    NOT NULL CHECK (kind IN (1, 2)),
  user_ref        bytea       CHECK (octet_length(user_ref) = 32),
  recipients      text[]      NOT NULL CHECK (cardinality(recipients) BETWEEN 1 AND 8),
  state           smallint    NOT NULL DEFAULT 1 CHECK (state BETWEEN 1 AND 4),
  requested_by    uuid,
  requested_at    timestamptz NOT NULL,
  expires_at      timestamptz NOT NULL,
  -- How many subjects there were to write when it was begun.
  subjects        bigint      NOT NULL DEFAULT 0,
  -- Raised by every erasure of the tenant: what was begun before it is made anew.
  disturbed       bigint      NOT NULL DEFAULT 0,
  -- How many parts were made anew on account of somebody in them.
  rebuilt         bigint      NOT NULL DEFAULT 0,
  manifest        uuid,
  manifest_sha256 bytea       CHECK (octet_length(manifest_sha256) = 32),
  manifest_size   bigint,
  ready_at        timestamptz,
  ended_at        timestamptz,
  end_reason      text        NOT NULL DEFAULT '' CHECK (end_reason IN ('', 'asked', 'expired', 'left', 'erased', 'purged', 'restored')),
  objects_deleted bigint      NOT NULL DEFAULT 0,
  deleted_at      timestamptz,
  tries           integer     NOT NULL DEFAULT 0,
  failure         text        NOT NULL DEFAULT '' CHECK (failure ~ '^[a-z_]{0,40}$'),
  PRIMARY KEY (tenant_no, export_id),
  CHECK ((kind = 2) = (user_ref IS NOT NULL)),
  CHECK (expires_at > requested_at)
);
-- One archive of a tenant at a time.
CREATE UNIQUE INDEX exports_tenant ON memd.exports (tenant_no) WHERE kind = 1 AND state IN (1, 2);
CREATE INDEX exports_open ON memd.exports (state) WHERE state < 4;

-- What there is in the place of archives. A row is there before the object, so
-- that whatever a crash leaves is known. size is null while it is being written.
CREATE TABLE memd.export_objects (
  tenant_no bigint  NOT NULL,
  object    uuid    NOT NULL,
  export_id uuid    NOT NULL,
  size      bigint,
  doomed    boolean NOT NULL DEFAULT false,
  PRIMARY KEY (tenant_no, object)
);
CREATE INDEX export_objects_export ON memd.export_objects (tenant_no, export_id);

-- The journal of parts, each written after its file is durable. One without an
-- object is to be made anew, of the same subjects. members are all whose words
-- are in it, as owner or contributor.
CREATE TABLE memd.export_parts (
  tenant_no bigint  NOT NULL,
  export_id uuid    NOT NULL,
  part      integer NOT NULL CHECK (part > 0),
  after     bigint  NOT NULL,
  through   bigint  NOT NULL,
  object    uuid,
  size      bigint,
  sha256    bytea   CHECK (octet_length(sha256) = 32),
  counts    jsonb   NOT NULL DEFAULT '{}',
  members   bigint[] NOT NULL DEFAULT '{}',
  PRIMARY KEY (tenant_no, export_id, part),
  CHECK (through > after)
);

-- Links to a ready archive. The secret itself is with whom it was given to.
CREATE TABLE memd.export_links (
  tenant_no     bigint      NOT NULL,
  link_id       uuid        NOT NULL,
  export_id     uuid        NOT NULL,
  secret_sha256 bytea       NOT NULL UNIQUE CHECK (octet_length(secret_sha256) = 32),
  created_by    uuid,
  created_at    timestamptz NOT NULL,
  expires_at    timestamptz NOT NULL,
  revoked_at    timestamptz,
  uses          bigint      NOT NULL DEFAULT 0,
  last_used_at  timestamptz,
  PRIMARY KEY (tenant_no, link_id),
  CHECK (expires_at > created_at AND expires_at <= created_at + interval '7 days')
);
CREATE INDEX export_links_export ON memd.export_links (tenant_no, export_id);

-- Which archives an erasure reached, for its report and its receipt: how many
-- files were deleted on account of it, and links that had been used till then.
CREATE TABLE memd.export_erasures (
  tenant_no  bigint  NOT NULL,
  request_id uuid    NOT NULL,
  export_id  uuid    NOT NULL,
  files      bigint  NOT NULL,
  links_used bigint  NOT NULL,
  PRIMARY KEY (tenant_no, request_id, export_id)
);

GRANT SELECT ON memd.exports, memd.export_parts, memd.export_links, memd.export_erasures TO memd_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON memd.exports, memd.export_parts, memd.export_objects, memd.export_links TO memd_worker;
GRANT SELECT ON memd.export_erasures TO memd_worker;

-- Whose words may be told: of a living user without a fence, and of a session
-- that is not forgotten. Content of a session is asked of readable_sessions.
CREATE VIEW memd.living_contributions AS
  SELECT s.tenant_no, s.subject_no, 1099511627777 AS session_no FROM memd.readable_subjects s
  UNION ALL
  SELECT s.tenant_no, s.subject_no, x.session_no FROM memd.readable_subjects s
  JOIN memd.sessions x ON x.tenant_no = s.tenant_no AND x.subject_no = s.subject_no AND x.state = 1
  WHERE NOT EXISTS (SELECT FROM memd.tombstones d WHERE d.tenant_no = x.tenant_no AND d.kind = 1 AND d.ref = x.session_ref);
GRANT SELECT ON memd.living_contributions TO memd_worker;

-- +goose StatementBegin
-- start_export begins one, for the application. The archive of a tenant is made
-- in state exporting alone; what a user has a right to, in every state before
-- the purge. MD004 otherwise. Safe to repeat.
CREATE FUNCTION memd.start_export(p_tenant bigint, p_id uuid, p_kind smallint, p_ref bytea, p_recipients text[], p_by uuid,
  p_now timestamptz, p_expires timestamptz) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  now smallint;
BEGIN
  SELECT t.state INTO now FROM memd.tenants t WHERE t.tenant_no = p_tenant FOR SHARE;
  IF now IS NULL OR (p_kind = 1 AND now <> 4) OR now NOT BETWEEN 2 AND 5 THEN
    RAISE EXCEPTION 'the tenant is not being exported' USING ERRCODE = 'MD004';
  END IF;
  INSERT INTO memd.exports (tenant_no, export_id, kind, user_ref, recipients, requested_by, requested_at, expires_at)
  VALUES (p_tenant, p_id, p_kind, p_ref, p_recipients, p_by, p_now, p_expires) ON CONFLICT (tenant_no, export_id) DO NOTHING;
  RETURN FOUND;
END $$;

-- end_export ends one: from now on no link leads to it, and the worker deletes
-- its files. Safe to repeat; false when it had ended.
CREATE FUNCTION memd.end_export(p_tenant bigint, p_id uuid, p_reason text, p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE memd.exports e SET state = 3, ended_at = p_now, end_reason = p_reason, disturbed = e.disturbed + 1, manifest = NULL
  WHERE e.tenant_no = p_tenant AND e.export_id = p_id AND e.state IN (1, 2);
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  UPDATE memd.export_links l SET revoked_at = p_now WHERE l.tenant_no = p_tenant AND l.export_id = p_id AND l.revoked_at IS NULL;
  UPDATE memd.export_parts p SET object = NULL, members = '{}' WHERE p.tenant_no = p_tenant AND p.export_id = p_id;
  UPDATE memd.export_objects o SET doomed = true WHERE o.tenant_no = p_tenant AND o.export_id = p_id;
  RETURN true;
END $$;

-- take_back_parts has those parts of an open export made anew that hold one of
-- the given subjects, or with null all; with them go the manifest and every link.
-- It returns how many files that dooms. What is being written meanwhile will not
-- be accepted.
CREATE FUNCTION memd.take_back_parts(p_tenant bigint, p_id uuid, p_members bigint[], p_now timestamptz) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  files bigint;
  unfinished bigint;
BEGIN
  UPDATE memd.exports e SET disturbed = e.disturbed + 1 WHERE e.tenant_no = p_tenant AND e.export_id = p_id;
  UPDATE memd.export_objects o SET doomed = true
  WHERE o.tenant_no = p_tenant AND o.export_id = p_id AND o.size IS NULL AND NOT o.doomed;
  GET DIAGNOSTICS unfinished = ROW_COUNT;
  WITH hit AS (
    SELECT p.part, p.object FROM memd.export_parts p WHERE p.tenant_no = p_tenant AND p.export_id = p_id
      AND p.object IS NOT NULL AND (p_members IS NULL OR p.members && p_members)
  ), doomed AS (
    UPDATE memd.export_objects o SET doomed = true FROM hit WHERE o.tenant_no = p_tenant AND o.object = hit.object
  ), emptied AS (
    UPDATE memd.export_parts p SET object = NULL FROM hit
    WHERE p.tenant_no = p_tenant AND p.export_id = p_id AND p.part = hit.part
  )
  SELECT count(*) INTO files FROM hit;
  IF files = 0 THEN
    RETURN unfinished;
  END IF;
  UPDATE memd.export_objects o SET doomed = true FROM memd.exports e
  WHERE e.tenant_no = p_tenant AND e.export_id = p_id AND o.tenant_no = p_tenant AND o.object = e.manifest;
  UPDATE memd.exports e SET state = 1, ready_at = NULL, manifest = NULL, manifest_sha256 = NULL, manifest_size = NULL,
    rebuilt = e.rebuilt + files
  WHERE e.tenant_no = p_tenant AND e.export_id = p_id;
  UPDATE memd.export_links l SET revoked_at = p_now WHERE l.tenant_no = p_tenant AND l.export_id = p_id AND l.revoked_at IS NULL;
  RETURN files + unfinished;
END $$;

-- forget_in_exports takes out of every open archive of a tenant what an erasure
-- is about: of a user, or one of their sessions, the parts that they are in; of a
-- month, all parts; of the tenant, the archives. A user's own archive ends with
-- the user. Called when the erasure is accepted, and again by the worker when it
-- may begin, for what a legal hold kept waiting. Safe to repeat.
CREATE FUNCTION memd.forget_in_exports(p_tenant bigint, p_request uuid, p_kind smallint, p_ref bytea, p_now timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  e record;
  files bigint;
  used bigint;
  members bigint[];
BEGIN
  IF p_kind <= 3 THEN
    SELECT array_agg(s.subject_no) INTO members FROM memd.subjects s WHERE s.tenant_no = p_tenant AND s.user_ref = p_ref;
    members := coalesce(members, '{}');
  END IF;
  FOR e IN SELECT x.export_id, x.kind, x.user_ref FROM memd.exports x
    WHERE x.tenant_no = p_tenant AND x.state IN (1, 2) ORDER BY x.export_id FOR UPDATE
  LOOP
    SELECT coalesce(sum(l.uses), 0) INTO used FROM memd.export_links l WHERE l.tenant_no = p_tenant AND l.export_id = e.export_id;
    IF p_kind = 4 OR (p_kind = 1 AND e.user_ref = p_ref) THEN
      SELECT count(*) INTO files FROM memd.export_objects o WHERE o.tenant_no = p_tenant AND o.export_id = e.export_id;
      PERFORM memd.end_export(p_tenant, e.export_id, CASE p_kind WHEN 4 THEN 'purged' ELSE 'erased' END, p_now);
    ELSE
      files := memd.take_back_parts(p_tenant, e.export_id, members, p_now);
      CONTINUE WHEN files = 0;
    END IF;
    INSERT INTO memd.export_erasures AS v (tenant_no, request_id, export_id, files, links_used)
    VALUES (p_tenant, p_request, e.export_id, files, used)
    ON CONFLICT (tenant_no, request_id, export_id) DO UPDATE SET
      files = v.files + excluded.files, links_used = greatest(v.links_used, excluded.links_used);
  END LOOP;
END $$;
CREATE FUNCTION memd.exports_forget() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT (SELECT s.restoring FROM memd.ledger_state s) AND NOT memd.held(NEW.tenant_no, NEW.kind, NEW.user_ref, NEW.session_ref) THEN
    PERFORM memd.forget_in_exports(NEW.tenant_no, NEW.request_id, NEW.kind, NEW.user_ref, NEW.accepted_at);
  END IF;
  RETURN NULL;
END $$;

-- The window of a tenant's archive ends with the states exporting and drained,
-- that of every archive with the purge.
CREATE FUNCTION memd.exports_leave() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM memd.end_export(e.tenant_no, e.export_id, CASE WHEN NEW.state >= 6 THEN 'purged' ELSE 'left' END, NEW.updated_at)
  FROM memd.exports e
  WHERE e.tenant_no = NEW.tenant_no AND e.state IN (1, 2) AND (NEW.state >= 6 OR (e.kind = 1 AND NEW.state NOT IN (4, 5)));
  RETURN NULL;
END $$;

-- end_all_exports is for a restore: which links were taken back, and whose words
-- were taken out, is of a time that the database does not know.
CREATE FUNCTION memd.end_all_exports(p_reason text, p_now timestamptz) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT memd.end_export(e.tenant_no, e.export_id, p_reason, p_now) FROM memd.exports e WHERE e.state IN (1, 2)
$$;

-- make_link gives a ready archive another link; MD014 when it is not ready.
CREATE FUNCTION memd.make_link(p_tenant bigint, p_export uuid, p_id uuid, p_secret bytea, p_by uuid, p_now timestamptz, p_expires timestamptz)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  -- An erasure that is accepted meanwhile finds this link, or takes the archive.
  IF NOT EXISTS (SELECT FROM memd.exports e WHERE e.tenant_no = p_tenant AND e.export_id = p_export AND e.state = 2 FOR UPDATE) THEN
    RAISE EXCEPTION 'the archive is not ready' USING ERRCODE = 'MD014';
  END IF;
  INSERT INTO memd.export_links (tenant_no, link_id, export_id, secret_sha256, created_by, created_at, expires_at)
  SELECT p_tenant, p_id, p_export, p_secret, p_by, p_now, least(p_expires, e.expires_at) FROM memd.exports e
  WHERE e.tenant_no = p_tenant AND e.export_id = p_export;
END $$;
CREATE FUNCTION memd.revoke_link(p_tenant bigint, p_id uuid, p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE memd.export_links l SET revoked_at = coalesce(l.revoked_at, p_now) WHERE l.tenant_no = p_tenant AND l.link_id = p_id;
  RETURN FOUND;
END $$;
-- follow_link says to which archive a secret leads now, and counts the use. No
-- row: to none.
CREATE FUNCTION memd.follow_link(p_secret bytea, p_now timestamptz, p_count boolean)
RETURNS TABLE (tenant_no bigint, export_id uuid, link_id uuid)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT l.tenant_no, l.export_id, l.link_id FROM memd.export_links l
  JOIN memd.exports e ON e.tenant_no = l.tenant_no AND e.export_id = l.export_id
  JOIN memd.tenants t ON t.tenant_no = l.tenant_no
  WHERE l.secret_sha256 = p_secret AND l.revoked_at IS NULL AND l.expires_at > p_now
    AND e.state = 2 AND e.expires_at > p_now AND t.state < 6;
  IF FOUND AND p_count THEN
    UPDATE memd.export_links l SET uses = l.uses + 1, last_used_at = p_now WHERE l.secret_sha256 = p_secret;
  END IF;
END $$;
-- +goose StatementEnd
CREATE TRIGGER exports_forget AFTER INSERT ON memd.erasures FOR EACH ROW EXECUTE FUNCTION memd.exports_forget();
CREATE TRIGGER exports_leave AFTER UPDATE OF state ON memd.tenants FOR EACH ROW
  WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION memd.exports_leave();
-- By row: a worker that found nothing to change must not wake itself.
CREATE TRIGGER announce AFTER INSERT OR UPDATE OF state ON memd.exports FOR EACH ROW EXECUTE FUNCTION memd.announce_work();

REVOKE ALL ON FUNCTION memd.start_export(bigint, uuid, smallint, bytea, text[], uuid, timestamptz, timestamptz),
  memd.end_export(bigint, uuid, text, timestamptz), memd.take_back_parts(bigint, uuid, bigint[], timestamptz),
  memd.forget_in_exports(bigint, uuid, smallint, bytea, timestamptz), memd.exports_forget(), memd.exports_leave(),
  memd.end_all_exports(text, timestamptz), memd.make_link(bigint, uuid, uuid, bytea, uuid, timestamptz, timestamptz),
  memd.revoke_link(bigint, uuid, timestamptz), memd.follow_link(bytea, timestamptz, boolean) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION memd.start_export(bigint, uuid, smallint, bytea, text[], uuid, timestamptz, timestamptz),
  memd.make_link(bigint, uuid, uuid, bytea, uuid, timestamptz, timestamptz), memd.revoke_link(bigint, uuid, timestamptz),
  memd.follow_link(bytea, timestamptz, boolean) TO memd_app;
GRANT EXECUTE ON FUNCTION memd.end_export(bigint, uuid, text, timestamptz) TO memd_app, memd_worker;
GRANT EXECUTE ON FUNCTION memd.forget_in_exports(bigint, uuid, smallint, bytea, timestamptz) TO memd_worker;

-- +goose Down
DROP TRIGGER exports_forget ON memd.erasures;
DROP TRIGGER exports_leave ON memd.tenants;
DROP TABLE memd.export_erasures, memd.export_links, memd.export_parts, memd.export_objects, memd.exports;
DROP VIEW memd.living_contributions;
DROP FUNCTION memd.follow_link(bytea, timestamptz, boolean), memd.revoke_link(bigint, uuid, timestamptz),
  memd.make_link(bigint, uuid, uuid, bytea, uuid, timestamptz, timestamptz), memd.end_all_exports(text, timestamptz),
  memd.exports_leave(), memd.exports_forget(), memd.forget_in_exports(bigint, uuid, smallint, bytea, timestamptz),
  memd.take_back_parts(bigint, uuid, bigint[], timestamptz), memd.end_export(bigint, uuid, text, timestamptz),
  memd.start_export(bigint, uuid, smallint, bytea, text[], uuid, timestamptz, timestamptz);
