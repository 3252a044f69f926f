package erasure

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
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

// notRows are checks that name something else than rows that could be deleted: raw
// pages, processes and lines of logs.
var notRows = []string{"residue", "instances", "logs"}

// RemoveSurvivors has the worker delete rows before it looks the next time. Only
// rows that a check of the erasure names: others are a memd.InvalidError. A session or
// a subject of the directory is not deleted, but ended. Safe to repeat.
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
				if slices.Contains(notRows, check.Name) {
					continue
				}
				for _, row := range check.Rows {
					named[row] = true
				}
			}
		}
		for _, row := range rows {
			if !named[row] {
				return &memd.InvalidError{Field: "rows", Problem: "must be rows that a check of this erasure names, and no pages, processes or lines of logs"}
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
	known, err := r.endOf(ctx, tx, j, row)
	for _, s := range r.stores() {
		if d, ok := s.(rowDeleter); ok && !known && err == nil {
			known, err = d.DeleteRow(ctx, tx, j.Tenant, row.Table, row.ID)
		}
	}
	if err == nil && !known {
		err = fmt.Errorf("nothing deletes rows of %q: %w", row.Table, memd.ErrCorrupt)
	}
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, sqlRemoved, pg.Args{"tenant": j.Tenant, "id": j.ID, "table": row.Table, "row": row.ID, "now": r.Clock.Now()})
	if err != nil {
		return fmt.Errorf("noting a removed row: %w", err)
	}
	return nil
}

// endOf ends a session or a subject of the directory, by the numbers that name it. It
// reports whether the row is one.
func (r *Runner) endOf(ctx context.Context, tx pg.DB, j Job, row memd.RowRef) (known bool, err error) {
	if row.Table != "sessions" && row.Table != "subjects" {
		return false, nil
	}
	first, second, ofSession := strings.Cut(row.ID, "/")
	subject, err := strconv.ParseInt(first, 10, 64)
	var session int64
	if err == nil && ofSession {
		session, err = strconv.ParseInt(second, 10, 64)
	}
	if err != nil || ofSession != (row.Table == "sessions") {
		return true, fmt.Errorf("%q names no row of %s: %w", row.ID, row.Table, memd.ErrCorrupt)
	}
	if ofSession {
		_, err = provenance.ForgetSessions(ctx, tx, j.Tenant, []memd.Number{memd.Number(subject)}, memd.Number(session))
		return true, err
	}
	return true, provenance.Retire(ctx, tx, j.Tenant, []memd.Number{memd.Number(subject)}, r.Clock.Now())
}
