package sessions

import (
	"context"
	"fmt"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// What somebody who has returned cannot have written: the guard refuses words
// that are older than their erasure, or that do not say when they were said.
var sqlDeleteStale = []string{
	`
DELETE FROM memd.session_events e USING (
  SELECT subject_no, session_no, month, seq FROM memd.session_events
  WHERE tenant_no = @tenant AND subject_no = ANY (@subjects) AND coalesce(source_time, '-infinity') < @before LIMIT @limit) d
WHERE e.tenant_no = @tenant AND e.subject_no = d.subject_no AND e.session_no = d.session_no AND e.month = d.month AND e.seq = d.seq`,
	`
DELETE FROM memd.session_state e USING (
  SELECT subject_no, session_no, key_digest FROM memd.session_state
  WHERE tenant_no = @tenant AND subject_no = ANY (@subjects) AND coalesce(source_time, '-infinity') < @before LIMIT @limit) d
WHERE e.tenant_no = @tenant AND e.subject_no = d.subject_no AND e.session_no = d.session_no AND e.key_digest = d.key_digest`,
	`
DELETE FROM memd.user_state e USING (
  SELECT subject_no, key_digest FROM memd.user_state
  WHERE tenant_no = @tenant AND subject_no = ANY (@subjects) AND coalesce(source_time, '-infinity') < @before LIMIT @limit) d
WHERE e.tenant_no = @tenant AND e.subject_no = d.subject_no AND e.key_digest = d.key_digest`,
	// Asked again of the row itself: somebody else may just have replaced it.
	`
DELETE FROM memd.app_state e USING (
  SELECT app_no, key_digest FROM memd.app_state
  WHERE tenant_no = @tenant AND contributor_no = ANY (@subjects) AND coalesce(source_time, '-infinity') < @before LIMIT @limit) d
WHERE e.tenant_no = @tenant AND e.app_no = d.app_no AND e.key_digest = d.key_digest
  AND e.contributor_no = ANY (@subjects) AND coalesce(e.source_time, '-infinity') < @before`,
}

// DeleteStale deletes up to limit events and entries of state of living subjects
// that were said before a moment at which they were erased, or that do not say
// when, and returns how many. It is repeated until it deletes none. There are
// none unless somebody went past the guard. Heads, which say nothing, stay.
func DeleteStale(ctx context.Context, db pg.DB, tenant memd.TenantNo, subjects []memd.Number, before time.Time, limit int) (int64, error) {
	if len(subjects) == 0 {
		return 0, nil
	}
	n, err := deleteBatch(ctx, db, sqlDeleteStale, pg.Args{"tenant": tenant, "subjects": subjects, "before": before}, limit)
	if err != nil {
		return n, fmt.Errorf("of what is stale: %w", err)
	}
	return n, nil
}
