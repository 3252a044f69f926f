-- +goose Up

-- Stores outside memd that an erasure must reach. kind 1 connect, 2 webhook,
-- 3 log file, 4 retention. order_class 1 before sessions, 2 with sessions, 3
-- after memory. The secret is sealed under the tenant's key. A target never
-- changes: there is no UPDATE.
CREATE TABLE memd.purge_targets (
  tenant_no     bigint      NOT NULL,
  target_id     uuid        NOT NULL,
  name          text        NOT NULL,
  kind          smallint    NOT NULL CHECK (kind BETWEEN 1 AND 4),
  order_class   smallint    NOT NULL CHECK (order_class BETWEEN 1 AND 3),
  required      boolean     NOT NULL,
  url           text        NOT NULL DEFAULT '',
  timeout_ms    integer     NOT NULL CHECK (timeout_ms BETWEEN 100 AND 60000),
  allow_private boolean     NOT NULL DEFAULT false,
  path          text        NOT NULL DEFAULT '',
  retention_s   bigint      NOT NULL DEFAULT 0 CHECK (retention_s >= 0),
  user_field    text        NOT NULL DEFAULT '',
  session_field text        NOT NULL DEFAULT '',
  app_field     text        NOT NULL DEFAULT '',
  secret        bytea,
  created_at    timestamptz NOT NULL,
  created_by    uuid,
  PRIMARY KEY (tenant_no, target_id),
  UNIQUE (tenant_no, name),
  CHECK ((kind <= 2) = (secret IS NOT NULL)),
  CHECK ((kind <= 2) = (url <> '')),
  CHECK (kind <> 3 OR path <> '')
);
GRANT SELECT, INSERT, DELETE ON memd.purge_targets TO memd_app;
GRANT SELECT, DELETE ON memd.purge_targets TO memd_worker;

-- What the targets answered: one row for each erasure, target, operation and
-- round. No row names anybody, and the target's name is a copy, because a
-- receipt outlives the target.
CREATE TABLE memd.purge_acks (
  tenant_no    bigint      NOT NULL,
  request_id   uuid        NOT NULL,
  target_id    uuid        NOT NULL,
  op           smallint    NOT NULL CHECK (op BETWEEN 1 AND 3),
  round        smallint    NOT NULL CHECK (round >= 1),
  name         text        NOT NULL,
  kind         smallint    NOT NULL,
  order_class  smallint    NOT NULL,
  required     boolean     NOT NULL,
  acknowledged boolean     NOT NULL,
  code         text        NOT NULL CHECK (code ~ '^[a-z_]+$'),
  count_before bigint      CHECK (count_before >= 0),
  count_after  bigint      CHECK (count_after >= 0),
  erased       bigint      CHECK (erased >= 0),
  tries        integer     NOT NULL,
  residual_until timestamptz,
  recorded_at  timestamptz NOT NULL,
  PRIMARY KEY (tenant_no, request_id, target_id, op, round)
);
GRANT SELECT ON memd.purge_acks TO memd_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON memd.purge_acks TO memd_worker;

-- +goose Down
DROP TABLE memd.purge_acks, memd.purge_targets;
