package provenance

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// Session states, as stored.
const (
	stateLive      = 1
	stateForgotten = 2
)

const sqlSubjectsOf = `
SELECT subject_no FROM memd.subjects
WHERE tenant_no = @tenant AND user_ref = @ref
ORDER BY subject_no`

const sqlRetiredSubjects = `
SELECT subject_no FROM memd.subjects
WHERE tenant_no = @tenant AND user_ref = @ref AND retired_at IS NOT NULL
ORDER BY subject_no`

const sqlLiveSubjects = `
SELECT subject_no FROM memd.subjects
WHERE tenant_no = @tenant AND user_ref = @ref AND retired_at IS NULL`

const sqlSubjectPage = `
SELECT subject_no, user_ref FROM memd.subjects
WHERE tenant_no = @tenant AND subject_no > @after ORDER BY subject_no LIMIT @limit`

const sqlSessionOf = `
SELECT subject_no, session_no FROM memd.sessions
WHERE tenant_no = @tenant AND subject_no = ANY (@subjects) AND session_ref = @ref
ORDER BY subject_no`

const sqlSessionRefs = `
SELECT session_ref FROM memd.sessions
WHERE tenant_no = @tenant AND subject_no = ANY (@subjects) ORDER BY session_ref`

const sqlForgetSessions = `
UPDATE memd.sessions SET state = 2, sealed_id = ''
WHERE tenant_no = @tenant AND subject_no = ANY (@subjects) AND (@session::bigint = 0 OR session_no = @session)
  AND (state <> 2 OR sealed_id <> '')`

const sqlCountLiveSessions = `
SELECT count(*) FROM unnest(@subjects::bigint[], @sessions::bigint[]) AS u (subject_no, session_no)
JOIN memd.sessions x ON x.tenant_no = @tenant AND x.subject_no = u.subject_no AND u.session_no IN (0, x.session_no)
WHERE x.state <> 2 OR x.sealed_id <> ''`

const sqlRetire = `
UPDATE memd.subjects SET retired_at = @now
WHERE tenant_no = @tenant AND subject_no = ANY (@subjects) AND retired_at IS NULL`

// AllSubjects returns every number that a user ever had, of earlier lives too,
// oldest first.
func AllSubjects(ctx context.Context, db pg.DB, tenant memd.TenantNo, ref memd.Ref) ([]memd.Number, error) {
	return subjectNumbers(ctx, db, sqlSubjectsOf, pg.Args{"tenant": tenant, "ref": ref[:]})
}

func subjectNumbers(ctx context.Context, db pg.DB, sql string, args pg.Args) ([]memd.Number, error) {
	rows, err := db.Query(ctx, sql, args)
	if err != nil {
		return nil, fmt.Errorf("finding a user's numbers: %w", err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[memd.Number])
	if err != nil {
		return nil, fmt.Errorf("finding a user's numbers: %w", err)
	}
	return out, nil
}

// RetiredSubjects returns the numbers of a user's past lives, oldest first.
func RetiredSubjects(ctx context.Context, db pg.DB, tenant memd.TenantNo, ref memd.Ref) ([]memd.Number, error) {
	return subjectNumbers(ctx, db, sqlRetiredSubjects, pg.Args{"tenant": tenant, "ref": ref[:]})
}

// LiveSubjects returns the number of a user's present life, if there is one.
func LiveSubjects(ctx context.Context, db pg.DB, tenant memd.TenantNo, ref memd.Ref) ([]memd.Number, error) {
	return subjectNumbers(ctx, db, sqlLiveSubjects, pg.Args{"tenant": tenant, "ref": ref[:]})
}

// Known is one subject of the directory.
type Known struct {
	Number memd.Number
	Ref    memd.Ref
}

// Page returns up to limit subjects of a tenant, of every life, users and shared
// scopes alike, with a number above after.
func Page(ctx context.Context, db pg.DB, tenant memd.TenantNo, after memd.Number, limit int) ([]Known, error) {
	rows, err := db.Query(ctx, sqlSubjectPage, pg.Args{"tenant": tenant, "after": after, "limit": limit})
	if err != nil {
		return nil, fmt.Errorf("listing subjects: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (k Known, err error) {
		var ref []byte
		if err = row.Scan(&k.Number, &ref); err == nil {
			k.Ref = memd.Ref(ref)
		}
		return k, err
	})
	if err != nil {
		return nil, fmt.Errorf("listing subjects: %w", err)
	}
	return out, nil
}

// SessionOf returns the contributions that a session id stands for, one for
// each life of its user in which the session was seen.
func SessionOf(ctx context.Context, db pg.DB, tenant memd.TenantNo, subjects []memd.Number, ref memd.Ref) ([]memd.Contribution, error) {
	rows, err := db.Query(ctx, sqlSessionOf, pg.Args{"tenant": tenant, "subjects": subjects, "ref": ref[:]})
	if err != nil {
		return nil, fmt.Errorf("finding a session: %w", err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByPos[memd.Contribution])
	if err != nil {
		return nil, fmt.Errorf("finding a session: %w", err)
	}
	return out, nil
}

// SessionRefs returns the keyed digests of every session of the subjects, which
// are what tombstones are written for.
func SessionRefs(ctx context.Context, db pg.DB, tenant memd.TenantNo, subjects []memd.Number) ([]memd.Ref, error) {
	rows, err := db.Query(ctx, sqlSessionRefs, pg.Args{"tenant": tenant, "subjects": subjects})
	if err != nil {
		return nil, fmt.Errorf("listing sessions: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (memd.Ref, error) {
		var b []byte
		err := row.Scan(&b)
		return memd.Ref(b), err
	})
	if err != nil {
		return nil, fmt.Errorf("listing sessions: %w", err)
	}
	return out, nil
}

// ForgetSessions turns sessions into stubs, ref, number and state, and returns
// how many were still live. session 0 means all of the subjects'. Repeating it
// changes nothing.
func ForgetSessions(ctx context.Context, db pg.DB, tenant memd.TenantNo, subjects []memd.Number, session memd.Number) (int64, error) {
	tag, err := db.Exec(ctx, sqlForgetSessions, pg.Args{"tenant": tenant, "subjects": subjects, "session": session})
	if err != nil {
		return 0, fmt.Errorf("forgetting sessions: %w", err)
	}
	return tag.RowsAffected(), nil
}

// CountLiveSessions counts the sessions of the targets that are not stubs yet,
// asking the table. Session 0 means all of the subject's.
func CountLiveSessions(ctx context.Context, db pg.DB, tenant memd.TenantNo, targets []memd.Contribution) (int64, error) {
	subjects, sessions := make([]memd.Number, len(targets)), make([]memd.Number, len(targets))
	for i, c := range targets {
		subjects[i], sessions[i] = c.Subject, c.Session
	}
	var n int64
	err := db.QueryRow(ctx, sqlCountLiveSessions, pg.Args{
		"tenant": tenant, "subjects": subjects, "sessions": sessions,
	}).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("counting sessions: %w", err)
	}
	return n, nil
}

// Retire ends the life of subject numbers: a user who returns gets a new one.
// Repeating it changes nothing.
func Retire(ctx context.Context, db pg.DB, tenant memd.TenantNo, subjects []memd.Number, now time.Time) error {
	_, err := db.Exec(ctx, sqlRetire, pg.Args{"tenant": tenant, "subjects": subjects, "now": now})
	if err != nil {
		return fmt.Errorf("retiring subjects: %w", err)
	}
	return nil
}

const sqlCountTenant = `
SELECT (SELECT count(*) FROM memd.subjects WHERE tenant_no = @tenant AND retired_at IS NULL),
  (SELECT count(*) FROM memd.sessions WHERE tenant_no = @tenant AND state <> 2)`

// CountTenant counts a tenant's living subjects, shared scopes among them, and
// their sessions.
func CountTenant(ctx context.Context, db pg.DB, tenant memd.TenantNo) (subjects, sessions int64, err error) {
	if err = db.QueryRow(ctx, sqlCountTenant, pg.Args{"tenant": tenant}).Scan(&subjects, &sessions); err != nil {
		return 0, 0, fmt.Errorf("counting a tenant's subjects: %w", err)
	}
	return subjects, sessions, nil
}
