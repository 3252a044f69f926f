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
    WHERE c.tenant_no = m.tenant_no AND c.memory_id = m.memory_id) END, l.app
FROM memd.memories m JOIN memd.live_subjects l ON l.tenant_no = m.tenant_no AND l.subject_no = m.owner_no
WHERE m.tenant_no = @tenant AND m.memory_id = ANY (@ids)` + sqlNotHidden

// The earliest month in which a session is known to have said something.
const sqlSessionMonths = `
SELECT w.subject_no, w.session_no, (
  SELECT min(m.month) FROM memd.memories m
  WHERE m.tenant_no = @tenant AND m.contributor_no = w.subject_no AND m.contributor_session = w.session_no)
FROM (SELECT DISTINCT * FROM unnest(@subjects::bigint[], @sessions::bigint[])) AS w (subject_no, session_no)`

// lineage is one direct source of a row, as stored: a memory or a session.
type lineage struct {
	memory  uuid.UUID
	version int64
	session memd.Contribution
}

// sourceRow is what is read of a memory that others are derived from.
type sourceRow struct {
	app           string
	version       int64
	month         memd.Month
	contributions []memd.Contribution
}

// sourceRows is what is known of the sources that a batch of rows names.
type sourceRows struct {
	memories map[uuid.UUID]sourceRow
	months   map[memd.Contribution]memd.Month // of sessions; some have none
}

// readSources reads what rows name as sources. found resolves p's wants. A
// memory that is not there, expired, hidden or another tenant's is left out.
func readSources(ctx context.Context, db pg.DB, tenant memd.TenantNo, rows []Row, p *planning, found []memd.Contribution, now time.Time) (sourceRows, error) {
	var ids []uuid.UUID
	var sessions []memd.Contribution
	for i, r := range rows {
		for _, s := range r.Sources {
			if s.MemoryID != uuid.Nil {
				ids = append(ids, s.MemoryID)
			}
		}
		for _, at := range p.rows[i].sessions {
			sessions = append(sessions, found[at])
		}
	}
	memories, err := readSourceMemories(ctx, db, tenant, ids, now)
	if err != nil {
		return sourceRows{}, err
	}
	months, err := readSessionMonths(ctx, db, tenant, sessions)
	return sourceRows{memories, months}, err
}

func readSessionMonths(ctx context.Context, db pg.DB, tenant memd.TenantNo, sessions []memd.Contribution) (map[memd.Contribution]memd.Month, error) {
	if len(sessions) == 0 {
		return nil, nil
	}
	rs, err := db.Query(ctx, sqlSessionMonths, Target(sessions).args(tenant))
	if err != nil {
		return nil, fmt.Errorf("reading sessions' months: %w", err)
	}
	out := map[memd.Contribution]memd.Month{}
	var c memd.Contribution
	var month *memd.Month
	_, err = pgx.ForEachRow(rs, []any{&c.Subject, &c.Session, &month}, func() error {
		if month != nil {
			out[c] = *month
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading sessions' months: %w", err)
	}
	return out, nil
}

func readSourceMemories(ctx context.Context, db pg.DB, tenant memd.TenantNo, ids []uuid.UUID, now time.Time) (map[uuid.UUID]sourceRow, error) {
	out := map[uuid.UUID]sourceRow{}
	if len(ids) == 0 {
		return out, nil
	}
	rs, err := db.Query(ctx, sqlReadSources, pg.Args{"tenant": tenant, "ids": ids})
	if err != nil {
		return nil, fmt.Errorf("reading sources: %w", err)
	}
	var id uuid.UUID
	var r sourceRow
	var first memd.Contribution
	var expires *time.Time
	var more []int64
	_, err = pgx.ForEachRow(rs, []any{&id, &r.version, &r.month, &first.Subject, &first.Session, &expires, &more, &r.app}, func() error {
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
	month         memd.Month // the earliest; 0 when none is known
}

func (d *drawn) since(m memd.Month) {
	if d.month == 0 || m < d.month {
		d.month = m
	}
}

// draw flattens the sources of a row of an app; a memory of another app is as
// good as gone. sessions are the positions, in found, of those
// sources that are sessions, in order.
func (rows sourceRows) draw(app string, sources []Source, sessions []int, found []memd.Contribution) (drawn, error) {
	var d drawn
	next := 0
	for i, s := range sources {
		if s.MemoryID == uuid.Nil {
			c := found[sessions[next]]
			next++
			d.lineage = append(d.lineage, lineage{session: c})
			d.contributions = append(d.contributions, c)
			if m, ok := rows.months[c]; ok {
				d.since(m)
			}
			continue
		}
		r, ok := rows.memories[s.MemoryID]
		if !ok || r.app != app || s.Version != 0 && s.Version != r.version {
			return d, fmt.Errorf("source %d: %w", i, memd.ErrSourceGone)
		}
		d.lineage = append(d.lineage, lineage{memory: s.MemoryID, version: r.version})
		d.contributions = append(d.contributions, r.contributions...)
		d.since(r.month)
	}
	return d, nil
}
