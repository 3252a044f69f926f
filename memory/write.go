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

// A derived row that is there already stays: only Update changes it, because
// its contributions may only grow.
const sqlInsertMemories = `
INSERT INTO memd.memories AS m (tenant_no, memory_id, owner_no, kind, month, contributor_no, contributor_session,
  more_contributions, source_time, created_at, updated_at, expires_at, dimension, vector_format,
  content_digest, sealed_text, sealed_vector, sealed_metadata)
SELECT @tenant, r.memory_id, r.owner_no, r.kind, r.month, r.contributor_no, r.contributor_session,
  r.more, r.source_time, @now, @now, r.expires_at, r.dimension, r.format,
  r.digest, r.text, r.vector, r.metadata
FROM unnest(@ids::uuid[], @owners::bigint[], @kinds::smallint[], @months::int[], @contributors::bigint[],
  @sessions::bigint[], @more::smallint[], @source_times::timestamptz[], @expiries::timestamptz[],
  @dimensions::smallint[], @formats::smallint[], @digests::bytea[], @texts::bytea[], @vectors::bytea[], @metadata::bytea[])
  AS r (memory_id, owner_no, kind, month, contributor_no, contributor_session, more, source_time, expires_at,
        dimension, format, digest, text, vector, metadata)
WHERE NOT EXISTS (SELECT FROM memd.dead_memories d WHERE d.tenant_no = @tenant AND d.ref = uuid_send(r.memory_id))
ORDER BY r.memory_id
ON CONFLICT (tenant_no, memory_id) DO UPDATE SET
  kind = excluded.kind, month = excluded.month, source_time = excluded.source_time, updated_at = excluded.updated_at,
  expires_at = excluded.expires_at, dimension = excluded.dimension, vector_format = excluded.vector_format,
  content_digest = excluded.content_digest, sealed_text = excluded.sealed_text,
  sealed_vector = excluded.sealed_vector, sealed_metadata = excluded.sealed_metadata
WHERE NOT m.edited AND m.content_digest <> excluded.content_digest AND excluded.month <= m.month
  AND m.more_contributions = 0 AND excluded.more_contributions = 0
  AND m.owner_no = excluded.owner_no
  AND m.contributor_no = excluded.contributor_no AND m.contributor_session = excluded.contributor_session`

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
func write(ctx context.Context, db pg.DB, tenant memd.TenantNo, drafts []draft, now time.Time) ([]Added, error) {
	subjects := map[memd.Number]bool{}
	events := false
	for i := range drafts {
		subjects[drafts[i].owner] = true
		for _, c := range drafts[i].contributions {
			subjects[c.Subject] = true
		}
		events = events || drafts[i].event
	}
	if len(subjects) > memd.MaxSubjects {
		return nil, invalid("rows", "touch more than %d users and shared scopes; split the batch", memd.MaxSubjects)
	}
	var b pgx.Batch
	queueEnter(&b, tenant, subjects)
	queueSources(&b, tenant, drafts)
	b.Queue(sqlInsertMemories, insertArgs(tenant, drafts, now))
	queueLineage(&b, tenant, drafts)

	out := make([]Added, len(drafts))
	for i := range drafts {
		out[i] = Added{ID: drafts[i].id, Version: 1, Status: StatusCreated}
	}
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

func insertArgs(tenant memd.TenantNo, drafts []draft, now time.Time) pg.Args {
	n := len(drafts)
	var (
		ids                               = make([]uuid.UUID, n)
		owners, contributors, sessions    = make([]memd.Number, n), make([]memd.Number, n), make([]memd.Number, n)
		kinds, more, dimensions, formats  = make([]int16, n), make([]int16, n), make([]int16, n), make([]int16, n)
		months                            = make([]memd.Month, n)
		sourceTimes, expiries             = make([]*time.Time, n), make([]*time.Time, n)
		digests, texts, vectors, metadata = make([][]byte, n), make([][]byte, n), make([][]byte, n), make([][]byte, n)
	)
	for i := range drafts {
		d := &drafts[i]
		ids[i], owners[i], kinds[i], months[i] = d.id, d.owner, int16(d.kind), d.month
		contributors[i], sessions[i] = d.contributions[0].Subject, d.contributions[0].Session
		more[i] = int16(len(d.contributions) - 1)
		sourceTimes[i], expiries[i] = optional(d.sourceTime), optional(d.expiresAt)
		dimensions[i], formats[i] = int16(d.dimension), int16(d.format)
		digests[i], texts[i], vectors[i], metadata[i] = d.digest, d.text, d.vector, d.metadata
	}
	return pg.Args{
		"tenant": tenant, "now": now, "ids": ids, "owners": owners, "kinds": kinds, "months": months,
		"contributors": contributors, "sessions": sessions, "more": more, "source_times": sourceTimes,
		"expiries": expiries, "dimensions": dimensions, "formats": formats, "digests": digests,
		"texts": texts, "vectors": vectors, "metadata": metadata,
	}
}
