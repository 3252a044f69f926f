package sessions

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// A month of sessions is what goes together when it expires: the sessions that were
// created in it, with their events and their state. State of users and apps has no
// month.

const sqlCountMonth = `
SELECT (SELECT count(*) FROM memd.session_heads WHERE tenant_no = @tenant AND month = @month),
  (SELECT count(*) FROM memd.session_events WHERE tenant_no = @tenant AND month = @month),
  (SELECT count(*) FROM memd.session_state WHERE tenant_no = @tenant AND month = @month), 0::bigint, 0::bigint`

// CountMonth counts the rows of a month, asking the tables.
func CountMonth(ctx context.Context, db pg.DB, tenant memd.TenantNo, month memd.Month) (Counts, error) {
	return count(ctx, db, sqlCountMonth, pg.Args{"tenant": tenant, "month": month})
}

var sqlDeleteMonth = []string{
	`
DELETE FROM memd.session_events e USING (
  SELECT subject_no, session_no, seq FROM memd.session_events WHERE tenant_no = @tenant AND month = @month LIMIT @limit) d
WHERE e.tenant_no = @tenant AND e.subject_no = d.subject_no AND e.session_no = d.session_no AND e.month = @month AND e.seq = d.seq`,
	`
DELETE FROM memd.session_state e USING (
  SELECT subject_no, session_no, key_digest FROM memd.session_state WHERE tenant_no = @tenant AND month = @month LIMIT @limit) d
WHERE e.tenant_no = @tenant AND e.subject_no = d.subject_no AND e.session_no = d.session_no AND e.key_digest = d.key_digest`,
	`
DELETE FROM memd.session_heads e USING (
  SELECT subject_no, session_no FROM memd.session_heads WHERE tenant_no = @tenant AND month = @month LIMIT @limit) d
WHERE e.tenant_no = @tenant AND e.subject_no = d.subject_no AND e.session_no = d.session_no`,
}

// DeleteMonthBatch deletes up to limit rows of a month and returns how many. It is
// repeated until it deletes none. Sessions that were made anew under the id of one
// that went are of another month, and stay.
func DeleteMonthBatch(ctx context.Context, db pg.DB, tenant memd.TenantNo, month memd.Month, limit int) (int64, error) {
	return deleteBatch(ctx, db, sqlDeleteMonth, pg.Args{"tenant": tenant, "month": month}, limit)
}

// What became of a month's partition.
const (
	PartitionDropped = "dropped"
	PartitionAbsent  = "absent"
	// PartitionKept: somebody has events in it whose month is not to expire.
	PartitionKept = "kept"
	// PartitionWaits: everybody who has is about to expire it, and not all of their
	// keys have gone.
	PartitionWaits = "waits"
	// PartitionBusy: somebody reads it for long, a dump perhaps.
	PartitionBusy = "busy"
)

const sqlDropMonth = `SELECT memd.drop_event_month(@month)`

// DropMonth drops the partition of a month's events if nobody has any that are to be
// kept, and says what became of it.
func DropMonth(ctx context.Context, db pg.DB, month memd.Month) (string, error) {
	var became string
	if err := db.QueryRow(ctx, sqlDropMonth, pg.Args{"month": month}).Scan(&became); err != nil {
		return "", fmt.Errorf("dropping a month's partition: %w", err)
	}
	return became, nil
}

const sqlDropped = `SELECT coalesce(sum(events), 0)::bigint FROM memd.dropped_events WHERE tenant_no = @tenant AND month = @month`

// DroppedEvents counts a tenant's events of a month that went with its partition,
// whoever dropped it.
func DroppedEvents(ctx context.Context, db pg.DB, tenant memd.TenantNo, month memd.Month) (n int64, err error) {
	if err = db.QueryRow(ctx, sqlDropped, pg.Args{"tenant": tenant, "month": month}).Scan(&n); err != nil {
		return 0, fmt.Errorf("counting what went with a partition: %w", err)
	}
	return n, nil
}

const sqlMonths = `
SELECT u.month, sum(u.rows)::bigint, sum(u.bytes)::bigint FROM (
  SELECT month, count(*) AS rows, 0::bigint AS bytes FROM memd.session_heads WHERE tenant_no = @tenant AND month < @before GROUP BY month
  UNION ALL
  SELECT month, count(*), coalesce(sum(octet_length(sealed)), 0) FROM memd.session_events WHERE tenant_no = @tenant AND month < @before GROUP BY month
  UNION ALL
  SELECT month, count(*), coalesce(sum(octet_length(sealed)), 0) FROM memd.session_state WHERE tenant_no = @tenant AND month < @before GROUP BY month
) u GROUP BY u.month ORDER BY u.month`

// Months returns how much there is of each month before one.
func Months(ctx context.Context, db pg.DB, tenant memd.TenantNo, before memd.Month) ([]memd.MonthSize, error) {
	rows, err := db.Query(ctx, sqlMonths, pg.Args{"tenant": tenant, "before": before})
	if err != nil {
		return nil, fmt.Errorf("measuring the months of sessions: %w", err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByPos[memd.MonthSize])
	if err != nil {
		return nil, fmt.Errorf("measuring the months of sessions: %w", err)
	}
	return out, nil
}
