package memory

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

const sqlEnter = `SELECT memd.enter(@tenant, @subjects::bigint[])`

const sqlCheckSources = `SELECT memd.check_sources(@tenant, @ids::uuid[], @versions::bigint[])`

// Contributions and sources go with rows that this transaction made.
const sqlInsertContributions = `
INSERT INTO memd.memory_contributions (tenant_no, memory_id, contributor_no, contributor_session)
SELECT @tenant, c.memory_id, c.contributor_no, c.contributor_session
FROM unnest(@ids::uuid[], @contributors::bigint[], @sessions::bigint[]) AS c (memory_id, contributor_no, contributor_session)
JOIN memd.memories m ON m.tenant_no = @tenant AND m.memory_id = c.memory_id
WHERE m.changed_xid = pg_current_xact_id()::text::bigint
ON CONFLICT DO NOTHING`

const sqlInsertSources = `
INSERT INTO memd.memory_sources (tenant_no, memory_id, ordinal, source_memory, source_subject, source_session)
SELECT @tenant, c.memory_id, c.ordinal + coalesce((
    SELECT max(o.ordinal) FROM memd.memory_sources o WHERE o.tenant_no = @tenant AND o.memory_id = c.memory_id), 0),
  c.source_memory, c.source_subject, c.source_session
FROM unnest(@ids::uuid[], @ordinals::smallint[], @memories::uuid[], @subjects::bigint[], @sessions::bigint[])
  AS c (memory_id, ordinal, source_memory, source_subject, source_session)
JOIN memd.memories m ON m.tenant_no = @tenant AND m.memory_id = c.memory_id
WHERE m.changed_xid = pg_current_xact_id()::text::bigint`

const sqlOutcome = `
SELECT memory_id, version, changed_xid = pg_current_xact_id()::text::bigint, content_digest
FROM memd.memories WHERE tenant_no = @tenant AND memory_id = ANY (@ids)`

// write stores drafts in one round trip, which is one transaction: enter (the
// locks, before any row is touched), check the sources, insert.
//
// Rows that are new, and alone, need no enter: nobody can wait for them, so the
// guard's own locks do.
func write(ctx context.Context, db pg.DB, tenant memd.TenantNo, drafts []draft, now time.Time) ([]Added, error) {
	subjects := map[memd.Number]bool{}
	events, lineage := false, false
	for i := range drafts {
		d := &drafts[i]
		subjects[d.owner] = true
		for _, c := range d.contributions {
			subjects[c.Subject] = true
		}
		events = events || d.event
		lineage = lineage || len(d.contributions) > 1 || len(d.sources) > 0
	}
	if len(subjects) > memd.MaxSubjects {
		return nil, invalid("rows", "touch more than %d users and shared scopes; split the batch", memd.MaxSubjects)
	}
	out := make([]Added, len(drafts))
	for i := range drafts {
		out[i] = Added{ID: drafts[i].id, Version: 1, Status: StatusCreated}
	}
	if !events && !lineage {
		return out, insert(ctx, db, tenant, drafts, now)
	}
	var b pgx.Batch
	queueEnter(&b, tenant, subjects)
	queueSources(&b, tenant, drafts)
	b.Queue(sqlUpsertMemories, insertArgs(tenant, drafts, now))
	queueLineage(&b, tenant, drafts)
	if events {
		queueOutcome(&b, tenant, drafts, out)
	}
	if err := db.SendBatch(ctx, &b).Close(); err != nil {
		return nil, fmt.Errorf("writing memories: %w", err)
	}
	return out, nil
}

func queueEnter(b *pgx.Batch, tenant memd.TenantNo, subjects map[memd.Number]bool) {
	list := make([]memd.Number, 0, len(subjects))
	for s := range subjects {
		list = append(list, s)
	}
	b.Queue(sqlEnter, pg.Args{"tenant": tenant, "subjects": list})
}

// queueSources has the sources held still until the derived rows are in.
func queueSources(b *pgx.Batch, tenant memd.TenantNo, drafts []draft) {
	versions := map[uuid.UUID]int64{}
	for i := range drafts {
		for _, l := range drafts[i].sources {
			if l.memory != uuid.Nil {
				versions[l.memory] = l.version
			}
		}
	}
	if len(versions) == 0 {
		return
	}
	ids, list := make([]uuid.UUID, 0, len(versions)), make([]int64, 0, len(versions))
	for id, v := range versions {
		ids, list = append(ids, id), append(list, v)
	}
	b.Queue(sqlCheckSources, pg.Args{"tenant": tenant, "ids": ids, "versions": list})
}

// queueLineage stores the contributions after the first and the direct sources.
func queueLineage(b *pgx.Batch, tenant memd.TenantNo, drafts []draft) {
	var ids, from []uuid.UUID
	var contributors, sessions []memd.Number
	var ordinals []int16
	var subject, session []*memd.Number
	var sources []*uuid.UUID
	for i := range drafts {
		d := &drafts[i]
		for _, c := range d.contributions[1:] {
			ids, contributors, sessions = append(ids, d.id), append(contributors, c.Subject), append(sessions, c.Session)
		}
		for n, l := range d.sources {
			from, ordinals = append(from, d.id), append(ordinals, int16(n+1))
			if l.memory != uuid.Nil {
				sources, subject, session = append(sources, &l.memory), append(subject, nil), append(session, nil)
			} else {
				sources, subject, session = append(sources, nil), append(subject, &l.session.Subject), append(session, &l.session.Session)
			}
		}
	}
	if len(ids) > 0 {
		b.Queue(sqlInsertContributions, pg.Args{
			"tenant": tenant, "ids": ids, "contributors": contributors, "sessions": sessions,
		})
	}
	if len(from) > 0 {
		b.Queue(sqlInsertSources, pg.Args{
			"tenant": tenant, "ids": from, "ordinals": ordinals, "memories": sources, "subjects": subject, "sessions": session,
		})
	}
}

// queueOutcome asks what became of the rows that may have been there already.
func queueOutcome(b *pgx.Batch, tenant memd.TenantNo, drafts []draft, out []Added) {
	at := map[uuid.UUID]int{}
	var ids []uuid.UUID
	for i := range drafts {
		if drafts[i].event {
			ids = append(ids, drafts[i].id)
			at[drafts[i].id] = i
			out[i] = Added{ID: drafts[i].id, Status: StatusDeleted}
		}
	}
	b.Queue(sqlOutcome, pg.Args{"tenant": tenant, "ids": ids}).Query(func(rows pgx.Rows) error {
		var id uuid.UUID
		var version int64
		var changed bool
		var digest []byte
		_, err := pgx.ForEachRow(rows, []any{&id, &version, &changed, &digest}, func() error {
			i := at[id]
			out[i].Version = version
			switch {
			case changed && version == 1:
				out[i].Status = StatusCreated
			case changed:
				out[i].Status = StatusUpdated
			case bytes.Equal(digest, drafts[i].digest):
				out[i].Status = StatusUnchanged
			default:
				out[i].Status = StatusKept
			}
			return nil
		})
		return err
	})
}
