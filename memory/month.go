package memory

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// A month of memories is what goes together when it expires: rows whose earliest
// words are of that month, whosever they are.

const sqlCountMonth = `
SELECT count(*), count(*) FILTER (WHERE dimension > 0), count(*) FILTER (WHERE kind > 1)
FROM memd.memories WHERE tenant_no = @tenant AND month = @month`

// CountMonth counts the rows of a month, asking the table.
func CountMonth(ctx context.Context, db pg.DB, tenant memd.TenantNo, month memd.Month) (Counts, error) {
	var c Counts
	err := db.QueryRow(ctx, sqlCountMonth, pg.Args{"tenant": tenant, "month": month}).Scan(&c.Memories, &c.Vectors, &c.Derived)
	if err != nil {
		return c, fmt.Errorf("counting a month's memories: %w", err)
	}
	return c, nil
}

const sqlDeleteMonth = `
DELETE FROM memd.memories m USING (
  SELECT memory_id FROM memd.memories WHERE tenant_no = @tenant AND month = @month LIMIT @limit) d
WHERE m.tenant_no = @tenant AND m.memory_id = d.memory_id AND m.month = @month`

// DeleteMonthBatch deletes up to limit rows of a month and returns how many. It is
// repeated until it deletes none. For a month that is closed to writers: the rows
// leave no mark.
func DeleteMonthBatch(ctx context.Context, db pg.DB, tenant memd.TenantNo, month memd.Month, limit int) (int64, error) {
	tag, err := db.Exec(ctx, sqlDeleteMonth, pg.Args{"tenant": tenant, "month": month, "limit": limit})
	if err != nil {
		return 0, fmt.Errorf("deleting a month's memories: %w", err)
	}
	return tag.RowsAffected(), nil
}

const sqlMonths = `
SELECT month, count(*), coalesce(sum(coalesce(octet_length(sealed_text), 0) + coalesce(octet_length(sealed_vector), 0)
  + coalesce(octet_length(sealed_metadata), 0)), 0)::bigint
FROM memd.memories WHERE tenant_no = @tenant AND month < @before GROUP BY month ORDER BY month`

// Months returns how much there is of each month before one.
func Months(ctx context.Context, db pg.DB, tenant memd.TenantNo, before memd.Month) ([]memd.MonthSize, error) {
	rows, err := db.Query(ctx, sqlMonths, pg.Args{"tenant": tenant, "before": before})
	if err != nil {
		return nil, fmt.Errorf("measuring the months of memories: %w", err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByPos[memd.MonthSize])
	if err != nil {
		return nil, fmt.Errorf("measuring the months of memories: %w", err)
	}
	return out, nil
}
