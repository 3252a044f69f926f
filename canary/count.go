package canary

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// Each of these names the rows of one kind that must be gone, by table and id,
// asked of the tables directly. t is the target: session 0 is all of a subject.
const (
	sqlOwned = `
SELECT 'memories' AS name, m.memory_id::text AS id FROM unnest(@subjects::bigint[], @sessions::bigint[]) AS t (subject_no, session_no)
JOIN memd.memories m ON m.tenant_no = @tenant AND m.owner_no = t.subject_no WHERE t.session_no = 0`
	sqlContributed = `
SELECT 'memories' AS name, m.memory_id::text AS id FROM unnest(@subjects::bigint[], @sessions::bigint[]) AS t (subject_no, session_no)
JOIN memd.memories m ON m.tenant_no = @tenant AND m.contributor_no = t.subject_no AND t.session_no IN (0, m.contributor_session)`
	sqlFurther = `
SELECT 'memories' AS name, c.memory_id::text AS id FROM unnest(@subjects::bigint[], @sessions::bigint[]) AS t (subject_no, session_no)
JOIN memd.memory_contributions c ON c.tenant_no = @tenant AND c.contributor_no = t.subject_no AND t.session_no IN (0, c.contributor_session)`
	sqlSources = `
SELECT 'memories' AS name, s.memory_id::text AS id FROM unnest(@subjects::bigint[], @sessions::bigint[]) AS t (subject_no, session_no)
JOIN memd.memory_sources s ON s.tenant_no = @tenant AND s.source_subject = t.subject_no AND t.session_no IN (0, s.source_session)`
	sqlStubs = `
SELECT 'sessions' AS name, x.subject_no || '/' || x.session_no AS id FROM unnest(@subjects::bigint[], @sessions::bigint[]) AS t (subject_no, session_no)
JOIN memd.sessions x ON x.tenant_no = @tenant AND x.subject_no = t.subject_no AND t.session_no IN (0, x.session_no)
WHERE x.state = 1 OR x.sealed_id <> ''`
	sqlSubjects = `
SELECT 'subjects' AS name, s.subject_no::text AS id FROM unnest(@subjects::bigint[], @sessions::bigint[]) AS t (subject_no, session_no)
JOIN memd.subjects s ON s.tenant_no = @tenant AND s.subject_no = t.subject_no WHERE t.session_no = 0 AND s.retired_at IS NULL`
	sqlHeadsLeft = `
SELECT 'session_heads' AS name, h.subject_no || '/' || h.session_no AS id FROM unnest(@subjects::bigint[], @sessions::bigint[]) AS t (subject_no, session_no)
JOIN memd.session_heads h ON h.tenant_no = @tenant AND h.subject_no = t.subject_no AND t.session_no IN (0, h.session_no)`
	sqlEventsLeft = `
SELECT 'session_events' AS name, e.subject_no || '/' || e.session_no || '/' || e.seq AS id FROM unnest(@subjects::bigint[], @sessions::bigint[]) AS t (subject_no, session_no)
JOIN memd.session_events e ON e.tenant_no = @tenant AND e.subject_no = t.subject_no AND t.session_no IN (0, e.session_no)`
	sqlSessionStateLeft = `
SELECT 'session_state' AS name, s.subject_no || '/' || s.session_no || '/' || encode(s.key_digest, 'hex') AS id FROM unnest(@subjects::bigint[], @sessions::bigint[]) AS t (subject_no, session_no)
JOIN memd.session_state s ON s.tenant_no = @tenant AND s.subject_no = t.subject_no AND t.session_no IN (0, s.session_no)`
	sqlUserStateLeft = `
SELECT 'user_state' AS name, s.subject_no || '/' || encode(s.key_digest, 'hex') AS id FROM unnest(@subjects::bigint[], @sessions::bigint[]) AS t (subject_no, session_no)
JOIN memd.user_state s ON s.tenant_no = @tenant AND s.subject_no = t.subject_no WHERE t.session_no = 0`
	sqlAppStateLeft = `
SELECT 'app_state' AS name, s.app_no || '/' || encode(s.key_digest, 'hex') AS id FROM unnest(@subjects::bigint[], @sessions::bigint[]) AS t (subject_no, session_no)
JOIN memd.app_state s ON s.tenant_no = @tenant AND s.contributor_no = t.subject_no WHERE t.session_no = 0`
	sqlArtifactsLeft = `
SELECT 'artifacts' AS name, a.artifact_id::text AS id FROM unnest(@subjects::bigint[], @sessions::bigint[]) AS t (subject_no, session_no)
JOIN memd.artifacts a ON a.tenant_no = @tenant AND a.subject_no = t.subject_no AND t.session_no IN (0, a.session_no)`
	sqlVersionsLeft = `
SELECT 'artifact_versions' AS name, v.version_id::text AS id FROM unnest(@subjects::bigint[], @sessions::bigint[]) AS t (subject_no, session_no)
JOIN memd.artifact_versions v ON v.tenant_no = @tenant AND v.subject_no = t.subject_no AND t.session_no IN (0, v.session_no)`
	sqlChunksLeft = `
SELECT 'artifact_chunks' AS name, c.version_id || '/' || c.chunk_no AS id FROM unnest(@subjects::bigint[], @sessions::bigint[]) AS t (subject_no, session_no)
JOIN memd.artifact_chunks c ON c.tenant_no = @tenant AND c.subject_no = t.subject_no AND t.session_no IN (0, c.session_no)`
)

// The same of a whole tenant.
const (
	sqlAllMemories      = `SELECT 'memories' AS name, m.memory_id::text AS id FROM memd.memories m WHERE m.tenant_no = @tenant`
	sqlAllContributions = `SELECT 'memories' AS name, c.memory_id::text AS id FROM memd.memory_contributions c WHERE c.tenant_no = @tenant`
	sqlAllSources       = `SELECT 'memories' AS name, s.memory_id::text AS id FROM memd.memory_sources s WHERE s.tenant_no = @tenant`
	sqlAllHeads         = `SELECT 'session_heads' AS name, h.subject_no || '/' || h.session_no AS id FROM memd.session_heads h WHERE h.tenant_no = @tenant`
	sqlAllEvents        = `SELECT 'session_events' AS name, e.subject_no || '/' || e.session_no || '/' || e.seq AS id FROM memd.session_events e WHERE e.tenant_no = @tenant`
	sqlAllSessionState  = `SELECT 'session_state' AS name, s.subject_no || '/' || s.session_no AS id FROM memd.session_state s WHERE s.tenant_no = @tenant`
	sqlAllUserState     = `SELECT 'user_state' AS name, s.subject_no::text AS id FROM memd.user_state s WHERE s.tenant_no = @tenant`
	sqlAllAppState      = `SELECT 'app_state' AS name, s.app_no::text AS id FROM memd.app_state s WHERE s.tenant_no = @tenant`
	sqlAllArtifacts     = `SELECT 'artifacts' AS name, a.artifact_id::text AS id FROM memd.artifacts a WHERE a.tenant_no = @tenant`
	sqlAllVersions      = `SELECT 'artifact_versions' AS name, v.version_id::text AS id FROM memd.artifact_versions v WHERE v.tenant_no = @tenant`
	sqlAllChunks        = `SELECT 'artifact_chunks' AS name, c.version_id || '/' || c.chunk_no AS id FROM memd.artifact_chunks c WHERE c.tenant_no = @tenant`
)

// count is a check of rows: its name, and the statement that names them.
type count struct{ name, sql string }

// counts returns what is counted of an examination.
func (e *exam) counts() []count {
	if e.Whole {
		return []count{
			{"memories", sqlAllMemories}, {"memory_contributions", sqlAllContributions}, {"memory_sources", sqlAllSources},
			{"sessions", sqlAllHeads}, {"session_events", sqlAllEvents}, {"session_state", sqlAllSessionState},
			{"user_state", sqlAllUserState}, {"app_state", sqlAllAppState},
			{"artifacts", sqlAllArtifacts}, {"artifact_versions", sqlAllVersions}, {"artifact_chunks", sqlAllChunks},
		}
	}
	if e.Month > 0 {
		return e.monthCounts()
	}
	all := []count{
		{"session_events", sqlEventsLeft}, {"session_state", sqlSessionStateLeft},
		{"artifacts", sqlArtifactsLeft}, {"artifact_versions", sqlVersionsLeft}, {"artifact_chunks", sqlChunksLeft},
	}
	if e.Content {
		return append(all, count{"sessions", sqlHeadsLeft})
	}
	return append(all,
		count{"rows_by_owner", sqlOwned}, count{"rows_by_contribution", sqlContributed},
		count{"memory_contributions", sqlFurther}, count{"memory_sources", sqlSources},
		count{"sessions", sqlStubs + " UNION ALL " + sqlHeadsLeft}, count{"subjects", sqlSubjects},
		count{"user_state", sqlUserStateLeft}, count{"app_state", sqlAppStateLeft},
	)
}

func (e *exam) args() pg.Args {
	if e.Whole {
		return pg.Args{"tenant": e.Tenant}
	}
	if e.Month > 0 {
		return pg.Args{"tenant": e.Tenant, "month": e.Month}
	}
	subjects, sessions := make([]memd.Number, len(e.Target)), make([]memd.Number, len(e.Target))
	for i, t := range e.Target {
		subjects[i], sessions[i] = t.Subject, t.Session
	}
	return pg.Args{"tenant": e.Tenant, "subjects": subjects, "sessions": sessions}
}

const (
	sqlCountHead = `SELECT count(*) FROM (`
	sqlCountTail = `) AS found`
	sqlCountSome = ` LIMIT @limit) AS found`
	sqlNameHead  = `SELECT found.name, found.id FROM (`
	sqlNameTail  = `) AS found LIMIT @limit`
)

// countNow counts what there is, by the name of the check.
func (v *Verifier) countNow(ctx context.Context, e *exam) (map[string]int64, error) {
	out := map[string]int64{}
	err := v.c.Pool.With(ctx, func(db pg.DB) error {
		for _, c := range e.counts() {
			var n int64
			if err := db.QueryRow(ctx, sqlCountHead+c.sql+sqlCountTail, e.args()).Scan(&n); err != nil {
				return fmt.Errorf("counting %s: %w", c.name, err)
			}
			out[c.name] = n
		}
		return nil
	})
	return out, err
}

// checkCounts demands that nothing is left, and names what is.
func (v *Verifier) checkCounts(ctx context.Context, e *exam, before map[string]int64) ([]memd.Check, error) {
	var out []memd.Check
	err := v.c.Pool.With(ctx, func(db pg.DB) error {
		for _, c := range e.counts() {
			began := time.Now()
			var n int64
			if err := db.QueryRow(ctx, sqlCountHead+c.sql+sqlCountTail, e.args()).Scan(&n); err != nil {
				return fmt.Errorf("counting %s: %w", c.name, err)
			}
			k := judge(c.name, before[c.name], n, reasonRows)
			if before == nil && n == 0 {
				k.Reason = reasonNoControl
			}
			if n > 0 {
				args := pg.Args{"limit": maxRows}
				maps.Copy(args, e.args())
				rows, err := db.Query(ctx, sqlNameHead+c.sql+sqlNameTail, args)
				if err == nil {
					k.Rows, err = pgx.CollectRows(rows, pgx.RowToStructByPos[memd.RowRef])
				}
				if err != nil {
					return fmt.Errorf("naming %s: %w", c.name, err)
				}
			}
			k.Duration = time.Since(began)
			out = append(out, k)
		}
		return nil
	})
	return out, err
}
