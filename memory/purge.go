package memory

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

const sqlCountTenant = `
SELECT count(*), count(*) FILTER (WHERE dimension > 0), count(*) FILTER (WHERE kind > 1)
FROM memd.memories WHERE tenant_no = @tenant`

// CountTenant counts all rows of a tenant, asking the table.
func CountTenant(ctx context.Context, db pg.DB, tenant memd.TenantNo) (Counts, error) {
	var c Counts
	if err := db.QueryRow(ctx, sqlCountTenant, pg.Args{"tenant": tenant}).Scan(&c.Memories, &c.Vectors, &c.Derived); err != nil {
		return c, fmt.Errorf("counting a tenant's memories: %w", err)
	}
	return c, nil
}

const sqlDeleteTenant = `
DELETE FROM memd.memories m USING (
  SELECT memory_id FROM memd.memories WHERE tenant_no = @tenant LIMIT @limit) d
WHERE m.tenant_no = @tenant AND m.memory_id = d.memory_id`

// DeleteTenantBatch deletes up to limit rows of a tenant, whosever they are, and
// returns how many. It is repeated until it deletes none. For a tenant that is
// being purged: nothing is recorded of what fell.
func DeleteTenantBatch(ctx context.Context, db pg.DB, tenant memd.TenantNo, limit int) (int64, error) {
	tag, err := db.Exec(ctx, sqlDeleteTenant, pg.Args{"tenant": tenant, "limit": limit})
	if err != nil {
		return 0, fmt.Errorf("deleting a tenant's memories: %w", err)
	}
	return tag.RowsAffected(), nil
}

// What somebody who has returned cannot have written: the guard refuses, for a
// user who was erased, words that are older than that or of no known time.
const sqlDeleteStale = `
DELETE FROM memd.memories m USING (
  SELECT v.memory_id FROM memd.memories v
  WHERE v.tenant_no = @tenant AND v.owner_no = ANY (@subjects) AND coalesce(v.source_time, '-infinity') < @before
  UNION
  SELECT v.memory_id FROM memd.memories v
  WHERE v.tenant_no = @tenant AND v.contributor_no = ANY (@subjects) AND coalesce(v.source_time, '-infinity') < @before
  UNION
  SELECT c.memory_id FROM memd.memory_contributions c
  JOIN memd.memories v ON v.tenant_no = c.tenant_no AND v.memory_id = c.memory_id
  WHERE c.tenant_no = @tenant AND c.contributor_no = ANY (@subjects) AND coalesce(v.source_time, '-infinity') < @before
  LIMIT @limit) d
WHERE m.tenant_no = @tenant AND m.memory_id = d.memory_id`

// DeleteStale deletes up to limit rows of living subjects that were said before
// a moment at which they were erased, or that do not say when they were said,
// and returns how many. There are none unless somebody went past the guard.
func DeleteStale(ctx context.Context, db pg.DB, tenant memd.TenantNo, subjects []memd.Number, before time.Time, limit int) (int64, error) {
	if len(subjects) == 0 {
		return 0, nil
	}
	tag, err := db.Exec(ctx, sqlDeleteStale, pg.Args{"tenant": tenant, "subjects": subjects, "before": before, "limit": limit})
	if err != nil {
		return 0, fmt.Errorf("deleting stale memories: %w", err)
	}
	return tag.RowsAffected(), nil
}

const sqlDeleteOrphans = `SELECT memd.delete_orphans(@tenant, @id)`

// DeleteRow deletes a row by its id, whosever it is, with its contributions and
// sources, of which there may be some without it. One that is gone is no error.
func DeleteRow(ctx context.Context, db pg.DB, tenant memd.TenantNo, id string) error {
	of, err := uuid.Parse(id)
	if err != nil {
		return fmt.Errorf("%q names no memory: %w", id, memd.ErrCorrupt)
	}
	_, err = db.Exec(ctx, sqlDeleteByID, pg.Args{"tenant": tenant, "ids": []uuid.UUID{of}})
	if err == nil {
		_, err = db.Exec(ctx, sqlDeleteOrphans, pg.Args{"tenant": tenant, "id": of})
	}
	if err != nil {
		return fmt.Errorf("deleting a memory: %w", err)
	}
	return nil
}
