-- +goose Up

-- The keys that sign receipts: one row for each, the newest signs, all verify.
-- record holds the private key, sealed under a KMS version, as the ledger has
-- it too. The application may open what the KMS wraps, and so may not read it.
CREATE TABLE memd.receipt_keys (
  key_no     smallint    PRIMARY KEY CHECK (key_no >= 1),
  key_id     bytea       NOT NULL UNIQUE CHECK (octet_length(key_id) = 8),
  public_key bytea       NOT NULL,
  record     bytea       NOT NULL,
  created_at timestamptz NOT NULL
);
GRANT SELECT (key_no, key_id, public_key, created_at) ON memd.receipt_keys TO memd_app;
GRANT SELECT, INSERT ON memd.receipt_keys TO memd_worker;

-- Each tenant's transparency log: receipts in the order that the ledger decided,
-- with all that is needed to verify them. No row is ever changed or deleted.
-- stage 1: provisional, 2: final.
CREATE TABLE memd.receipts (
  tenant_no  bigint      NOT NULL,
  log_index  bigint      NOT NULL CHECK (log_index >= 0),
  request_id uuid        NOT NULL,
  stage      smallint    NOT NULL CHECK (stage IN (1, 2)),
  leaf       bytea       NOT NULL CHECK (octet_length(leaf) = 32),
  bundle     bytea       NOT NULL,
  issued_at  timestamptz NOT NULL,
  PRIMARY KEY (tenant_no, log_index),
  UNIQUE (tenant_no, request_id, stage)
);
GRANT SELECT ON memd.receipts TO memd_app;
GRANT SELECT, INSERT ON memd.receipts TO memd_worker;

-- +goose Down
DROP TABLE memd.receipts, memd.receipt_keys;
