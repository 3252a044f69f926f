package artifacts

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// By the id alone, which no index leads to: there are few such rows.
const sqlDeleteChunksByID = `
DELETE FROM memd.artifact_chunks c USING memd.artifact_versions v
WHERE v.tenant_no = @tenant AND (v.version_id = @id OR v.artifact_id = @id)
  AND c.tenant_no = v.tenant_no AND c.subject_no = v.subject_no AND c.session_no = v.session_no AND c.version_id = v.version_id`

const sqlDeleteVersionsByID = `DELETE FROM memd.artifact_versions WHERE tenant_no = @tenant AND (version_id = @id OR artifact_id = @id)`

const sqlDeleteNameByID = `DELETE FROM memd.artifacts WHERE tenant_no = @tenant AND artifact_id = @id`

// DeleteRow deletes what a verifier has named: a version by its id, also for one
// of its chunks, which is named by that and a number behind a slash, or an artifact
// with all its versions. It reports whether the table is one of this package's.
// What is gone is no error.
func DeleteRow(ctx context.Context, db pg.DB, tenant memd.TenantNo, table, id string) (bool, error) {
	switch table {
	case "artifacts", "artifact_versions", "artifact_chunks":
	default:
		return false, nil
	}
	first, _, _ := strings.Cut(id, "/")
	of, err := uuid.Parse(first)
	if err != nil {
		return true, fmt.Errorf("%q names no row of %s: %w", id, table, memd.ErrCorrupt)
	}
	for _, sql := range []string{sqlDeleteChunksByID, sqlDeleteVersionsByID, sqlDeleteNameByID} {
		if _, err := db.Exec(ctx, sql, pg.Args{"tenant": tenant, "id": of}); err != nil {
			return true, fmt.Errorf("deleting a row of %s: %w", table, err)
		}
	}
	return true, nil
}
