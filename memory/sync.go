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

// One statement, so one snapshot: the fence, the subject's number, the key
// epoch and whatever changed since the reader's last snapshot.
const sqlSync = `
SELECT w.ord, coalesce(e.epoch, 0), coalesce(f.state, 0), coalesce(l.subject_no, 0),
  pg_snapshot_xmin(pg_current_snapshot())::text::bigint, pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
  (SELECT count(*) FROM pg_snapshot_xip(pg_current_snapshot())),
  coalesce(d.what, 0), d.id, d.subject_no, d.session_no, d.more, d.kind, d.month, d.source_time, d.created_at, d.updated_at,
  d.expires_at, d.version, d.dimension, d.format, d.text, d.vector, d.metadata
FROM unnest(@refs::bytea[], @known::bigint[], @since::bigint[]) WITH ORDINALITY AS w (ref, known, since, ord)
LEFT JOIN memd.key_epochs e ON e.tenant_no = @tenant
LEFT JOIN memd.fence_states f ON f.tenant_no = @tenant AND f.user_ref = w.ref
LEFT JOIN memd.live_subjects l ON l.tenant_no = @tenant AND l.user_ref = w.ref
LEFT JOIN LATERAL (
  SELECT 1 AS what, m.memory_id AS id, m.contributor_no AS subject_no, m.contributor_session AS session_no,
    CASE WHEN m.more_contributions > 0 THEN ARRAY(
      SELECT unnest(ARRAY[c.contributor_no, c.contributor_session]) FROM memd.memory_contributions c
      WHERE c.tenant_no = m.tenant_no AND c.memory_id = m.memory_id) END AS more,
    m.kind, m.month, m.source_time, m.created_at, m.updated_at, m.expires_at, m.version, m.dimension,
    m.vector_format AS format, m.sealed_text AS text, m.sealed_vector AS vector, m.sealed_metadata AS metadata
  FROM memd.memories m
  WHERE m.tenant_no = @tenant AND m.owner_no = l.subject_no
    AND m.changed_xid >= CASE WHEN w.known = l.subject_no THEN w.since ELSE 0 END
  UNION ALL
  SELECT 2, x.memory_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
  FROM memd.deleted_memories x
  WHERE x.tenant_no = @tenant AND x.owner_no = l.subject_no AND w.known = l.subject_no AND x.changed_xid >= w.since
  UNION ALL
  SELECT 3, NULL, h.contributor_no, h.contributor_session, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
  FROM memd.hidden_contributions h
  WHERE h.tenant_no = @tenant AND h.owner_no = l.subject_no
    AND h.changed_xid >= CASE WHEN w.known = l.subject_no THEN w.since ELSE 0 END
) d ON coalesce(f.state, 3) = 3
ORDER BY w.ord, 8 DESC`

// What a row of sqlSync is. Hides come first, so that a hidden row is never
// taken in; then deletions, then rows.
const (
	whatNothing = 0
	whatRow     = 1
	whatDeleted = 2
	whatHidden  = 3
)

// snapshot is a PostgreSQL snapshot, reduced to what orders two of them: a
// later one has a larger xmax, or the same and fewer transactions in flight.
type snapshot struct {
	xmin, xmax, running int64
}

func (a snapshot) before(b snapshot) bool {
	return a.xmax < b.xmax || a.xmax == b.xmax && a.running > b.running
}

// header is what a sync says of a scope besides its rows.
type header struct {
	epoch   int64
	fence   int16
	subject memd.Number // zero: nobody is known by this ref
	snap    snapshot
}

func (h header) fenced() bool { return h.fence == 1 || h.fence == 2 }

// fetched is one memory as sync reads it.
type fetched struct {
	stored
	sourceTime, expiresAt *time.Time
	createdAt, updatedAt  time.Time
	version               int64
}

// spoken is the time that time filters look at.
func (f *fetched) spoken() time.Time {
	if f.sourceTime != nil {
		return *f.sourceTime
	}
	return f.createdAt
}

// asked is a scope to be synced: whose subject the reader knows, and since
// which transaction it wants to hear.
type asked struct {
	ref   memd.Ref
	known memd.Number
	since int64
}

// sink takes what a sync found about one scope, in the order hides, deletions,
// rows. begin comes first and says whether the rest is wanted.
type sink interface {
	begin(h header) (wanted bool, err error)
	hide(c memd.Contribution) error
	gone(id uuid.UUID) error
	row(f *fetched) error
}

// sync reads what changed in the scopes and gives it to their sinks.
func sync(ctx context.Context, db pg.DB, tenant memd.TenantNo, scopes []asked, sinks []sink) error {
	refs, known, since := make([][]byte, len(scopes)), make([]memd.Number, len(scopes)), make([]int64, len(scopes))
	for i := range scopes {
		refs[i], known[i], since[i] = scopes[i].ref[:], scopes[i].known, scopes[i].since
	}
	rows, err := db.Query(ctx, sqlSync, pgx.StrictNamedArgs{"tenant": tenant, "refs": refs, "known": known, "since": since})
	if err != nil {
		return fmt.Errorf("reading a scope: %w", err)
	}
	defer rows.Close()
	begun := make([]bool, len(scopes))
	wanted := make([]bool, len(scopes))
	for rows.Next() {
		var ord int
		var what int
		var h header
		d, err := scanSync(rows, &ord, &what, &h)
		if err != nil {
			return fmt.Errorf("reading a scope: %w", err)
		}
		i := ord - 1
		if !begun[i] {
			begun[i] = true
			if wanted[i], err = sinks[i].begin(h); err != nil {
				return err
			}
		}
		if !wanted[i] {
			continue
		}
		d.owner = h.subject
		switch what {
		case whatHidden:
			err = sinks[i].hide(d.contributions[0])
		case whatDeleted:
			err = sinks[i].gone(d.id)
		case whatRow:
			err = sinks[i].row(d)
		}
		if err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("reading a scope: %w", err)
	}
	return nil
}

func scanSync(rows pgx.Rows, ord, what *int, h *header) (*fetched, error) {
	var (
		f                          fetched
		id                         *uuid.UUID
		subject, session           *memd.Number
		more                       []int64
		kind, dimension, format    *int16
		month                      *memd.Month
		created, updated           *time.Time
		version                    *int64
		text, vector, metadataBlob []byte
	)
	err := rows.Scan(ord, &h.epoch, &h.fence, &h.subject, &h.snap.xmin, &h.snap.xmax, &h.snap.running,
		what, &id, &subject, &session, &more, &kind, &month, &f.sourceTime, &created, &updated,
		&f.expiresAt, &version, &dimension, &format, &text, &vector, &metadataBlob)
	if err != nil {
		return nil, err
	}
	if id != nil {
		f.id = *id
	}
	if subject != nil && session != nil {
		f.contributions = contributionsOf(memd.Contribution{Subject: *subject, Session: *session}, more)
	}
	if *what == whatRow {
		f.kind, f.month, f.dimension, f.format = Kind(*kind), *month, int(*dimension), VectorFormat(*format)
		f.createdAt, f.updatedAt, f.version = *created, *updated, *version
		f.text, f.vector, f.metadata = text, vector, metadataBlob
	}
	return &f, nil
}
