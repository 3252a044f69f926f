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
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/shred"
)

// What a reader may see: the scope's own rows, no fence up, nothing that a
// hidden contributor had a part in, nothing expired.
const sqlVisible = `
FROM memd.live_subjects l
JOIN memd.memories m ON m.tenant_no = l.tenant_no AND m.owner_no = l.subject_no
LEFT JOIN memd.fence_states f ON f.tenant_no = l.tenant_no AND f.user_ref = l.user_ref
WHERE l.tenant_no = @tenant AND l.user_ref = @ref AND coalesce(f.state, 3) = 3
  AND (m.expires_at IS NULL OR m.expires_at > @now)` + sqlNotHidden

// Nothing of a contributor who is being erased, or was.
const sqlNotHidden = `
  AND NOT EXISTS (
    SELECT FROM memd.hidden_contributions h
    WHERE h.tenant_no = m.tenant_no AND h.owner_no = m.owner_no
      AND ((h.contributor_no = m.contributor_no AND h.contributor_session IN (0, m.contributor_session))
        OR (m.more_contributions > 0 AND EXISTS (
          SELECT FROM memd.memory_contributions c
          WHERE c.tenant_no = m.tenant_no AND c.memory_id = m.memory_id
            AND c.contributor_no = h.contributor_no AND h.contributor_session IN (0, c.contributor_session)))))`

const sqlMemoryColumns = `
SELECT m.memory_id, m.owner_no, m.contributor_no, m.contributor_session,
  CASE WHEN m.more_contributions > 0 THEN ARRAY(
    SELECT unnest(ARRAY[c.contributor_no, c.contributor_session]) FROM memd.memory_contributions c
    WHERE c.tenant_no = m.tenant_no AND c.memory_id = m.memory_id) END,
  m.kind, m.month, m.source_time, m.created_at, m.updated_at, m.expires_at, m.version,
  m.space, m.dimension, m.vector_format, m.sealed_text, m.sealed_vector, m.sealed_metadata`

const sqlGet = sqlMemoryColumns + sqlVisible + ` AND m.memory_id = @id`

// scanMemory reads a row of sqlMemoryColumns.
func scanMemory(row pgx.CollectableRow) (*fetched, error) {
	var f fetched
	var first memd.Contribution
	var more []int64
	var sourceTime, expiresAt *time.Time
	err := row.Scan(f.columns(&first, &more, &sourceTime, &expiresAt)...)
	f.took(first, more, sourceTime, expiresAt)
	return &f, err
}

// columns are where sqlMemoryColumns goes, and took takes over those that are not
// stored as they are kept.
func (f *fetched) columns(first *memd.Contribution, more *[]int64, sourceTime, expiresAt **time.Time) []any {
	return []any{
		&f.id, &f.owner, &first.Subject, &first.Session, more, &f.kind, &f.month,
		sourceTime, &f.createdAt, &f.updatedAt, expiresAt, &f.version,
		&f.space, &f.dimension, &f.format, &f.text, &f.vector, &f.metadata,
	}
}

func (f *fetched) took(first memd.Contribution, more []int64, sourceTime, expiresAt *time.Time) {
	f.contributions = contributionsOf(first, more)
	f.sourceTime, f.expiresAt = timeOf(sourceTime), timeOf(expiresAt)
}

// Get returns one memory of a scope, its vector too if asked for. A memory of
// another scope or tenant, an expired one, and one that somebody being erased
// contributed to are memd.ErrNotFound all alike.
func (s *Service) Get(ctx context.Context, t Tenant, scope memd.Scope, id uuid.UUID, vector bool) (Memory, error) {
	if err := validateScope(scope); err != nil {
		return Memory{}, err
	}
	var out Memory
	err := s.again(ctx, t, func(k *shred.Keys) ([]memd.Ref, error) {
		return nil, s.Pool.With(ctx, func(db pg.DB) error {
			f, err := get(ctx, db, k, scope, id, s.Clock.Now())
			if err != nil {
				return err
			}
			names, err := s.Directory.SessionIDs(ctx, db, k, firstSessions(f.contributions))
			if err != nil {
				return err
			}
			out, err = s.opened(k, scope, f, names, vector)
			return shreddedIsGone(err)
		})
	})
	return out, err
}

func get(ctx context.Context, db pg.DB, k *shred.Keys, scope memd.Scope, id uuid.UUID, now time.Time) (*fetched, error) {
	ref := provenance.RefOf(k, scope)
	rows, err := db.Query(ctx, sqlGet, pg.Args{"tenant": k.Tenant(), "ref": ref[:], "id": id, "now": now})
	if err != nil {
		return nil, fmt.Errorf("reading a memory: %w", err)
	}
	f, err := pgx.CollectExactlyOneRow(rows, scanMemory)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, memd.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("reading a memory: %w", err)
	}
	return f, nil
}

// shreddedIsGone turns a key that was shredded between the read and the
// opening into what the reader would have met a moment later.
func shreddedIsGone(err error) error {
	if errors.Is(err, memd.ErrShredded) {
		return memd.ErrNotFound
	}
	return err
}
