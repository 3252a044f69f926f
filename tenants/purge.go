package tenants

import (
	"context"
	"fmt"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

const sqlBeginPurge = `
UPDATE memd.tenants SET state = @purging, updated_at = @now
WHERE tenant_no = @tenant_no AND state IN (@suspended, @drained)`

// BeginPurge takes a suspended or drained tenant past the point of no return:
// from its commit on no write of the tenant's is begun. For the worker. Safe to
// repeat; a tenant in any other state is ErrTenantInactive.
func BeginPurge(ctx context.Context, db pg.DB, now time.Time, no memd.TenantNo) error {
	tag, err := db.Exec(ctx, sqlBeginPurge, pg.Args{
		"purging": StatePurging, "suspended": StateSuspended, "drained": StateDrained, "tenant_no": no, "now": now,
	})
	if err != nil {
		return fmt.Errorf("beginning a purge: %w", err)
	}
	if tag.RowsAffected() == 1 {
		return nil
	}
	t, err := GetByNo(ctx, db, no)
	if err == nil && t.State != StatePurging {
		err = fmt.Errorf("purging a tenant that is %s: %w", t.State, memd.ErrTenantInactive)
	}
	return err
}

const sqlEndPurge = `
UPDATE memd.tenants SET state = @purged, updated_at = @now WHERE tenant_no = @tenant_no AND state = @purging`

const sqlPurgePrincipals = `SELECT memd.purge_principals(@tenant_no)`

// EndPurge ends a purge: the tenant's API keys are deleted. Its name stays, so
// that nobody else gets it. Safe to repeat.
func EndPurge(ctx context.Context, db pg.DB, now time.Time, no memd.TenantNo) error {
	if _, err := db.Exec(ctx, sqlPurgePrincipals, pg.Args{"tenant_no": no}); err != nil {
		return fmt.Errorf("deleting a purged tenant's API keys: %w", err)
	}
	_, err := db.Exec(ctx, sqlEndPurge, pg.Args{"purged": StatePurged, "purging": StatePurging, "tenant_no": no, "now": now})
	if err != nil {
		return fmt.Errorf("ending a purge: %w", err)
	}
	return nil
}
