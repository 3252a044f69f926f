package canary

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// Who may hold keys of an epoch: live processes that said so. The lease is
// measured by the clock that set its end.
const sqlHolders = `
SELECT 'instances' AS name, i.instance_id::text AS id FROM memd.instance_epochs h JOIN memd.instances i ON i.instance_id = h.instance_id
WHERE h.tenant_no = @tenant AND h.epoch < @before AND i.lease_until > clock_timestamp()`

func (v *Verifier) holders(ctx context.Context, tenant memd.TenantNo, before int64) ([]memd.RowRef, error) {
	var out []memd.RowRef
	err := v.c.Pool.With(ctx, func(db pg.DB) error {
		rows, err := db.Query(ctx, sqlHolders, pg.Args{"tenant": tenant, "before": before})
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, pgx.RowToStructByPos[memd.RowRef])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the instances: %w", err)
	}
	return out, nil
}

// checkInstances demands that no live process holds a state from before the
// puncture.
func (v *Verifier) checkInstances(ctx context.Context, e *exam, before map[string]int64, d *drawn) (memd.Check, error) {
	began := time.Now()
	switch {
	case e.KeysLater:
		return notRun(CheckInstances, reasonPolicy, before[CheckInstances]), nil
	case e.nothing(before):
		return notRun(CheckInstances, reasonNothing, 0), nil
	}
	bound, err := v.keysGone(ctx, e, d)
	if err != nil {
		return memd.Check{}, err
	}
	left, err := v.holders(ctx, e.Tenant, bound)
	if err != nil {
		return memd.Check{}, err
	}
	c := judge(CheckInstances, before[CheckInstances], int64(len(left)), reasonNotDropped)
	c.Rows, c.Duration = left[:min(len(left), maxRows)], time.Since(began)
	return c, nil
}

// keysGone returns the first epoch that nobody's keys of the target are in.
func (v *Verifier) keysGone(ctx context.Context, e *exam, d *drawn) (int64, error) {
	if e.Whole {
		// The last epoch of a purged tenant has no tree at all.
		_, epoch, err := v.line(ctx, e.Tenant)
		return epoch, err
	}
	head, err := v.head(ctx, e.Tenant)
	if err != nil {
		return 0, err
	}
	return v.punctured(ctx, e, d, head)
}
