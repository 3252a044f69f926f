package sketches

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// Table is the sketches of a scope, as one snapshot has them.
type Table struct {
	No    int64
	Owner memd.Number
	// Since is the transaction from which on rows are to be looked at themselves.
	Since int64
	// Rows is how many there were when the table was last brought up to date.
	Rows int64
}

// ErrGone says that a table was dropped after its snapshot was taken. The caller
// begins again, with a later one.
var ErrGone = errors.New("sketches were dropped meanwhile")

const sqlFind = `
SELECT s.sketch_no, s.owner_no, s.since, s.rows
FROM memd.live_subjects l JOIN memd.sketches s ON s.tenant_no = l.tenant_no AND s.owner_no = l.subject_no
WHERE l.tenant_no = @tenant AND l.user_ref = @ref AND s.state = 3 AND s.dimension = @dimension
  AND s.relation = to_regclass('memd_sketches.s' || s.sketch_no)`

// Find returns the sketches of a scope, if there are any to be searched. db is a
// transaction that reads all from one snapshot.
func Find(ctx context.Context, db pg.DB, tenant memd.TenantNo, ref memd.Ref, dimension int) (t Table, ok bool, err error) {
	err = db.QueryRow(ctx, sqlFind, pg.Args{"tenant": tenant, "ref": ref[:], "dimension": dimension}).Scan(&t.No, &t.Owner, &t.Since, &t.Rows)
	if errors.Is(err, pgx.ErrNoRows) {
		return t, false, nil
	}
	if err != nil {
		return t, false, fmt.Errorf("looking for sketches: %w", err)
	}
	return t, true, nil
}

// An index scan goes on until the limit is reached or most of the graph was seen, in
// the memory of a few queries.
const sqlScanSettings = `
SELECT set_config('hnsw.ef_search', '200', true), set_config('hnsw.iterative_scan', 'relaxed_order', true),
  set_config('hnsw.max_scan_tuples', @tuples, true), set_config('hnsw.scan_mem_multiplier', '16', true)`

// Nearest returns the ids of the rows whose sketches are nearest by Hamming
// distance, about the nearest first, up to limit; fewer say that the index has no
// more to give. It returns ErrGone when the table is gone; the transaction has failed
// then.
func Nearest(ctx context.Context, db pg.DB, t Table, sketch []byte, limit int) ([]uuid.UUID, error) {
	if _, err := db.Exec(ctx, sqlScanSettings, pg.Args{"tuples": strconv.Itoa(max(20_000, 4*limit))}); err != nil {
		return nil, fmt.Errorf("searching sketches: %w", err)
	}
	rows, err := db.Query(ctx, `SELECT memory_id FROM `+name(t.No)+` ORDER BY sketch <~> $1 LIMIT $2`, bitsOf(sketch), limit)
	if err == nil {
		var ids []uuid.UUID
		if ids, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID]); err == nil {
			return ids, nil
		}
	}
	if pg.SQLState(err) == undefinedTable {
		return nil, ErrGone
	}
	return nil, fmt.Errorf("searching sketches: %w", err)
}

const undefinedTable = "42P01"

const sqlWant = `
INSERT INTO memd.sketches AS s (tenant_no, owner_no, dimension, wanted_at)
SELECT l.tenant_no, l.subject_no, @dimension, @now FROM memd.live_subjects l WHERE l.tenant_no = @tenant AND l.user_ref = @ref
ON CONFLICT (tenant_no, owner_no) DO UPDATE SET wanted_at = excluded.wanted_at`

// Want says that searches of a scope would use sketches, or do. It is safe to repeat,
// and what nobody repeats for Unwanted is dropped.
func Want(ctx context.Context, db pg.DB, tenant memd.TenantNo, ref memd.Ref, dimension int, now time.Time) error {
	if _, err := db.Exec(ctx, sqlWant, pg.Args{"tenant": tenant, "ref": ref[:], "dimension": dimension, "now": now}); err != nil {
		return fmt.Errorf("asking for sketches: %w", err)
	}
	return nil
}

func name(no int64) string { return "memd_sketches.s" + strconv.FormatInt(no, 10) }

func bitsOf(sketch []byte) pgtype.Bits {
	return pgtype.Bits{Bytes: sketch, Len: int32(8 * len(sketch)), Valid: true}
}
