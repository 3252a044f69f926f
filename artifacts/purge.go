package artifacts

import (
	"context"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// What a purge picks is deleted by its place in the table: to sort it and to find
// each row again by its key costs five times as much. The price is that rows are
// locked in another order than by a save that broke off and cleans up: should the
// two meet, one of them is told that the database is busy, and tries again.
const sqlPurgeChunks = `
DELETE FROM memd.artifact_chunks c WHERE c.tenant_no = @tenant AND c.ctid = ANY (ARRAY(
  SELECT p.ctid FROM unnest(@subjects::bigint[]) AS u (subject_no) CROSS JOIN LATERAL (
    SELECT x.ctid FROM memd.artifact_chunks x WHERE x.tenant_no = @tenant AND x.subject_no = u.subject_no LIMIT @limit) p
  LIMIT @limit))`

const sqlPurgeVersions = `
DELETE FROM memd.artifact_versions v WHERE v.tenant_no = @tenant AND v.ctid = ANY (ARRAY(
  SELECT p.ctid FROM unnest(@subjects::bigint[]) AS u (subject_no) CROSS JOIN LATERAL (
    SELECT x.ctid FROM memd.artifact_versions x WHERE x.tenant_no = @tenant AND x.subject_no = u.subject_no LIMIT @limit) p
  LIMIT @limit))`

const sqlPurgeNames = `
DELETE FROM memd.artifacts a WHERE a.tenant_no = @tenant AND a.ctid = ANY (ARRAY(
  SELECT p.ctid FROM unnest(@subjects::bigint[]) AS u (subject_no) CROSS JOIN LATERAL (
    SELECT x.ctid FROM memd.artifacts x WHERE x.tenant_no = @tenant AND x.subject_no = u.subject_no LIMIT @limit) p
  LIMIT @limit))`

// PurgeBatch is DeleteBatch for everything of some subjects of a tenant that is
// being purged, which refuses every save: it is for very many rows.
func PurgeBatch(ctx context.Context, db pg.DB, tenant memd.TenantNo, subjects []memd.Number, limit int) (int64, error) {
	args := pg.Args{"tenant": tenant, "subjects": subjects}
	return deleteInOrder(ctx, db, args, limit, sqlPurgeChunks, sqlPurgeVersions, sqlPurgeNames)
}
