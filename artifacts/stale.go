package artifacts

import (
	"context"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// What somebody who has returned cannot have saved: the guard refuses what is
// older than their erasure, or does not say how old it is. Chunks are as old as
// their version; one without any is nobody's save, and goes as well.
const sqlDeleteStaleChunks = `
DELETE FROM memd.artifact_chunks c USING (
  SELECT x.subject_no, x.session_no, x.version_id, x.chunk_no FROM memd.artifact_chunks x
  LEFT JOIN memd.artifact_versions v USING (tenant_no, subject_no, session_no, version_id)
  WHERE x.tenant_no = @tenant AND x.subject_no = ANY (@subjects::bigint[]) AND coalesce(v.source_time, '-infinity') < @before
  ORDER BY 1, 2, 3, 4 LIMIT @limit) d
WHERE c.tenant_no = @tenant AND c.subject_no = d.subject_no AND c.session_no = d.session_no
  AND c.version_id = d.version_id AND c.chunk_no = d.chunk_no`

const sqlDeleteStaleVersions = `
DELETE FROM memd.artifact_versions v USING (
  SELECT x.subject_no, x.session_no, x.version_id FROM memd.artifact_versions x
  WHERE x.tenant_no = @tenant AND x.subject_no = ANY (@subjects::bigint[]) AND coalesce(x.source_time, '-infinity') < @before
  ORDER BY 1, 2, 3 LIMIT @limit) d
WHERE v.tenant_no = @tenant AND v.subject_no = d.subject_no AND v.session_no = d.session_no AND v.version_id = d.version_id`

// A name that newer versions still have stays with them.
const sqlDeleteStaleNames = `
DELETE FROM memd.artifacts a USING (
  SELECT x.subject_no, x.session_no, x.artifact_id FROM memd.artifacts x
  WHERE x.tenant_no = @tenant AND x.subject_no = ANY (@subjects::bigint[]) AND coalesce(x.source_time, '-infinity') < @before
    AND NOT EXISTS (SELECT FROM memd.artifact_versions v WHERE v.tenant_no = x.tenant_no AND v.subject_no = x.subject_no
      AND v.session_no = x.session_no AND v.artifact_id = x.artifact_id)
  ORDER BY 1, 2, 3 LIMIT @limit) d
WHERE a.tenant_no = @tenant AND a.subject_no = d.subject_no AND a.session_no = d.session_no AND a.artifact_id = d.artifact_id`

// DeleteStale deletes up to limit rows of living subjects that are older than a
// moment at which they were erased, or that do not say how old they are, and
// returns how many. It is repeated until it deletes none, each time in a
// transaction of its own. There are none unless somebody went past the guard.
func DeleteStale(ctx context.Context, db pg.DB, tenant memd.TenantNo, subjects []memd.Number, before time.Time, limit int) (int64, error) {
	if len(subjects) == 0 {
		return 0, nil
	}
	args := pg.Args{"tenant": tenant, "subjects": subjects, "before": before}
	return deleteInOrder(ctx, db, args, limit, sqlDeleteStaleChunks, sqlDeleteStaleVersions, sqlDeleteStaleNames)
}
