package shred

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred/ledger"
)

// treeRow is one stored state of a tenant's tree: sealed, so no secret.
type treeRow struct {
	Tenant     memd.TenantNo `db:"tenant_no"`
	Key        string        `db:"kms_key"`
	HeadEpoch  int64         `db:"head_epoch"`
	Epoch      int64         `db:"epoch"`
	KMSVersion string        `db:"kms_version"`
	Digest     []byte        `db:"digest"`
	Previous   []byte        `db:"previous"`
	Sealed     []byte        `db:"sealed"`
}

const sqlSelectHeadTree = `
SELECT k.tenant_no, k.kms_key, k.epoch AS head_epoch, t.epoch, t.kms_version, t.digest, t.previous, t.sealed
FROM memd.tenant_keys k
JOIN memd.key_trees t ON t.tenant_no = k.tenant_no AND t.epoch = k.epoch
WHERE k.tenant_no = @tenant`

// readHead returns the tree at the head of the tenant's line, or memd.ErrNotFound
// for a tenant without keys.
func readHead(ctx context.Context, db pg.DB, tenant memd.TenantNo) (treeRow, error) {
	return readTree(ctx, db, sqlSelectHeadTree, pg.Args{"tenant": tenant})
}

const sqlSelectHeadEntry = `
SELECT k.tenant_no, k.kms_key, k.epoch AS head_epoch, t.epoch, t.kms_version, t.digest, t.previous, NULL::bytea AS sealed
FROM memd.tenant_keys k
JOIN memd.key_trees t ON t.tenant_no = k.tenant_no AND t.epoch = k.epoch
WHERE k.tenant_no = @tenant`

// readHeadEntry is readHead without the sealed state, which may have megabytes.
func readHeadEntry(ctx context.Context, db pg.DB, tenant memd.TenantNo) (treeRow, error) {
	return readTree(ctx, db, sqlSelectHeadEntry, pg.Args{"tenant": tenant})
}

const sqlSelectTree = `
SELECT k.tenant_no, k.kms_key, k.epoch AS head_epoch, t.epoch, t.kms_version, t.digest, t.previous, t.sealed
FROM memd.tenant_keys k
JOIN memd.key_trees t ON t.tenant_no = k.tenant_no
WHERE k.tenant_no = @tenant AND t.epoch = @epoch`

// readEpoch returns the tree of one epoch, or memd.ErrNotFound.
func readEpoch(ctx context.Context, db pg.DB, tenant memd.TenantNo, epoch int64) (treeRow, error) {
	return readTree(ctx, db, sqlSelectTree, pg.Args{"tenant": tenant, "epoch": epoch})
}

func readTree(ctx context.Context, db pg.DB, sql string, args pg.Args) (treeRow, error) {
	rows, err := db.Query(ctx, sql, args)
	if err != nil {
		return treeRow{}, pg.Classify(fmt.Errorf("reading a key tree: %w", err))
	}
	row, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[treeRow])
	if errors.Is(err, pgx.ErrNoRows) {
		return treeRow{}, fmt.Errorf("reading a key tree: %w", memd.ErrNotFound)
	}
	if err != nil {
		return treeRow{}, pg.Classify(fmt.Errorf("reading a key tree: %w", err))
	}
	return row, nil
}

const sqlSelectHeadEpoch = `SELECT epoch FROM memd.tenant_keys WHERE tenant_no = @tenant`

// headEpoch returns the tenant's current epoch, or memd.ErrNotFound.
func headEpoch(ctx context.Context, db pg.DB, tenant memd.TenantNo) (int64, error) {
	var epoch int64
	err := db.QueryRow(ctx, sqlSelectHeadEpoch, pg.Args{"tenant": tenant}).Scan(&epoch)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("reading the head epoch: %w", memd.ErrNotFound)
	}
	if err != nil {
		return 0, pg.Classify(fmt.Errorf("reading the head epoch: %w", err))
	}
	return epoch, nil
}

// open unwraps the state now: it asks the KMS each time, which is what proofs
// need. It checks that what opened is what the row says it is. The caller
// zeroes the tree.
func (row treeRow) open(ctx context.Context, kms KMS) (*Tree, error) {
	t, version, err := OpenTree(ctx, kms, row.Key, row.Sealed)
	if err != nil {
		return nil, fmt.Errorf("opening tree %s/%d: %w", row.Tenant, row.Epoch, err)
	}
	digest := t.Digest()
	switch {
	case t.Tenant() != row.Tenant || t.Epoch() != row.Epoch:
		err = corrupt("tree belongs to another tenant or epoch")
	case version != row.KMSVersion:
		err = corrupt("tree is sealed under another version than recorded")
	case !bytes.Equal(digest[:], row.Digest):
		err = corrupt("tree has another digest than recorded")
	}
	if err != nil {
		t.Zero()
		return nil, fmt.Errorf("opening tree %s/%d: %w", row.Tenant, row.Epoch, err)
	}
	return t, nil
}

// ledgerName is where every ledger keeps a state. Fixed width, so that a
// listing sorts by epoch.
func ledgerName(tenant memd.TenantNo, epoch int64) string {
	return fmt.Sprintf("trees/%s/%020d", tenant, epoch)
}

// errLedgerAhead: a ledger holds an epoch that the database does not, so the
// database was rolled back. Nothing may be rotated before it was replayed.
var errLedgerAhead = corrupt("a ledger holds a later key tree than the database, which must have been rolled back")

// putEverywhere writes a state to every ledger, at the same time because a
// bucket takes a network's time to answer. Safe to repeat.
func putEverywhere(ctx context.Context, ledgers []ledger.Ledger, row treeRow) error {
	g, ctx := errgroup.WithContext(ctx)
	for i, l := range ledgers {
		g.Go(func() error {
			err := ledger.PutSame(ctx, l, ledgerName(row.Tenant, row.Epoch), row.Sealed)
			if errors.Is(err, memd.ErrExists) {
				return fmt.Errorf("tree %s/%d of ledger %d differs from the database's: %w", row.Tenant, row.Epoch, i, memd.ErrCorrupt)
			}
			if err != nil {
				return fmt.Errorf("writing tree %s/%d to ledger %d: %w", row.Tenant, row.Epoch, i, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// sameEverywhere reads the state back from every ledger and compares all bytes.
func sameEverywhere(ctx context.Context, ledgers []ledger.Ledger, row treeRow) error {
	g, ctx := errgroup.WithContext(ctx)
	for i, l := range ledgers {
		g.Go(func() error {
			data, err := l.Get(ctx, ledgerName(row.Tenant, row.Epoch))
			if err != nil {
				return fmt.Errorf("reading tree %s/%d from ledger %d: %w", row.Tenant, row.Epoch, i, err)
			}
			if !bytes.Equal(data, row.Sealed) {
				return fmt.Errorf("tree %s/%d of ledger %d differs from the database's: %w", row.Tenant, row.Epoch, i, memd.ErrCorrupt)
			}
			return nil
		})
	}
	return g.Wait()
}

// absentEverywhere returns errLedgerAhead when a ledger knows the epoch.
func absentEverywhere(ctx context.Context, ledgers []ledger.Ledger, tenant memd.TenantNo, epoch int64) error {
	g, ctx := errgroup.WithContext(ctx)
	for i, l := range ledgers {
		g.Go(func() error {
			_, err := l.Get(ctx, ledgerName(tenant, epoch))
			switch {
			case err == nil:
				return errLedgerAhead
			case errors.Is(err, memd.ErrNotFound):
				return nil
			}
			return fmt.Errorf("asking ledger %d for tree %s/%d: %w", i, tenant, epoch, err)
		})
	}
	return g.Wait()
}
