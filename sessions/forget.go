package sessions

import (
	"context"
	"fmt"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// Counts is what a target, or a tenant, has in the tables.
type Counts struct {
	Sessions     int64 `json:"sessions"`
	Events       int64 `json:"session_events"`
	SessionState int64 `json:"session_state"`
	UserState    int64 `json:"user_state"`
	AppState     int64 `json:"app_state"`
}

// Total is all of them together.
func (c Counts) Total() int64 {
	return c.Sessions + c.Events + c.SessionState + c.UserState + c.AppState
}

// A target is what an erasure deletes: sessions, or, with session 0, all of a
// subject's, the user's state, and the app's state that the subject wrote last
// or that is the subject's own.
const sqlTarget = `
WITH t AS (SELECT DISTINCT * FROM unnest(@subjects::bigint[], @sessions::bigint[]) AS u (subject_no, session_no))`

const (
	ofTarget      = ` ON x.tenant_no = @tenant AND x.subject_no = t.subject_no AND t.session_no IN (0, x.session_no)`
	ofTargetUser  = ` ON x.tenant_no = @tenant AND x.subject_no = t.subject_no AND t.session_no = 0`
	appOfTarget   = `SELECT x.app_no, x.key_digest FROM t JOIN memd.app_state x ON x.tenant_no = @tenant AND x.contributor_no = t.subject_no AND t.session_no = 0`
	appOwnedByOne = `SELECT x.app_no, x.key_digest FROM t JOIN memd.app_state x ON x.tenant_no = @tenant AND x.app_no = t.subject_no AND t.session_no = 0`
)

const sqlCountTarget = sqlTarget + `
SELECT (SELECT count(*) FROM t JOIN memd.session_heads x` + ofTarget + `),
  (SELECT count(*) FROM t JOIN memd.session_events x` + ofTarget + `),
  (SELECT count(*) FROM t JOIN memd.session_state x` + ofTarget + `),
  (SELECT count(*) FROM t JOIN memd.user_state x` + ofTargetUser + `),
  (SELECT count(*) FROM (` + appOfTarget + ` UNION ` + appOwnedByOne + `) a)`

const sqlCountTenant = `
SELECT (SELECT count(*) FROM memd.session_heads WHERE tenant_no = @tenant),
  (SELECT count(*) FROM memd.session_events WHERE tenant_no = @tenant),
  (SELECT count(*) FROM memd.session_state WHERE tenant_no = @tenant),
  (SELECT count(*) FROM memd.user_state WHERE tenant_no = @tenant),
  (SELECT count(*) FROM memd.app_state WHERE tenant_no = @tenant)`

// What is deleted, in this order: content before the head that leads to it. That
// subjects are named twice keeps the planner from reading a whole month.
var sqlDeleteTarget = []string{
	sqlTarget + `
DELETE FROM memd.session_events e USING (
  SELECT x.subject_no, x.session_no, x.month, x.seq FROM t JOIN memd.session_events x` + ofTarget + ` LIMIT @limit) d
WHERE e.tenant_no = @tenant AND e.subject_no = ANY (@subjects) AND e.subject_no = d.subject_no AND e.session_no = d.session_no
  AND e.month = d.month AND e.seq = d.seq`,
	sqlTarget + `
DELETE FROM memd.session_state e USING (
  SELECT x.subject_no, x.session_no, x.key_digest FROM t JOIN memd.session_state x` + ofTarget + ` LIMIT @limit) d
WHERE e.tenant_no = @tenant AND e.subject_no = d.subject_no AND e.session_no = d.session_no AND e.key_digest = d.key_digest`,
	sqlTarget + `
DELETE FROM memd.user_state e USING (
  SELECT x.subject_no, x.key_digest FROM t JOIN memd.user_state x` + ofTargetUser + ` LIMIT @limit) d
WHERE e.tenant_no = @tenant AND e.subject_no = d.subject_no AND e.key_digest = d.key_digest`,
	// Asked again of the row itself: somebody else may just have replaced it.
	sqlTarget + `
DELETE FROM memd.app_state e USING (SELECT * FROM (` + appOfTarget + ` UNION ` + appOwnedByOne + `) a LIMIT @limit) d
WHERE e.tenant_no = @tenant AND e.app_no = d.app_no AND e.key_digest = d.key_digest
  AND (e.contributor_no = ANY (@subjects) OR e.app_no = ANY (@subjects))`,
	sqlTarget + `
DELETE FROM memd.session_heads e USING (
  SELECT x.subject_no, x.session_no FROM t JOIN memd.session_heads x` + ofTarget + ` LIMIT @limit) d
WHERE e.tenant_no = @tenant AND e.subject_no = ANY (@subjects) AND e.subject_no = d.subject_no AND e.session_no = d.session_no`,
}

var sqlDeleteTenant = []string{
	`
DELETE FROM memd.session_events e USING (
  SELECT subject_no, session_no, month, seq FROM memd.session_events WHERE tenant_no = @tenant LIMIT @limit) d
WHERE e.tenant_no = @tenant AND e.subject_no = d.subject_no AND e.session_no = d.session_no AND e.month = d.month AND e.seq = d.seq`,
	`
DELETE FROM memd.session_state e USING (
  SELECT subject_no, session_no, key_digest FROM memd.session_state WHERE tenant_no = @tenant LIMIT @limit) d
WHERE e.tenant_no = @tenant AND e.subject_no = d.subject_no AND e.session_no = d.session_no AND e.key_digest = d.key_digest`,
	`
DELETE FROM memd.user_state e USING (
  SELECT subject_no, key_digest FROM memd.user_state WHERE tenant_no = @tenant LIMIT @limit) d
WHERE e.tenant_no = @tenant AND e.subject_no = d.subject_no AND e.key_digest = d.key_digest`,
	`
DELETE FROM memd.app_state e USING (
  SELECT app_no, key_digest FROM memd.app_state WHERE tenant_no = @tenant LIMIT @limit) d
WHERE e.tenant_no = @tenant AND e.app_no = d.app_no AND e.key_digest = d.key_digest`,
	`
DELETE FROM memd.session_heads e USING (
  SELECT subject_no, session_no FROM memd.session_heads WHERE tenant_no = @tenant LIMIT @limit) d
WHERE e.tenant_no = @tenant AND e.subject_no = d.subject_no AND e.session_no = d.session_no`,
}

// Count counts what a target has, asking the tables. Session 0 stands for all
// of a subject's sessions and for what is the subject's beside them. An empty
// target has nothing.
func Count(ctx context.Context, db pg.DB, tenant memd.TenantNo, t []memd.Contribution) (Counts, error) {
	return count(ctx, db, sqlCountTarget, targetArgs(tenant, t))
}

// CountTenant counts everything of a tenant.
func CountTenant(ctx context.Context, db pg.DB, tenant memd.TenantNo) (Counts, error) {
	return count(ctx, db, sqlCountTenant, pg.Args{"tenant": tenant})
}

// DeleteBatch deletes up to limit rows of a target and returns how many. It is
// repeated until it deletes none, and safe to repeat after that. What it leaves
// is provenance's stub of the session, whose id stays refused.
func DeleteBatch(ctx context.Context, db pg.DB, tenant memd.TenantNo, t []memd.Contribution, limit int) (int64, error) {
	if len(t) == 0 {
		return 0, nil
	}
	return deleteBatch(ctx, db, sqlDeleteTarget, targetArgs(tenant, t), limit)
}

// DeleteTenantBatch is DeleteBatch for everything of a tenant.
func DeleteTenantBatch(ctx context.Context, db pg.DB, tenant memd.TenantNo, limit int) (int64, error) {
	return deleteBatch(ctx, db, sqlDeleteTenant, pg.Args{"tenant": tenant}, limit)
}

func targetArgs(tenant memd.TenantNo, t []memd.Contribution) pg.Args {
	subjects, sessions := make([]memd.Number, len(t)), make([]memd.Number, len(t))
	for i, c := range t {
		subjects[i], sessions[i] = c.Subject, c.Session
	}
	return pg.Args{"tenant": tenant, "subjects": subjects, "sessions": sessions}
}

func count(ctx context.Context, db pg.DB, sql string, args pg.Args) (Counts, error) {
	var c Counts
	err := db.QueryRow(ctx, sql, args).Scan(&c.Sessions, &c.Events, &c.SessionState, &c.UserState, &c.AppState)
	if err != nil {
		return c, fmt.Errorf("counting sessions' content: %w", err)
	}
	return c, nil
}

// deleteBatch goes on to the next table when the one before has fewer rows than
// the limit, so that a small target takes one call.
func deleteBatch(ctx context.Context, db pg.DB, statements []string, args pg.Args, limit int) (int64, error) {
	var deleted int64
	for _, sql := range statements {
		args["limit"] = limit - int(deleted)
		tag, err := db.Exec(ctx, sql, args)
		if err != nil {
			return deleted, fmt.Errorf("deleting sessions' content: %w", err)
		}
		if deleted += tag.RowsAffected(); deleted >= int64(limit) {
			break
		}
	}
	return deleted, nil
}
