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

const sqlReadSources = `
SELECT m.memory_id, m.version, m.month, m.contributor_no, m.contributor_session, m.expires_at,
  CASE WHEN m.more_contributions > 0 THEN ARRAY(
    SELECT unnest(ARRAY[c.contributor_no, c.contributor_session]) FROM memd.memory_contributions c
    WHERE c.tenant_no = m.tenant_no AND c.memory_id = m.memory_id) END
FROM memd.memories m WHERE m.tenant_no = @tenant AND m.memory_id = ANY (@ids)`

// lineage is one direct source of a row, as stored: a memory or a session.
type lineage struct {
	memory  uuid.UUID
	version int64
	session memd.Contribution
}

// sourceRow is what is read of a memory that others are derived from.
type sourceRow struct {
	version       int64
	month         memd.Month
	contributions []memd.Contribution
}

type sourceRows map[uuid.UUID]sourceRow

// readSources reads the memories that rows name as sources. A source that is
// not there, expired, or another tenant's is left out.
func readSources(ctx context.Context, db pg.DB, tenant memd.TenantNo, rows []Row, now time.Time) (sourceRows, error) {
	var ids []uuid.UUID
	for _, r := range rows {
		for _, s := range r.Sources {
			if s.MemoryID != uuid.Nil {
				ids = append(ids, s.MemoryID)
			}
		}
	}
	return readSourceRows(ctx, db, tenant, ids, now)
}

func readSourceRows(ctx context.Context, db pg.DB, tenant memd.TenantNo, ids []uuid.UUID, now time.Time) (sourceRows, error) {
	out := sourceRows{}
	if len(ids) == 0 {
		return out, nil
	}
	rs, err := db.Query(ctx, sqlReadSources, pgx.StrictNamedArgs{"tenant": tenant, "ids": ids})
	if err != nil {
		return nil, fmt.Errorf("reading sources: %w", err)
	}
	var id uuid.UUID
	var r sourceRow
	var first memd.Contribution
	var expires *time.Time
	var more []int64
	_, err = pgx.ForEachRow(rs, []any{&id, &r.version, &r.month, &first.Subject, &first.Session, &expires, &more}, func() error {
		if expires == nil || expires.After(now) {
			r.contributions = contributionsOf(first, more)
			out[id] = r
		}
		more = nil
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading sources: %w", err)
	}
	return out, nil
}

// drawn is what a row takes over from its sources.
type drawn struct {
	lineage       []lineage
	contributions []memd.Contribution
	month         memd.Month // the earliest; 0 without memories among the sources
}

// draw flattens sources. sessions are the positions, in found, of those
// sources that are sessions, in order.
func (rows sourceRows) draw(sources []Source, sessions []int, found []memd.Contribution) (drawn, error) {
	var d drawn
	next := 0
	for i, s := range sources {
		if s.MemoryID == uuid.Nil {
			c := found[sessions[next]]
			next++
			d.lineage = append(d.lineage, lineage{session: c})
			d.contributions = append(d.contributions, c)
			continue
		}
		r, ok := rows[s.MemoryID]
		if !ok || s.Version != 0 && s.Version != r.version {
			return d, fmt.Errorf("source %d: %w", i, memd.ErrSourceGone)
		}
		d.lineage = append(d.lineage, lineage{memory: s.MemoryID, version: r.version})
		d.contributions = append(d.contributions, r.contributions...)
		if d.month == 0 || r.month < d.month {
			d.month = r.month
		}
	}
	return d, nil
}
