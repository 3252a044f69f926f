package tombstones

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// drainLimit bounds how long BuryMonth waits for writers: theirs are the shortest
// of transactions, and somebody else's in the same server may be the longest.
const drainLimit = 5 * time.Second

const sqlInsertMonthTombstone = `
INSERT INTO memd.tombstones (tenant_no, kind, ref, changed_xid, request_id, recorded_at)
VALUES (@tenant, 4, int2send(@class::smallint) || int4send(@month::integer), pg_current_xact_id()::text::bigint, @request, @now)
ON CONFLICT DO NOTHING`

const sqlSnapshot = `
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint, pg_snapshot_xmax(pg_current_snapshot())::text::bigint`

// BuryMonth closes a month of a class to all writers, for good, and waits until
// those that were under way have ended, so that what is counted afterwards is all
// there is. One that it did not wait for any longer writes what nobody can read,
// and the second sweep deletes that. Repeating it changes nothing.
func BuryMonth(ctx context.Context, pool *pg.Pool, tenant memd.TenantNo, class memd.Class, month memd.Month, request uuid.UUID, now time.Time) error {
	return pool.With(ctx, func(db pg.DB) error {
		_, err := db.Exec(ctx, sqlInsertMonthTombstone, pg.Args{
			"tenant": tenant, "class": class, "month": month, "request": request, "now": now,
		})
		if err != nil {
			return fmt.Errorf("burying a month: %w", err)
		}
		return drainAll(ctx, db)
	})
}

// drainAll waits until every transaction has ended that is writing now.
func drainAll(ctx context.Context, db pg.DB) error {
	var oldest, end int64
	if err := db.QueryRow(ctx, sqlSnapshot).Scan(&oldest, &end); err != nil {
		return fmt.Errorf("waiting for writers: %w", err)
	}
	began := time.Now()
	tick := time.NewTicker(drainPause)
	defer tick.Stop()
	for oldest < end && time.Since(began) < drainLimit {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		var newer int64
		if err := db.QueryRow(ctx, sqlSnapshot).Scan(&oldest, &newer); err != nil {
			return fmt.Errorf("waiting for writers: %w", err)
		}
	}
	return nil
}
