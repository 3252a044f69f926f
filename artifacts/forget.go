package artifacts

import (
	"context"
	"fmt"
	"slices"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// Counts is what a target has in the tables, saves that broke off included.
type Counts struct {
	Artifacts        int64 `json:"artifacts"`
	ArtifactVersions int64 `json:"artifact_versions"`
	ArtifactChunks   int64 `json:"artifact_chunks"`
}

// targetArgs names each owner of a target once: a subject's sessions are part of
// the whole subject. It reports whether anything is left.
func targetArgs(tenant memd.TenantNo, target []memd.Contribution) (pg.Args, bool) {
	whole := map[memd.Number]bool{}
	for _, c := range target {
		whole[c.Subject] = whole[c.Subject] || c.Session == 0
	}
	var subjects, owners, sessions []memd.Number
	for s, all := range whole {
		if all {
			subjects = append(subjects, s)
		}
	}
	sorted := slices.Clone(target)
	slices.SortFunc(sorted, memd.Contribution.Compare)
	for _, c := range slices.Compact(sorted) {
		if !whole[c.Subject] {
			owners, sessions = append(owners, c.Subject), append(sessions, c.Session)
		}
	}
	return pg.Args{"tenant": tenant, "subjects": subjects, "owners": owners, "sessions": sessions}, len(target) > 0
}

const sqlCount = `
SELECT (SELECT count(*) FROM memd.artifacts a WHERE a.tenant_no = @tenant AND a.subject_no = ANY (@subjects::bigint[]))
  + (SELECT count(*) FROM unnest(@owners::bigint[], @sessions::bigint[]) AS u (subject_no, session_no)
     JOIN memd.artifacts a ON a.tenant_no = @tenant AND a.subject_no = u.subject_no AND a.session_no = u.session_no),
  (SELECT count(*) FROM memd.artifact_versions v WHERE v.tenant_no = @tenant AND v.subject_no = ANY (@subjects::bigint[]))
  + (SELECT count(*) FROM unnest(@owners::bigint[], @sessions::bigint[]) AS u (subject_no, session_no)
     JOIN memd.artifact_versions v ON v.tenant_no = @tenant AND v.subject_no = u.subject_no AND v.session_no = u.session_no),
  (SELECT count(*) FROM memd.artifact_chunks c WHERE c.tenant_no = @tenant AND c.subject_no = ANY (@subjects::bigint[]))
  + (SELECT count(*) FROM unnest(@owners::bigint[], @sessions::bigint[]) AS u (subject_no, session_no)
     JOIN memd.artifact_chunks c ON c.tenant_no = @tenant AND c.subject_no = u.subject_no AND c.session_no = u.session_no)`

// Count counts a target's rows, asking the tables. Session 0 stands for the
// whole subject: every session's artifacts, and the user's own, whether or not
// a session is left to list them. An empty target has none.
func Count(ctx context.Context, db pg.DB, tenant memd.TenantNo, target []memd.Contribution) (Counts, error) {
	var c Counts
	args, ok := targetArgs(tenant, target)
	if !ok {
		return c, nil
	}
	if err := db.QueryRow(ctx, sqlCount, args).Scan(&c.Artifacts, &c.ArtifactVersions, &c.ArtifactChunks); err != nil {
		return c, fmt.Errorf("counting artifacts: %w", err)
	}
	return c, nil
}

// Each table is asked by its own columns: a row that lost its parent is found
// all the same. The order is that of the primary key, which is that of whoever
// else deletes chunks, so that the two wait for each other and do not deadlock.
const sqlDeleteTargetChunks = `
DELETE FROM memd.artifact_chunks c USING (
  SELECT x.subject_no, x.session_no, x.version_id, x.chunk_no FROM memd.artifact_chunks x
  WHERE x.tenant_no = @tenant AND x.subject_no = ANY (@subjects::bigint[])
  UNION ALL
  SELECT x.subject_no, x.session_no, x.version_id, x.chunk_no FROM unnest(@owners::bigint[], @sessions::bigint[]) AS u (subject_no, session_no)
  JOIN memd.artifact_chunks x ON x.tenant_no = @tenant AND x.subject_no = u.subject_no AND x.session_no = u.session_no
  ORDER BY 1, 2, 3, 4 LIMIT @limit) d
WHERE c.tenant_no = @tenant AND c.subject_no = d.subject_no AND c.session_no = d.session_no
  AND c.version_id = d.version_id AND c.chunk_no = d.chunk_no`

const sqlDeleteTargetVersions = `
DELETE FROM memd.artifact_versions v USING (
  SELECT x.subject_no, x.session_no, x.version_id FROM memd.artifact_versions x
  WHERE x.tenant_no = @tenant AND x.subject_no = ANY (@subjects::bigint[])
  UNION ALL
  SELECT x.subject_no, x.session_no, x.version_id FROM unnest(@owners::bigint[], @sessions::bigint[]) AS u (subject_no, session_no)
  JOIN memd.artifact_versions x ON x.tenant_no = @tenant AND x.subject_no = u.subject_no AND x.session_no = u.session_no
  ORDER BY 1, 2, 3 LIMIT @limit) d
WHERE v.tenant_no = @tenant AND v.subject_no = d.subject_no AND v.session_no = d.session_no AND v.version_id = d.version_id`

const sqlDeleteTargetNames = `
DELETE FROM memd.artifacts a USING (
  SELECT x.subject_no, x.session_no, x.artifact_id FROM memd.artifacts x
  WHERE x.tenant_no = @tenant AND x.subject_no = ANY (@subjects::bigint[])
  UNION ALL
  SELECT x.subject_no, x.session_no, x.artifact_id FROM unnest(@owners::bigint[], @sessions::bigint[]) AS u (subject_no, session_no)
  JOIN memd.artifacts x ON x.tenant_no = @tenant AND x.subject_no = u.subject_no AND x.session_no = u.session_no
  ORDER BY 1, 2, 3 LIMIT @limit) d
WHERE a.tenant_no = @tenant AND a.subject_no = d.subject_no AND a.session_no = d.session_no AND a.artifact_id = d.artifact_id`

// DeleteBatch deletes up to limit rows of a target, chunks before the versions
// that they are of and versions before their names, and returns how many it
// deleted. It is repeated until it deletes none, each time in a transaction of
// its own, and is safe to repeat. A chunk has up to 256 KiB and a seal, so limit
// bounds a transaction's bytes too. An empty target deletes nothing.
//
// It is the erasure's, which has put up a fence or a tombstone before: a save
// that could still write would make it fail.
func DeleteBatch(ctx context.Context, db pg.DB, tenant memd.TenantNo, target []memd.Contribution, limit int) (int64, error) {
	args, ok := targetArgs(tenant, target)
	if !ok {
		return 0, nil
	}
	return deleteInOrder(ctx, db, args, limit, sqlDeleteTargetChunks, sqlDeleteTargetVersions, sqlDeleteTargetNames)
}

// deleteInOrder runs the first of the statements that finds something. One
// transaction never deletes from two tables: a save that breaks off locks its
// version before it deletes its chunks.
func deleteInOrder(ctx context.Context, db pg.DB, args pg.Args, limit int, statements ...string) (int64, error) {
	args["limit"] = limit
	for _, sql := range statements {
		tag, err := db.Exec(ctx, sql, args)
		if err != nil {
			return 0, fmt.Errorf("deleting artifacts: %w", err)
		}
		if tag.RowsAffected() > 0 {
			return tag.RowsAffected(), nil
		}
	}
	return 0, nil
}

const sqlCountTenant = `
SELECT (SELECT count(*) FROM memd.artifacts WHERE tenant_no = @tenant),
  (SELECT count(*) FROM memd.artifact_versions WHERE tenant_no = @tenant),
  (SELECT count(*) FROM memd.artifact_chunks WHERE tenant_no = @tenant)`

// CountTenant counts a tenant's rows, asking the tables.
func CountTenant(ctx context.Context, db pg.DB, tenant memd.TenantNo) (Counts, error) {
	var c Counts
	err := db.QueryRow(ctx, sqlCountTenant, pg.Args{"tenant": tenant}).Scan(&c.Artifacts, &c.ArtifactVersions, &c.ArtifactChunks)
	if err != nil {
		return c, fmt.Errorf("counting artifacts: %w", err)
	}
	return c, nil
}

const sqlDeleteTenantChunks = `
DELETE FROM memd.artifact_chunks c USING (
  SELECT subject_no, session_no, version_id, chunk_no FROM memd.artifact_chunks WHERE tenant_no = @tenant
  ORDER BY 1, 2, 3, 4 LIMIT @limit) d
WHERE c.tenant_no = @tenant AND c.subject_no = d.subject_no AND c.session_no = d.session_no
  AND c.version_id = d.version_id AND c.chunk_no = d.chunk_no`

const sqlDeleteTenantVersions = `
DELETE FROM memd.artifact_versions v USING (
  SELECT subject_no, session_no, version_id FROM memd.artifact_versions WHERE tenant_no = @tenant
  ORDER BY 1, 2, 3 LIMIT @limit) d
WHERE v.tenant_no = @tenant AND v.subject_no = d.subject_no AND v.session_no = d.session_no AND v.version_id = d.version_id`

const sqlDeleteTenantNames = `
DELETE FROM memd.artifacts a USING (
  SELECT subject_no, session_no, artifact_id FROM memd.artifacts WHERE tenant_no = @tenant
  ORDER BY 1, 2, 3 LIMIT @limit) d
WHERE a.tenant_no = @tenant AND a.subject_no = d.subject_no AND a.session_no = d.session_no AND a.artifact_id = d.artifact_id`

// DeleteTenantBatch is DeleteBatch for everything that a tenant has.
func DeleteTenantBatch(ctx context.Context, db pg.DB, tenant memd.TenantNo, limit int) (int64, error) {
	return deleteInOrder(ctx, db, pg.Args{"tenant": tenant}, limit, sqlDeleteTenantChunks, sqlDeleteTenantVersions, sqlDeleteTenantNames)
}
