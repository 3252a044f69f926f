package shred

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

const sqlSelectUnfinished = `
SELECT DISTINCT r.tenant_no FROM memd.rotations r JOIN memd.tenant_keys k ON k.tenant_no = r.tenant_no
WHERE r.epoch >= k.epoch AND NOT r.state = ANY (@settled::smallint[]) ORDER BY r.tenant_no`

// Unfinished returns the tenants with a rotation that somebody began and
// nobody finished. Rotate takes each up where it stopped.
func Unfinished(ctx context.Context, db pg.DB) ([]memd.TenantNo, error) {
	rows, err := db.Query(ctx, sqlSelectUnfinished, pg.Args{
		"settled": []int16{int16(RotationFinished), int16(RotationSuperseded), int16(RotationVoided)},
	})
	if err != nil {
		return nil, pg.Classify(fmt.Errorf("finding unfinished rotations: %w", err))
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[memd.TenantNo])
	if err != nil {
		return nil, pg.Classify(fmt.Errorf("finding unfinished rotations: %w", err))
	}
	return out, nil
}

const sqlSelectOverdue = `
SELECT DISTINCT p.tenant_no FROM memd.punctures p JOIN memd.key_trees t ON t.tenant_no = p.tenant_no
JOIN memd.tenant_keys k ON k.tenant_no = t.tenant_no AND k.epoch = t.epoch
WHERE p.epoch IS NULL AND p.requested_at < @before ORDER BY p.tenant_no`

// Overdue returns the tenants with a puncture that was asked for before a moment
// and that no rotation has taken up. It leaves out tenants whose keys have ended.
func Overdue(ctx context.Context, db pg.DB, before time.Time) ([]memd.TenantNo, error) {
	rows, err := db.Query(ctx, sqlSelectOverdue, pg.Args{"before": before})
	if err != nil {
		return nil, pg.Classify(fmt.Errorf("finding punctures that wait: %w", err))
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[memd.TenantNo])
	if err != nil {
		return nil, pg.Classify(fmt.Errorf("finding punctures that wait: %w", err))
	}
	return out, nil
}
