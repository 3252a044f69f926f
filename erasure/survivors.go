package erasure

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// A survivor is a row that a check named. What is the target's is deleted again by
// itself; a row that lost its provenance can only be named, and what is to become
// of it, an operator decides. The check is made again in any case: nobody can say
// in its place that nothing is left.

const sqlAskRemoval = `
INSERT INTO memd.survivors (tenant_no, request_id, table_name, row_id, asked_by, asked_at)
VALUES (@tenant, @id, @table, @row, @by, @now) ON CONFLICT DO NOTHING`

const sqlToRemove = `
SELECT table_name, row_id FROM memd.survivors
WHERE tenant_no = @tenant AND request_id = @id AND removed_at IS NULL ORDER BY table_name, row_id LIMIT @limit`

const sqlRemoved = `
UPDATE memd.survivors SET removed_at = @now
WHERE tenant_no = @tenant AND request_id = @id AND table_name = @table AND row_id = @row`

// removalBatch is how many survivors one transaction deletes.
const removalBatch = 100

// rowDeleter is a store that deletes a row by the name that the verifier has for
// it, with whatever belongs to it. It reports whether the table is one of its own.
type rowDeleter interface {
	DeleteRow(ctx context.Context, db pg.DB, tenant memd.TenantNo, table, id string) (known bool, err error)
}

// RemoveSurvivors has the worker delete rows before it looks the next time. Only
// rows that a check of the erasure names: others are a memd.InvalidError. Safe to
// repeat.
func (s *Service) RemoveSurvivors(ctx context.Context, c Caller, id uuid.UUID, rows []memd.RowRef) error {
	return s.Pool.InTx(ctx, func(tx pgx.Tx) error {
		if _, err := Read(ctx, tx, c.Tenant, id); err != nil {
			return err
		}
		steps, err := readSteps(ctx, tx, c.Tenant, id)
		if err != nil {
			return err
		}
		named := map[memd.RowRef]bool{}
		for _, step := range []Step{StepCheck, StepRecheck} {
			for _, check := range steps[step].Notes.Checks {
				for _, row := range check.Rows {
					named[row] = true
				}
			}
		}
		for _, row := range rows {
			if !named[row] {
				return &memd.InvalidError{Field: "rows", Problem: "must be rows that a check of this erasure names"}
			}
			_, err := tx.Exec(ctx, sqlAskRemoval, pg.Args{
				"tenant": c.Tenant, "id": id, "table": row.Table, "row": row.ID, "by": c.KeyID, "now": s.Clock.Now(),
			})
			if err != nil {
				return fmt.Errorf("asking for a row to be removed: %w", err)
			}
		}
		return nil
	})
}

// removeSurvivors deletes what was asked for, before a check.
func (r *Runner) removeSurvivors(ctx context.Context, j Job, step Step) error {
	for {
		var removed int
		err := r.Pool.InTx(ctx, func(tx pgx.Tx) error {
			if err := hold(ctx, tx, j, step); err != nil {
				return err
			}
			rows, err := tx.Query(ctx, sqlToRemove, pg.Args{"tenant": j.Tenant, "id": j.ID, "limit": removalBatch})
			if err != nil {
				return fmt.Errorf("reading survivors: %w", err)
			}
			list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[memd.RowRef])
			if err != nil {
				return fmt.Errorf("reading survivors: %w", err)
			}
			for _, row := range list {
				if err := r.removeRow(ctx, tx, j, row); err != nil {
					return err
				}
			}
			removed = len(list)
			return nil
		})
		if err != nil || removed == 0 {
			return err
		}
		r.Logger.WarnContext(ctx, "rows that a check named were removed for an operator", "tenant_no", j.Tenant, "request_id", j.ID, "rows", removed)
	}
}

func (r *Runner) removeRow(ctx context.Context, tx pg.DB, j Job, row memd.RowRef) error {
	for _, s := range r.stores() {
		d, ok := s.(rowDeleter)
		if !ok {
			continue
		}
		if known, err := d.DeleteRow(ctx, tx, j.Tenant, row.Table, row.ID); known || err != nil {
			if err != nil {
				return err
			}
			break
		}
	}
	_, err := tx.Exec(ctx, sqlRemoved, pg.Args{"tenant": j.Tenant, "id": j.ID, "table": row.Table, "row": row.ID, "now": r.Clock.Now()})
	if err != nil {
		return fmt.Errorf("noting a removed row: %w", err)
	}
	return nil
}
