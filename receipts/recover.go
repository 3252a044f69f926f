package receipts

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred/ledger"
)

// entryPrefix begins the names of everything that this package keeps in ledgers.
const entryPrefix = "receipts/"

// Recover gives a database that was rolled back the signing keys and receipts
// that it lost, as the ledger has them, and returns how many receipts those
// were. installation is the database's. memd.ErrCorrupt: ledger and database do
// not hold one log. Safe to repeat.
func Recover(ctx context.Context, pool *pg.Pool, l ledger.Ledger, installation uuid.UUID) (int, error) {
	if _, err := (SignerConfig{Pool: pool, Ledger: l}).catchUp(ctx); err != nil {
		return 0, err
	}
	ends, err := ends(ctx, l)
	if err != nil {
		return 0, err
	}
	i := &Issuer{Pool: pool, Signer: &Signer{installation: installation}, Ledger: l}
	recovered := 0
	for _, tenant := range slices.Sorted(maps.Keys(ends)) {
		for {
			log, err := i.look(ctx, tenant, uuid.Nil)
			if err != nil {
				return recovered, err
			}
			if log.line.size() >= ends[tenant] {
				break
			}
			name := EntryName(tenant, log.line.size())
			data, err := l.Get(ctx, name)
			if err != nil {
				return recovered, fmt.Errorf("reading an entry of a receipts log: %w", err)
			}
			if err := i.takeOver(ctx, tenant, log, name, data); err != nil {
				return recovered, err
			}
			recovered++
		}
	}
	return recovered, nil
}

// ends returns how long the ledger says that each tenant's log is.
func ends(ctx context.Context, l ledger.Ledger) (map[memd.TenantNo]uint64, error) {
	names, err := l.List(ctx, entryPrefix)
	if err != nil {
		return nil, fmt.Errorf("listing receipts: %w", err)
	}
	ends := map[memd.TenantNo]uint64{}
	for _, name := range names {
		of, at, _ := strings.Cut(strings.TrimPrefix(name, entryPrefix), "/")
		tenant, err := strconv.ParseInt(of, 10, 64)
		if err != nil {
			continue // A key.
		}
		index, err := strconv.ParseUint(at, 10, 64)
		if err != nil {
			return nil, corrupt("name among the receipts in the ledger")
		}
		ends[memd.TenantNo(tenant)] = max(ends[memd.TenantNo(tenant)], index+1)
	}
	return ends, nil
}

const (
	sqlReadRecords = `SELECT key_no, record FROM memd.receipt_keys ORDER BY key_no`

	sqlReadEntries = `
SELECT tenant_no, log_index, bundle FROM memd.receipts
WHERE (tenant_no, log_index) > (@tenant, @index) ORDER BY tenant_no, log_index LIMIT @limit`
)

// Refill writes every signing key and receipt of the database to a ledger that
// was lost. Safe to repeat.
func Refill(ctx context.Context, db pg.DB, l ledger.Ledger) error {
	rows, err := db.Query(ctx, sqlReadRecords, pg.Args{})
	if err != nil {
		return fmt.Errorf("reading the signing keys: %w", err)
	}
	type record struct {
		Number int
		Data   []byte
	}
	records, err := pgx.CollectRows(rows, pgx.RowToStructByPos[record])
	if err != nil {
		return fmt.Errorf("reading the signing keys: %w", err)
	}
	for _, r := range records {
		if err := ledger.PutSame(ctx, l, keyName(r.Number), r.Data); err != nil {
			return fmt.Errorf("keeping a signing key: %w", err)
		}
	}
	type entry struct {
		Tenant memd.TenantNo
		Index  int64
		Data   []byte
	}
	last := entry{Index: -1}
	for {
		rows, err := db.Query(ctx, sqlReadEntries, pg.Args{"tenant": last.Tenant, "index": last.Index, "limit": maxPage})
		if err != nil {
			return fmt.Errorf("reading receipts: %w", err)
		}
		page, err := pgx.CollectRows(rows, pgx.RowToStructByPos[entry])
		if err != nil {
			return fmt.Errorf("reading receipts: %w", err)
		}
		for _, e := range page {
			if err := ledger.PutSame(ctx, l, EntryName(e.Tenant, uint64(e.Index)), e.Data); err != nil {
				return fmt.Errorf("keeping a receipt: %w", err)
			}
			last = e
		}
		if len(page) < maxPage {
			return nil
		}
	}
}
