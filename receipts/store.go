package receipts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	tinkpb "github.com/tink-crypto/tink-go/v2/proto/tink_go_proto"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// How stages are stored; append only.
var stageNumber = map[Stage]int16{Provisional: 1, Final: 2}

// The log's last row comes as itself, the request's as ours; one row may be both.
const sqlReadHead = `
(SELECT log_index, bundle, false FROM memd.receipts WHERE tenant_no = @tenant ORDER BY log_index DESC LIMIT 1)
UNION ALL
SELECT log_index, bundle, true FROM memd.receipts WHERE tenant_no = @tenant AND request_id = @request`

const sqlInsertEntry = `
INSERT INTO memd.receipts (tenant_no, log_index, request_id, stage, leaf, bundle, issued_at)
VALUES (@tenant, @index, @request, @stage, @leaf, @bundle, @issued)
ON CONFLICT DO NOTHING`

const sqlHasEntry = `
SELECT EXISTS (SELECT FROM memd.receipts WHERE tenant_no = @tenant AND log_index = @index AND leaf = @leaf)`

const sqlReadRequest = `
SELECT bundle FROM memd.receipts WHERE tenant_no = @tenant AND request_id = @request ORDER BY log_index`

const sqlReadLog = `
SELECT bundle FROM memd.receipts WHERE tenant_no = @tenant AND log_index >= @from ORDER BY log_index LIMIT @limit`

const sqlReadKeyRecords = `
SELECT record FROM memd.receipt_keys ORDER BY key_no`

const sqlReadPublicKeys = `
SELECT public_key FROM memd.receipt_keys ORDER BY key_no`

const sqlReadNewestKey = `
SELECT coalesce(max(key_no), 0) FROM memd.receipt_keys`

const sqlInsertKey = `
INSERT INTO memd.receipt_keys (key_no, key_id, public_key, record, created_at)
VALUES (@number, @id, @public, @record, @created)
ON CONFLICT (key_no) DO NOTHING`

// logRow is one row of readHead.
type logRow struct {
	Index  int64
	Bundle []byte
	Ours   bool
}

func readHead(ctx context.Context, db pg.DB, tenant memd.TenantNo, request uuid.UUID) ([]logRow, error) {
	rows, err := db.Query(ctx, sqlReadHead, pg.Args{"tenant": tenant, "request": request})
	if err != nil {
		return nil, fmt.Errorf("reading the log's head: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[logRow])
	if err != nil {
		return nil, fmt.Errorf("reading the log's head: %w", err)
	}
	return all, nil
}

// insertEntry does nothing when the entry is there, from whoever issues it at the
// same time: the ledger has one entry for each place, and one place for each
// request and stage. Another entry in its way is memd.ErrCorrupt.
func insertEntry(ctx context.Context, db pg.DB, tenant memd.TenantNo, b Bundle, data []byte) error {
	leaf, err := b.Entry.Leaf()
	if err != nil {
		return err
	}
	r := b.Entry.Receipt
	tag, err := db.Exec(ctx, sqlInsertEntry, pg.Args{
		"tenant": tenant, "index": int64(b.Entry.Index), "request": r.RequestID, "stage": stageNumber[r.Stage],
		"leaf": leaf[:], "bundle": data, "issued": r.Times.Issued,
	})
	there := err == nil && tag.RowsAffected() == 1
	if err == nil && !there {
		err = db.QueryRow(ctx, sqlHasEntry, pg.Args{"tenant": tenant, "index": int64(b.Entry.Index), "leaf": leaf[:]}).Scan(&there)
	}
	if err == nil && !there {
		err = memd.ErrCorrupt
	}
	if err != nil {
		return fmt.Errorf("recording a receipt: %w", err)
	}
	return nil
}

// Read returns the receipts of a request as they were issued, the provisional
// before the final; memd.ErrNotFound when there are none. It verifies nothing.
func Read(ctx context.Context, db pg.DB, tenant memd.TenantNo, request uuid.UUID) ([]Bundle, error) {
	all, err := readBundles(ctx, db, sqlReadRequest, pg.Args{"tenant": tenant, "request": request})
	if err == nil && len(all) == 0 {
		return nil, fmt.Errorf("reading receipts: %w", memd.ErrNotFound)
	}
	return all, err
}

// maxPage bounds what ReadLog returns at once.
const maxPage = 500

// ReadLog returns a tenant's receipts of all requests, from a place in its log
// on, at most 500. A shorter answer than that is the log's end.
func ReadLog(ctx context.Context, db pg.DB, tenant memd.TenantNo, from uint64) ([]Bundle, error) {
	return readBundles(ctx, db, sqlReadLog, pg.Args{"tenant": tenant, "from": int64(from), "limit": maxPage})
}

func readBundles(ctx context.Context, db pg.DB, sql string, args pg.Args) ([]Bundle, error) {
	rows, err := db.Query(ctx, sql, args)
	if err != nil {
		return nil, fmt.Errorf("reading receipts: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		return nil, fmt.Errorf("reading receipts: %w", err)
	}
	bundles := make([]Bundle, len(all))
	for i, data := range all {
		if bundles[i], err = ParseBundle(data); err != nil {
			return nil, err
		}
	}
	return bundles, nil
}

// PublicKeys returns the installation's public keys, the newest as primary. Any
// role may read them. memd.ErrNotFound: no worker has made one yet.
func PublicKeys(ctx context.Context, db pg.DB) (*Keys, error) {
	rows, err := db.Query(ctx, sqlReadPublicKeys)
	if err != nil {
		return nil, fmt.Errorf("reading the public keys: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		return nil, fmt.Errorf("reading the public keys: %w", err)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("reading the public keys: %w", memd.ErrNotFound)
	}
	sets := make([]*tinkpb.Keyset, len(all))
	for i, data := range all {
		if sets[i], err = (keyRecord{Public: data}).publicSet(); err != nil {
			return nil, err
		}
	}
	keys, err := mergeKeys(sets)
	if err != nil {
		return nil, errors.Join(corrupt("public keys"), err)
	}
	return keys, nil
}

func readKeyRecords(ctx context.Context, db pg.DB) ([]keyRecord, error) {
	rows, err := db.Query(ctx, sqlReadKeyRecords)
	if err != nil {
		return nil, fmt.Errorf("reading the signing keys: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		return nil, fmt.Errorf("reading the signing keys: %w", err)
	}
	records := make([]keyRecord, len(all))
	for i, data := range all {
		if err := json.Unmarshal(data, &records[i]); err != nil || records[i].Number != i+1 {
			return nil, corrupt("signing keys")
		}
	}
	return records, nil
}

func readNewestKey(ctx context.Context, db pg.DB) (number int, err error) {
	if err = db.QueryRow(ctx, sqlReadNewestKey).Scan(&number); err != nil {
		return 0, fmt.Errorf("looking for a newer signing key: %w", err)
	}
	return number, nil
}

func insertKey(ctx context.Context, db pg.DB, r keyRecord, data []byte) error {
	_, err := db.Exec(ctx, sqlInsertKey, pg.Args{
		"number": r.Number, "id": r.KeyID[:], "public": r.Public, "record": data, "created": r.CreatedAt,
	})
	if err != nil {
		return fmt.Errorf("recording a signing key: %w", err)
	}
	return nil
}
