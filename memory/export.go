package memory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
)

// ExportPage is how many rows ExportAfter returns at most.
const ExportPage = 128

// What may be handed out: a scope's own rows, or with alone what a user alone said
// in scopes of others. Nobody who is being erased had a part in it, and it has
// neither expired nor is it of a month that has, or is to.
const sqlExport = sqlMemoryColumns + `,
  CASE WHEN m.kind > 1 THEN ARRAY(SELECT s.source_memory FROM memd.memory_sources s
    WHERE s.tenant_no = m.tenant_no AND s.memory_id = m.memory_id AND s.source_memory IS NOT NULL ORDER BY s.ordinal) END,
  CASE WHEN m.kind > 1 THEN ARRAY(SELECT unnest(ARRAY[s.source_subject, s.source_session]) FROM memd.memory_sources s
    WHERE s.tenant_no = m.tenant_no AND s.memory_id = m.memory_id AND s.source_session IS NOT NULL ORDER BY s.ordinal) END
FROM memd.memories m
WHERE m.tenant_no = @tenant AND m.month > @cutoff AND (m.expires_at IS NULL OR m.expires_at > @now)` + sqlNotHidden + `
  AND NOT EXISTS (SELECT FROM memd.expired_months x WHERE x.tenant_no = m.tenant_no AND x.class = 1 AND x.month = m.month)
  AND EXISTS (SELECT FROM memd.living_contributions l
    WHERE l.tenant_no = m.tenant_no AND l.subject_no = m.contributor_no AND l.session_no = m.contributor_session)
  AND (m.more_contributions = 0 OR NOT EXISTS (SELECT FROM memd.memory_contributions c
    WHERE c.tenant_no = m.tenant_no AND c.memory_id = m.memory_id AND NOT EXISTS (SELECT FROM memd.living_contributions l
      WHERE l.tenant_no = c.tenant_no AND l.subject_no = c.contributor_no AND l.session_no = c.contributor_session)))`

const sqlExportOwn = sqlExport + `
  AND m.owner_no = @subject AND (m.created_at, m.memory_id) > (@after_time::timestamptz, @after_id::uuid)
ORDER BY m.created_at, m.memory_id LIMIT @limit`

const sqlExportAlone = sqlExport + `
  AND m.contributor_no = @subject AND m.owner_no <> @subject AND m.more_contributions = 0
  AND (m.created_at, m.memory_id) > (@after_time::timestamptz, @after_id::uuid)
ORDER BY m.created_at, m.memory_id LIMIT @limit`

// Exported is a memory with where it is from.
type Exported struct {
	// Memory has its vector, and neither Scope nor SessionIDs.
	Memory
	Owner memd.Number
	// From is whose words are in it, from which sessions.
	From []memd.Contribution
	// DerivedFrom is what it was made from directly.
	DerivedFrom []ExportedSource
}

// ExportedSource is a direct source: a memory, which may be gone since, or a session.
type ExportedSource struct {
	Memory  uuid.UUID
	Session memd.Contribution
}

// ExportAfter returns up to ExportPage memories of a subject's scope that may be
// handed out, in the order in which they were added, from behind the last of
// before (nil: the beginning); or, with alone, memories in the scopes of others
// that hold the subject's words and nobody else's. What is being erased, what has
// expired, and what is of months up to cutoff is left out. more says that there
// may be others; unreadable counts rows that do not verify.
func ExportAfter(ctx context.Context, db pg.DB, k *shred.Keys, subject memd.Number, alone bool, cutoff memd.Month, now time.Time, before *Exported) (
	page []Exported, more bool, unreadable int64, err error,
) {
	after := cursor{created: time.Unix(0, 0).UTC()}
	if before != nil {
		after = cursor{before.CreatedAt, before.ID}
	}
	sql := sqlExportOwn
	if alone {
		sql = sqlExportAlone
	}
	for {
		rows, err := db.Query(ctx, sql, pg.Args{
			"tenant": k.Tenant(), "subject": subject, "cutoff": cutoff, "now": now,
			"after_time": after.created, "after_id": after.id, "limit": ExportPage,
		})
		if err != nil {
			return nil, false, unreadable, fmt.Errorf("handing out memories: %w", err)
		}
		found, err := pgx.CollectRows(rows, scanExported)
		if err != nil {
			return nil, false, unreadable, fmt.Errorf("handing out memories: %w", err)
		}
		for _, f := range found {
			after = cursor{f.createdAt, f.id}
			c, err := f.open(k, true)
			switch {
			case errors.Is(err, memd.ErrCorrupt):
				unreadable++
				continue
			case errors.Is(err, memd.ErrShredded):
				continue // It is about to fall.
			case err != nil:
				return nil, false, unreadable, fmt.Errorf("opening a memory: %w", err)
			}
			page = append(page, f.exported(c))
		}
		if len(page) > 0 || len(found) < ExportPage {
			return page, len(found) == ExportPage, unreadable, nil
		}
	}
}

// lineaged is a row that was read with its direct sources.
type lineaged struct {
	fetched
	sources []ExportedSource
}

func scanExported(row pgx.CollectableRow) (lineaged, error) {
	var l lineaged
	var first memd.Contribution
	var more, sessions []int64
	var memories []uuid.UUID
	var sourceTime, expiresAt *time.Time
	err := row.Scan(append(l.columns(&first, &more, &sourceTime, &expiresAt), &memories, &sessions)...)
	l.took(first, more, sourceTime, expiresAt)
	for _, id := range memories {
		l.sources = append(l.sources, ExportedSource{Memory: id})
	}
	for _, c := range contributionPairs(sessions) {
		l.sources = append(l.sources, ExportedSource{Session: c})
	}
	return l, err
}

func (l *lineaged) exported(c content) Exported {
	e := Exported{Owner: l.owner, From: l.contributions, DerivedFrom: l.sources, Memory: Memory{
		ID: l.id, Kind: l.kind, Text: c.text, Metadata: c.metadata, Version: l.version, Contributions: len(l.contributions),
		CreatedAt: l.createdAt.UTC(), UpdatedAt: l.updatedAt.UTC(), SourceTime: l.sourceTime, ExpiresAt: l.expiresAt,
	}}
	if c.unit != nil {
		e.Vector = scaled(c.unit, c.norm)
	}
	return e
}
