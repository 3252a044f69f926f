package memory

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/shred"
)

const sqlDelete = `
DELETE FROM memd.memories m USING memd.live_subjects l
WHERE l.tenant_no = @tenant AND l.user_ref = @ref
  AND m.tenant_no = l.tenant_no AND m.owner_no = l.subject_no AND m.memory_id = @id`

// Everything derived from a row, however indirectly, if the row is or was the
// scope's own.
const sqlDerived = `
WITH RECURSIVE derived AS (
  SELECT s.memory_id FROM memd.memory_sources s
  WHERE s.tenant_no = @tenant AND s.source_memory = @id AND (@own OR EXISTS (
    SELECT FROM memd.live_subjects l JOIN memd.deleted_memories d ON d.tenant_no = l.tenant_no AND d.owner_no = l.subject_no
    WHERE l.tenant_no = @tenant AND l.user_ref = @ref AND d.memory_id = @id))
  UNION
  SELECT s.memory_id FROM memd.memory_sources s JOIN derived d ON s.source_memory = d.memory_id WHERE s.tenant_no = @tenant
)
SELECT memory_id FROM derived ORDER BY memory_id`

const sqlDeleteByID = `DELETE FROM memd.memories WHERE tenant_no = @tenant AND memory_id = ANY (@ids::uuid[])`

// Deleted says what a Delete did besides deleting the row.
type Deleted struct {
	// DerivedDeleted and DerivedRemaining count the rows that were derived from
	// the deleted one, in whatever scope.
	DerivedDeleted, DerivedRemaining int64
}

// Delete deletes one row of a scope, and with derived also everything that was
// derived from it, however indirectly, in whatever scope. It is safe to
// repeat: a row that is gone, never was, or is another scope's or tenant's is
// no error, and the three cannot be told apart. The row's event does not bring
// it back. It stays readable in backups until its contributors are forgotten.
func (s *Service) Delete(ctx context.Context, t Tenant, scope memd.Scope, id uuid.UUID, derived bool) (Deleted, error) {
	if err := validateScope(scope); err != nil {
		return Deleted{}, err
	}
	if id == uuid.Nil {
		return Deleted{}, invalid("memory_id", "is required")
	}
	var out Deleted
	var own int64
	err := s.again(ctx, t, func(k *shred.Keys) ([]memd.Ref, error) {
		out = Deleted{}
		return nil, s.Pool.InTx(ctx, func(tx pgx.Tx) error {
			ref := provenance.RefOf(k, scope)
			args := pg.Args{"tenant": t.No, "ref": ref[:], "id": id}
			var fenced bool
			if err := tx.QueryRow(ctx, sqlFenceUp, pg.Args{"tenant": t.No, "ref": ref[:]}).Scan(&fenced); err != nil {
				return err
			}
			if fenced {
				return memd.ErrFenced
			}
			tag, err := tx.Exec(ctx, sqlDelete, args)
			if err != nil {
				return fmt.Errorf("deleting a memory: %w", err)
			}
			own = tag.RowsAffected()
			args["own"] = own > 0
			return deleteDerived(ctx, tx, t.No, args, derived, &out)
		})
	})
	if err == nil {
		s.OnChange("deleted", int(own+out.DerivedDeleted))
	}
	return out, err
}

func deleteDerived(ctx context.Context, db pg.DB, tenant memd.TenantNo, args pg.Args, derived bool, out *Deleted) error {
	rows, err := db.Query(ctx, sqlDerived, args)
	if err != nil {
		return fmt.Errorf("finding derived rows: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return fmt.Errorf("finding derived rows: %w", err)
	}
	if !derived || len(ids) == 0 {
		out.DerivedRemaining = int64(len(ids))
		return nil
	}
	tag, err := db.Exec(ctx, sqlDeleteByID, pg.Args{"tenant": tenant, "ids": ids})
	if err != nil {
		return fmt.Errorf("deleting derived rows: %w", err)
	}
	out.DerivedDeleted = tag.RowsAffected()
	return nil
}
