package memory

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// Target is what an erasure deletes: rows to which one of the contributions
// went. Session 0 stands for all of a subject's sessions, and for the subject's
// own scope, whoever contributed to it. An empty target deletes nothing.
type Target []memd.Contribution

func (t Target) args(tenant memd.TenantNo) pg.Args {
	subjects, sessions := make([]memd.Number, len(t)), make([]memd.Number, len(t))
	for i, c := range t {
		subjects[i], sessions[i] = c.Subject, c.Session
	}
	return pg.Args{"tenant": tenant, "subjects": subjects, "sessions": sessions}
}

// The ids of a target's rows: by owner, by inline contribution, by a further
// one. Each branch is an index scan.
const sqlTargeted = `
WITH t AS (SELECT * FROM unnest(@subjects::bigint[], @sessions::bigint[]) AS u (subject_no, session_no)),
targeted AS (
  SELECT m.memory_id FROM t JOIN memd.memories m ON m.tenant_no = @tenant AND m.owner_no = t.subject_no
  WHERE t.session_no = 0
  UNION
  SELECT m.memory_id FROM t JOIN memd.memories m ON m.tenant_no = @tenant AND m.contributor_no = t.subject_no
  WHERE t.session_no IN (0, m.contributor_session)
  UNION
  SELECT c.memory_id FROM t JOIN memd.memory_contributions c ON c.tenant_no = @tenant AND c.contributor_no = t.subject_no
  WHERE t.session_no IN (0, c.contributor_session)
)`

// Rows of a scope that goes whole are counted where they lie: looking each up by its
// id took ten times as long. The others are those of scopes that stay.
const sqlCountTargeted = `
WITH t AS (SELECT DISTINCT * FROM unnest(@subjects::bigint[], @sessions::bigint[]) AS u (subject_no, session_no))
SELECT count(*), count(*) FILTER (WHERE c.dimension > 0), count(*) FILTER (WHERE c.kind > 1)
FROM (
  SELECT m.dimension, m.kind FROM t JOIN memd.memories m ON m.tenant_no = @tenant AND m.owner_no = t.subject_no
  WHERE t.session_no = 0
  UNION ALL
  SELECT o.dimension, o.kind FROM (
    SELECT m.memory_id, m.dimension, m.kind FROM t JOIN memd.memories m ON m.tenant_no = @tenant AND m.contributor_no = t.subject_no
    WHERE t.session_no IN (0, m.contributor_session) AND m.owner_no <> ALL (ARRAY(SELECT w.subject_no FROM t w WHERE w.session_no = 0))
    UNION
    SELECT m.memory_id, m.dimension, m.kind FROM t JOIN memd.memory_contributions x ON x.tenant_no = @tenant AND x.contributor_no = t.subject_no
    JOIN memd.memories m ON m.tenant_no = @tenant AND m.memory_id = x.memory_id
    WHERE t.session_no IN (0, x.contributor_session) AND m.owner_no <> ALL (ARRAY(SELECT w.subject_no FROM t w WHERE w.session_no = 0))) o) c`

const sqlTargetedScopes = sqlTargeted + `
SELECT DISTINCT m.owner_no, c.subject_no, c.session_no
FROM targeted JOIN memd.memories m ON m.tenant_no = @tenant AND m.memory_id = targeted.memory_id
CROSS JOIN LATERAL (
  SELECT t.subject_no, t.session_no FROM t
  WHERE (t.session_no = 0 AND m.owner_no = t.subject_no)
     OR (m.contributor_no = t.subject_no AND t.session_no IN (0, m.contributor_session))
     OR EXISTS (SELECT FROM memd.memory_contributions x WHERE x.tenant_no = @tenant AND x.memory_id = m.memory_id
                AND x.contributor_no = t.subject_no AND t.session_no IN (0, x.contributor_session))) c`

// Picking needs no order and no distinctness, so that it stops at the limit.
const sqlPickTargeted = `
WITH t AS (SELECT * FROM unnest(@subjects::bigint[], @sessions::bigint[]) AS u (subject_no, session_no))
SELECT m.memory_id FROM t JOIN memd.memories m ON m.tenant_no = @tenant AND m.owner_no = t.subject_no
WHERE t.session_no = 0
UNION ALL
SELECT m.memory_id FROM t JOIN memd.memories m ON m.tenant_no = @tenant AND m.contributor_no = t.subject_no
WHERE t.session_no IN (0, m.contributor_session)
UNION ALL
SELECT c.memory_id FROM t JOIN memd.memory_contributions c ON c.tenant_no = @tenant AND c.contributor_no = t.subject_no
WHERE t.session_no IN (0, c.contributor_session)
LIMIT @limit`

// A derived row that falls, with those of its direct sources that stay.
const sqlFalling = `
WITH t AS (SELECT * FROM unnest(@subjects::bigint[], @sessions::bigint[]) AS u (subject_no, session_no))
SELECT m.memory_id, m.owner_no, m.kind, s.source_memory, s.source_subject, s.source_session
FROM memd.memories m
LEFT JOIN memd.memory_sources s ON s.tenant_no = @tenant AND s.memory_id = m.memory_id
  AND CASE WHEN s.source_memory IS NOT NULL
    THEN EXISTS (
      SELECT FROM memd.memories x WHERE x.tenant_no = @tenant AND x.memory_id = s.source_memory AND NOT EXISTS (
        SELECT FROM t WHERE (t.session_no = 0 AND x.owner_no = t.subject_no)
          OR (x.contributor_no = t.subject_no AND t.session_no IN (0, x.contributor_session))
          OR EXISTS (SELECT FROM memd.memory_contributions y WHERE y.tenant_no = @tenant AND y.memory_id = x.memory_id
                     AND y.contributor_no = t.subject_no AND t.session_no IN (0, y.contributor_session))))
    ELSE NOT EXISTS (SELECT FROM t WHERE t.subject_no = s.source_subject AND t.session_no IN (0, s.source_session)) END
WHERE m.tenant_no = @tenant AND m.memory_id = ANY (@ids) AND m.kind > 1
  AND NOT EXISTS (SELECT FROM t WHERE t.session_no = 0 AND t.subject_no = m.owner_no)
ORDER BY m.memory_id, s.ordinal`

// Counts is what a target has in the tables.
type Counts struct {
	Memories int64 `json:"memories"`
	Vectors  int64 `json:"vectors"`
	Derived  int64 `json:"derived"` // facts and summaries among Memories
}

// Count counts a target's rows, asking the tables.
func Count(ctx context.Context, db pg.DB, tenant memd.TenantNo, t Target) (Counts, error) {
	var c Counts
	err := db.QueryRow(ctx, sqlCountTargeted, t.args(tenant)).Scan(&c.Memories, &c.Vectors, &c.Derived)
	if err != nil {
		return c, fmt.Errorf("counting memories: %w", err)
	}
	return c, nil
}

// Held says that a scope holds rows of a contribution.
type Held struct {
	Owner        memd.Number
	Contribution memd.Contribution // as in the Target
}

// Scopes returns the scopes that hold rows of the target.
func Scopes(ctx context.Context, db pg.DB, tenant memd.TenantNo, t Target) ([]Held, error) {
	rows, err := db.Query(ctx, sqlTargetedScopes, t.args(tenant))
	if err != nil {
		return nil, fmt.Errorf("finding scopes: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (h Held, err error) {
		err = row.Scan(&h.Owner, &h.Contribution.Subject, &h.Contribution.Session)
		return h, err
	})
	if err != nil {
		return nil, fmt.Errorf("finding scopes: %w", err)
	}
	return out, nil
}

// Fallen is a derived row of somebody else, or of another session, that an
// erasure deletes, with the sources that stay: from them it can be derived
// again.
type Fallen struct {
	ID      uuid.UUID
	Owner   memd.Number
	Kind    Kind
	Sources []SurvivingSource
}

// SurvivingSource is a memory or a session.
type SurvivingSource struct {
	Memory  uuid.UUID         `json:"memory,omitzero"`
	Session memd.Contribution `json:"session,omitzero"`
}

// DeleteBatch deletes up to limit rows of the target and returns how many it
// deleted and which derived rows fell. It is repeated until it deletes none.
// The caller's transaction makes the deletion and the record of it one.
func DeleteBatch(ctx context.Context, db pg.DB, tenant memd.TenantNo, t Target, limit int) (int64, []Fallen, error) {
	if len(t) == 0 {
		return 0, nil, nil
	}
	args := t.args(tenant)
	args["limit"] = limit
	rows, err := db.Query(ctx, sqlPickTargeted, args)
	if err != nil {
		return 0, nil, fmt.Errorf("picking memories: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil || len(ids) == 0 {
		return 0, nil, err
	}
	delete(args, "limit")
	args["ids"] = ids
	if rows, err = db.Query(ctx, sqlFalling, args); err != nil {
		return 0, nil, fmt.Errorf("finding derived rows: %w", err)
	}
	fallen, err := collectFallen(rows)
	if err != nil {
		return 0, nil, fmt.Errorf("finding derived rows: %w", err)
	}
	tag, err := db.Exec(ctx, sqlDeleteByID, pg.Args{"tenant": tenant, "ids": ids})
	if err != nil {
		return 0, nil, fmt.Errorf("deleting memories: %w", err)
	}
	return tag.RowsAffected(), fallen, nil
}

func collectFallen(rows pgx.Rows) ([]Fallen, error) {
	var out []Fallen
	var f Fallen
	var memory *uuid.UUID
	var subject, session *memd.Number
	_, err := pgx.ForEachRow(rows, []any{&f.ID, &f.Owner, &f.Kind, &memory, &subject, &session}, func() error {
		if len(out) == 0 || out[len(out)-1].ID != f.ID {
			out = append(out, Fallen{ID: f.ID, Owner: f.Owner, Kind: f.Kind})
		}
		last := &out[len(out)-1]
		switch {
		case memory != nil:
			last.Sources = append(last.Sources, SurvivingSource{Memory: *memory})
		case subject != nil && session != nil:
			last.Sources = append(last.Sources, SurvivingSource{Session: memd.Contribution{Subject: *subject, Session: *session}})
		}
		return nil
	})
	return out, err
}

const sqlSweepExpired = `
DELETE FROM memd.memories m USING (
  SELECT x.tenant_no, x.memory_id FROM memd.memories x JOIN memd.active_tenants USING (tenant_no)
  WHERE x.expires_at <= @now AND NOT memd.memory_held(x.tenant_no, x.memory_id) ORDER BY x.expires_at LIMIT @limit) e
WHERE m.tenant_no = e.tenant_no AND m.memory_id = e.memory_id AND m.expires_at <= @now`

// The sweep says that it is one, so that what it deletes leaves no tombstones.
const sqlSweeping = `SET LOCAL memd.sweep = 'on'`

// SweepExpired deletes up to limit rows, of whatever tenant is active, whose time
// is up and returns how many. Readers left them out already. What a legal hold covers
// stays, unread, until it is released. In a tenant that is
// on its way out nothing is done on a schedule: it is to stay what its dry run
// showed.
func SweepExpired(ctx context.Context, tx pgx.Tx, now time.Time, limit int) (int64, error) {
	if _, err := tx.Exec(ctx, sqlSweeping); err != nil {
		return 0, fmt.Errorf("sweeping expired memories: %w", err)
	}
	tag, err := tx.Exec(ctx, sqlSweepExpired, pg.Args{"now": now, "limit": limit})
	if err != nil {
		return 0, fmt.Errorf("sweeping expired memories: %w", err)
	}
	return tag.RowsAffected(), nil
}
