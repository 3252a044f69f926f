package tenants

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

const sqlMoving = `
SELECT t.tenant_no, t.name, t.display_name, t.state, t.policy, coalesce(k.epoch, 0), t.created_at, t.updated_at,
  t.used_rows, t.used_bytes, coalesce(t.measured_at, '0001-01-01Z'), t.full_up
FROM memd.tenants t LEFT JOIN memd.key_epochs k USING (tenant_no)
WHERE t.state = @state AND t.policy->>'former_space' <> '0' ORDER BY t.tenant_no`

// Moving returns the active tenants that have rows in a former space.
func Moving(ctx context.Context, db pg.DB) ([]Tenant, error) {
	return many(ctx, db, sqlMoving, pg.Args{"state": StateActive})
}

const sqlMoved = `
UPDATE memd.tenants SET policy = policy || '{"former_space": 0, "former_embedder": "", "former_dimension": 0}', updated_at = @now
WHERE tenant_no = @tenant AND policy->>'space' = @space::int::text`

// Moved says that nothing is left in the space before this one. It is safe to repeat.
func Moved(ctx context.Context, tx pgx.Tx, now time.Time, no memd.TenantNo, space int) error {
	if _, err := tx.Exec(ctx, sqlMoved, pg.Args{"tenant": no, "space": space, "now": now}); err != nil {
		return fmt.Errorf("leaving a space: %w", err)
	}
	return nil
}
