package tenants

import (
	"context"
	"fmt"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// maxCreating bounds what one look for half-made tenants returns; a worker looks
// again when it has finished them.
const maxCreating = 100

const sqlSelectCreating = `
SELECT t.tenant_no, t.name, t.display_name, t.state, t.policy, coalesce(k.epoch, 0), t.created_at, t.updated_at,
  t.used_rows, t.used_bytes, coalesce(t.measured_at, '0001-01-01Z'), t.full_up
FROM memd.tenants t LEFT JOIN memd.key_epochs k USING (tenant_no)
WHERE t.state = @state
ORDER BY t.tenant_no
LIMIT @limit`

// Creating returns tenants that were announced and not yet activated, oldest
// first, at most a hundred.
func Creating(ctx context.Context, db pg.DB) ([]Tenant, error) {
	return many(ctx, db, sqlSelectCreating, pg.Args{"state": StateCreating, "limit": maxCreating})
}

const sqlActivate = `SELECT memd.activate_tenant(@tenant_no, @now)`

// Activate opens a tenant for agents, once its keys are there. For the worker;
// the server's database role may not. Safe to repeat: a tenant that is active
// stays so. A tenant without keys, or past Active, is ErrTenantInactive.
func Activate(ctx context.Context, db pg.DB, now time.Time, no memd.TenantNo) error {
	t, err := GetByNo(ctx, db, no)
	if err != nil {
		return err
	}
	if t.State > StateActive { // Resuming is not the worker's.
		return fmt.Errorf("activating a tenant that is %s: %w", t.State, memd.ErrTenantInactive)
	}
	if _, err := db.Exec(ctx, sqlActivate, pg.Args{"tenant_no": no, "now": now}); err != nil {
		return fmt.Errorf("activating a tenant that is %s, key epoch %d: %w", t.State, t.Epoch, err)
	}
	return nil
}

// How often WaitActive looks. Making a tenant takes two calls of the KMS and
// two transactions, some tenths of a second.
const waitInterval = 50 * time.Millisecond

// WaitActive returns the tenant as soon as it has left Creating. When ctx ends
// first it returns the tenant as it was last seen together with ctx's error; the
// workers finish it all the same.
//
// It asks again and again rather than listening: a listener needs a connection
// for each caller who waits.
func WaitActive(ctx context.Context, pool *pg.Pool, no memd.TenantNo) (Tenant, error) {
	tick := time.NewTicker(waitInterval)
	defer tick.Stop()
	var last Tenant
	for {
		err := pool.With(ctx, func(db pg.DB) error {
			t, err := GetByNo(ctx, db, no)
			if err == nil {
				last = t
			}
			return err
		})
		if ctx.Err() != nil {
			return last, ctx.Err()
		}
		if err != nil {
			return last, err
		}
		if last.State != StateCreating {
			return last, nil
		}
		select {
		case <-ctx.Done():
			return last, ctx.Err()
		case <-tick.C:
		}
	}
}
