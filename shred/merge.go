package shred

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred/ledger"
)

const (
	sqlSelectSealed = `SELECT sealed FROM memd.key_trees WHERE tenant_no = @tenant AND epoch = @epoch`

	sqlMergeTree = `
INSERT INTO memd.key_trees (tenant_no, epoch, kms_version, digest, previous, sealed, created_at)
SELECT r.tenant_no, r.epoch, r.kms_version, r.digest, r.previous, @sealed, r.created_at
FROM jsonb_populate_record(NULL::memd.key_trees, @fact::jsonb) r`

	sqlMergeHead = `
INSERT INTO memd.tenant_keys AS k (tenant_no, kms_key, epoch) VALUES (@tenant, @key, @epoch)
ON CONFLICT (tenant_no) DO UPDATE SET epoch = greatest(k.epoch, excluded.epoch)`

	// What was journalled in the lost stretch of time is lost: the rotation to the
	// head is taken up where the old version is yet to be destroyed. Repeating
	// that does no harm.
	sqlMergeRotation = `
INSERT INTO memd.rotations (tenant_no, epoch, state, old_version, new_version, started_at, updated_at)
SELECT t.tenant_no, t.epoch + 1, @switched, t.kms_version, @version, now(), now()
FROM memd.key_trees t WHERE t.tenant_no = @tenant AND t.epoch = @epoch::bigint - 1
ON CONFLICT (tenant_no, epoch) DO UPDATE SET
  state = excluded.state, old_version = excluded.old_version, new_version = excluded.new_version,
  destroyed_at = NULL, destroy_due = NULL, updated_at = excluded.updated_at`

	// Punctures of a state that no ledger has were never done.
	sqlPendAgain = `
UPDATE memd.punctures p SET epoch = NULL FROM memd.tenant_keys k
WHERE k.tenant_no = p.tenant_no AND p.epoch > k.epoch`
)

// treeFact is what the journal says of a key tree.
type treeFact struct {
	Tenant  memd.TenantNo `json:"tenant_no"`
	Epoch   int64         `json:"epoch"`
	Version string        `json:"kms_version"`
}

// MergeTree brings a key tree, of which the journal tells, from the ledgers into
// a database that has lost it, and makes it the head when it is newer. A tree
// that the database has stays as it is; when it is another one than a ledger's,
// that is memd.ErrCorrupt. A tree that no ledger has was never used, and is
// passed over. Safe to repeat. For restores, in the owner's transaction.
func MergeTree(ctx context.Context, db pg.DB, ledgers []ledger.Ledger, fact json.RawMessage) error {
	var f treeFact
	if err := json.Unmarshal(fact, &f); err != nil {
		return corrupt("fact of a key tree cannot be read")
	}
	sealed, err := anyTree(ctx, ledgers, f)
	if err != nil || sealed == nil {
		return err
	}
	tenant, epoch, version, err := ParseTreeHeader(sealed)
	if err != nil {
		return err
	}
	key, _, _ := strings.Cut(version, versionPart)
	if tenant != f.Tenant || epoch != f.Epoch || version != f.Version {
		return corrupt("ledger has another key tree than its journal tells of")
	}
	var have []byte
	err = db.QueryRow(ctx, sqlSelectSealed, pg.Args{"tenant": f.Tenant, "epoch": f.Epoch}).Scan(&have)
	if err == nil {
		if !bytes.Equal(have, sealed) {
			return corrupt("database and ledger have different key trees of one epoch")
		}
		return nil
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("looking for a key tree: %w", err)
	}
	for _, s := range []struct {
		sql  string
		args pg.Args
	}{
		{sqlMergeTree, pg.Args{"sealed": sealed, "fact": string(fact)}},
		{sqlMergeHead, pg.Args{"tenant": f.Tenant, "key": key, "epoch": f.Epoch}},
		{sqlMergeRotation, pg.Args{"tenant": f.Tenant, "epoch": f.Epoch, "switched": RotationSwitched, "version": version}},
	} {
		if _, err := db.Exec(ctx, s.sql, s.args); err != nil {
			return fmt.Errorf("merging a key tree: %w", err)
		}
	}
	return nil
}

// anyTree returns the tree that the ledgers have, the same in all that have it
// whole, or nothing.
func anyTree(ctx context.Context, ledgers []ledger.Ledger, f treeFact) ([]byte, error) {
	var found []byte
	var damaged error
	for i, l := range ledgers {
		data, err := l.Get(ctx, ledgerName(f.Tenant, f.Epoch))
		switch {
		case errors.Is(err, memd.ErrNotFound):
		case errors.Is(err, memd.ErrCorrupt):
			damaged = fmt.Errorf("tree %s/%d of ledger %d: %w", f.Tenant, f.Epoch, i+1, err)
		case err != nil:
			return nil, fmt.Errorf("asking ledger %d for tree %s/%d: %w", i+1, f.Tenant, f.Epoch, err)
		case found != nil && !bytes.Equal(found, data):
			return nil, fmt.Errorf("tree %s/%d of ledger %d differs from the first's: %w", f.Tenant, f.Epoch, i+1, memd.ErrCorrupt)
		default:
			found = data
		}
	}
	if found == nil {
		return nil, damaged
	}
	return found, nil
}

// PendAgain has punctures that were never done wait for the next rotation. After
// the last MergeTree.
func PendAgain(ctx context.Context, db pg.DB) error {
	if _, err := db.Exec(ctx, sqlPendAgain); err != nil {
		return fmt.Errorf("reopening punctures: %w", err)
	}
	return nil
}

// LostKeysError says that a tenant's keys cannot be had any more.
type LostKeysError struct {
	Tenant memd.TenantNo
	Epoch  int64
	// Version wraps the newest key tree that is left.
	Version Version
}

// Error implements error.
func (e *LostKeysError) Error() string {
	switch e.Version.State {
	case VersionDestroyScheduled:
		return fmt.Sprintf("tenant %s: the newest key tree that is left, of epoch %d, is sealed under %s, which will be destroyed at %s: bring a ledger with a later tree, or have the key service restore that version before then",
			e.Tenant, e.Epoch, e.Version.Name, e.Version.DestroyAt.UTC().Format("2006-01-02 15:04 MST"))
	case VersionDestroyed:
		return fmt.Sprintf("tenant %s: the newest key tree that is left, of epoch %d, is sealed under %s, which was destroyed for good: without a ledger that has a later tree, everything of this tenant is lost, and memd restore give-up closes it",
			e.Tenant, e.Epoch, e.Version.Name)
	default:
		return fmt.Sprintf("tenant %s: the newest key tree that is left, of epoch %d, is sealed under %s, which is %s: have the key service enable it",
			e.Tenant, e.Epoch, e.Version.Name, e.Version.State)
	}
}

// Unwrap makes it a memd.ErrCorrupt: nobody may take it for the success of an
// erasure.
func (e *LostKeysError) Unwrap() error { return memd.ErrCorrupt }

// LaterTree reports whether a ledger has the state that follows an epoch of a
// tenant's.
func LaterTree(ctx context.Context, ledgers []ledger.Ledger, tenant memd.TenantNo, epoch int64) (bool, error) {
	err := absentEverywhere(ctx, ledgers, tenant, epoch+1)
	if errors.Is(err, errLedgerAhead) {
		return true, nil
	}
	return false, err
}

// Head opens the tree at the head of a tenant's line, now, and returns its keys,
// which the caller drops. *LostKeysError is one whose version is not usable;
// memd.ErrNotFound a tenant without keys, or past its end.
func Head(ctx context.Context, db pg.DB, kms KMS, tenant memd.TenantNo) (*Keys, error) {
	row, err := readHead(ctx, db, tenant)
	if err != nil {
		return nil, err
	}
	tree, err := row.open(ctx, kms)
	if errors.Is(err, memd.ErrShredded) {
		version, asked := kms.Get(ctx, row.KMSVersion)
		if asked != nil {
			return nil, fmt.Errorf("asking for the version of tree %s/%d: %w", tenant, row.Epoch, asked)
		}
		return nil, &LostKeysError{Tenant: tenant, Epoch: row.Epoch, Version: version}
	}
	if err != nil {
		return nil, err
	}
	return NewKeys(tree), nil
}

const sqlSelectTrees = `
SELECT k.tenant_no, k.kms_key, k.epoch AS head_epoch, t.epoch, t.kms_version, t.digest, t.previous, t.sealed
FROM memd.tenant_keys k JOIN memd.key_trees t ON t.tenant_no = k.tenant_no
WHERE (k.tenant_no, t.epoch) > (@tenant, @epoch) ORDER BY k.tenant_no, t.epoch LIMIT 100`

// PutTrees writes every key tree of the database to every ledger, for ledgers
// that were lost. Safe to repeat.
func PutTrees(ctx context.Context, db pg.DB, ledgers []ledger.Ledger) error {
	var tenant memd.TenantNo
	var epoch int64
	for {
		rows, err := db.Query(ctx, sqlSelectTrees, pg.Args{"tenant": tenant, "epoch": epoch})
		if err != nil {
			return fmt.Errorf("reading key trees: %w", err)
		}
		page, err := pgx.CollectRows(rows, pgx.RowToStructByName[treeRow])
		if err != nil {
			return fmt.Errorf("reading key trees: %w", err)
		}
		for _, row := range page {
			if err := putEverywhere(ctx, ledgers, row); err != nil {
				return err
			}
			tenant, epoch = row.Tenant, row.Epoch
		}
		if len(page) < 100 {
			return nil
		}
	}
}
