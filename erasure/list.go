package erasure

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// MaxListed bounds a page of List.
const MaxListed = 200

// After says where a page of List begins: behind an erasure of the last one.
// The zero value begins with the newest.
type After struct {
	AcceptedAt time.Time
	ID         uuid.UUID
}

const sqlListJobs = sqlJobColumns + `
WHERE tenant_no = @tenant AND (cardinality(@states::smallint[]) = 0 OR state = ANY (@states::smallint[]))
  AND (@first OR (accepted_at, request_id) < (@before::timestamptz, @id::uuid))
ORDER BY accepted_at DESC, request_id DESC LIMIT @limit`

// List returns a page of a tenant's erasures, the newest first, of the states
// given or of any.
func List(ctx context.Context, db pg.DB, tenant memd.TenantNo, states []State, after After, limit int) ([]Job, error) {
	numbers := make([]int16, len(states))
	for i, s := range states {
		numbers[i] = int16(s)
	}
	rows, err := db.Query(ctx, sqlListJobs, pg.Args{
		"tenant": tenant, "states": numbers, "first": after == After{}, "before": after.AcceptedAt, "id": after.ID,
		"limit": min(limit, MaxListed),
	})
	if err != nil {
		return nil, fmt.Errorf("listing erasures: %w", err)
	}
	jobs, err := pgx.CollectRows(rows, scanJob)
	if err != nil {
		return nil, fmt.Errorf("listing erasures: %w", err)
	}
	return jobs, nil
}

// Backlog counts what is not finished, of all tenants.
type Backlog struct {
	// Open are not done; Sweeping are done and wait for their second sweep.
	Open, Sweeping int64
	// Overdue are past their time and not final, Held are kept by a legal hold,
	// Failing stopped at their last try.
	Overdue, Held, Failing int64
}

const sqlBacklog = `
SELECT count(*) FILTER (WHERE e.state < 3), count(*) FILTER (WHERE e.state = 3), count(*) FILTER (WHERE e.due_at < @now),
  count(*) FILTER (WHERE EXISTS (
    SELECT FROM memd.holds h WHERE h.tenant_no = e.tenant_no AND h.released_at IS NULL
      AND (h.kind = 4 OR e.kind = 4 OR h.user_ref = e.user_ref AND (h.kind = 1 OR e.kind = 1 OR h.session_ref = e.session_ref)))),
  count(*) FILTER (WHERE e.tries > 0)
FROM memd.erasures e WHERE e.state < 4`

// CountBacklog counts, asking the table.
func CountBacklog(ctx context.Context, db pg.DB, now time.Time) (Backlog, error) {
	var b Backlog
	err := db.QueryRow(ctx, sqlBacklog, pg.Args{"now": now}).Scan(&b.Open, &b.Sweeping, &b.Overdue, &b.Held, &b.Failing)
	if err != nil {
		return b, fmt.Errorf("counting erasures: %w", err)
	}
	return b, nil
}
