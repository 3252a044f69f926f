package artifacts

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// A month of artifacts is what goes together when it expires: those of sessions of
// that month. What is the user's has no month. The number is memd.OwnScope's.
const ofSessions = ` AND session_no <> 1099511627777`

// A name goes when the last version that it stands for has gone.
const sqlMonthNames = `
  SELECT a.subject_no, a.session_no, a.artifact_id FROM memd.artifacts a
  WHERE a.tenant_no = @tenant AND a.month = @month AND a.session_no <> 1099511627777
    AND NOT EXISTS (SELECT FROM memd.artifact_versions v WHERE v.tenant_no = a.tenant_no AND v.subject_no = a.subject_no
      AND v.session_no = a.session_no AND v.artifact_id = a.artifact_id AND v.month <> @month)`

const sqlMonthChunks = `
  SELECT c.subject_no, c.session_no, c.version_id, c.chunk_no FROM memd.artifact_versions v
  JOIN memd.artifact_chunks c ON c.tenant_no = v.tenant_no AND c.subject_no = v.subject_no AND c.session_no = v.session_no
    AND c.version_id = v.version_id
  WHERE v.tenant_no = @tenant AND v.month = @month AND v.session_no <> 1099511627777`

const sqlCountMonth = `
SELECT (SELECT count(*) FROM (` + sqlMonthNames + `) n),
  (SELECT count(*) FROM memd.artifact_versions WHERE tenant_no = @tenant AND month = @month` + ofSessions + `),
  (SELECT count(*) FROM (` + sqlMonthChunks + `) c)`

// CountMonth counts the rows of a month, asking the tables.
func CountMonth(ctx context.Context, db pg.DB, tenant memd.TenantNo, month memd.Month) (Counts, error) {
	var c Counts
	err := db.QueryRow(ctx, sqlCountMonth, pg.Args{"tenant": tenant, "month": month}).Scan(&c.Artifacts, &c.ArtifactVersions, &c.ArtifactChunks)
	if err != nil {
		return c, fmt.Errorf("counting a month's artifacts: %w", err)
	}
	return c, nil
}

const sqlDeleteMonthChunks = `
DELETE FROM memd.artifact_chunks c USING (` + sqlMonthChunks + ` ORDER BY 1, 2, 3, 4 LIMIT @limit) d
WHERE c.tenant_no = @tenant AND c.subject_no = d.subject_no AND c.session_no = d.session_no
  AND c.version_id = d.version_id AND c.chunk_no = d.chunk_no`

const sqlDeleteMonthVersions = `
DELETE FROM memd.artifact_versions v USING (
  SELECT subject_no, session_no, version_id FROM memd.artifact_versions WHERE tenant_no = @tenant AND month = @month` + ofSessions + `
  ORDER BY 1, 2, 3 LIMIT @limit) d
WHERE v.tenant_no = @tenant AND v.subject_no = d.subject_no AND v.session_no = d.session_no AND v.version_id = d.version_id`

const sqlDeleteMonthNames = `
DELETE FROM memd.artifacts a USING (` + sqlMonthNames + ` ORDER BY 1, 2, 3 LIMIT @limit) d
WHERE a.tenant_no = @tenant AND a.subject_no = d.subject_no AND a.session_no = d.session_no AND a.artifact_id = d.artifact_id`

// DeleteMonthBatch is DeleteBatch for a month that is closed to writers.
func DeleteMonthBatch(ctx context.Context, db pg.DB, tenant memd.TenantNo, month memd.Month, limit int) (int64, error) {
	return deleteInOrder(ctx, db, pg.Args{"tenant": tenant, "month": month}, limit, sqlDeleteMonthChunks, sqlDeleteMonthVersions, sqlDeleteMonthNames)
}

const sqlMonths = `
SELECT month, sum(1 + chunks)::bigint, sum(size)::bigint
FROM memd.artifact_versions WHERE tenant_no = @tenant AND month < @before` + ofSessions + `
GROUP BY month ORDER BY month`

// Months returns how much there is of each month before one: versions and chunks,
// and the bytes that were saved.
func Months(ctx context.Context, db pg.DB, tenant memd.TenantNo, before memd.Month) ([]memd.MonthSize, error) {
	rows, err := db.Query(ctx, sqlMonths, pg.Args{"tenant": tenant, "before": before})
	if err != nil {
		return nil, fmt.Errorf("measuring the months of artifacts: %w", err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByPos[memd.MonthSize])
	if err != nil {
		return nil, fmt.Errorf("measuring the months of artifacts: %w", err)
	}
	return out, nil
}
