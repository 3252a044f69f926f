package memory

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// sqlInsertMemory stores one row whose id is random, so that it cannot be there
// yet: half of what sqlUpsertMemories costs.
const sqlInsertMemory = `
INSERT INTO memd.memories (tenant_no, memory_id, owner_no, kind, month, contributor_no, contributor_session,
  source_time, created_at, updated_at, expires_at, space, dimension, vector_format,
  content_digest, sealed_text, sealed_vector, sealed_metadata, sealed_code)
VALUES (@tenant, @id, @owner, @kind, @month, @contributor, @session, @source_time, @now, @now, @expiry,
  @space, @dimension, @format, @digest, @text, @vector, @metadata, @code)`

// sqlSelectRows turns arrays into rows.
const sqlSelectRows = `
INSERT INTO memd.memories AS m (tenant_no, memory_id, owner_no, kind, month, contributor_no, contributor_session,
  more_contributions, source_time, created_at, updated_at, expires_at, space, dimension, vector_format,
  content_digest, sealed_text, sealed_vector, sealed_metadata, sealed_code)
SELECT @tenant, r.memory_id, r.owner_no, r.kind, r.month, r.contributor_no, r.contributor_session,
  r.more, r.source_time, @now, @now, r.expires_at, r.space, r.dimension, r.format,
  r.digest, r.text, r.vector, r.metadata, r.code
FROM unnest(@ids::uuid[], @owners::bigint[], @kinds::smallint[], @months::int[], @contributors::bigint[],
  @sessions::bigint[], @more::smallint[], @source_times::timestamptz[], @expiries::timestamptz[],
  @spaces::smallint[], @dimensions::smallint[], @formats::smallint[], @digests::bytea[], @texts::bytea[], @vectors::bytea[], @metadata::bytea[], @codes::bytea[])
  AS r (memory_id, owner_no, kind, month, contributor_no, contributor_session, more, source_time, expires_at,
        space, dimension, format, digest, text, vector, metadata, code)
`

// sqlInsertMemories stores many such rows.
const sqlInsertMemories = sqlSelectRows + `ORDER BY r.memory_id`

// A derived row that is there already stays: only Update changes it, because
// its contributions may only grow.
const sqlUpsertMemories = sqlSelectRows + `
WHERE NOT EXISTS (SELECT FROM memd.dead_memories d WHERE d.tenant_no = @tenant AND d.ref = uuid_send(r.memory_id))
ORDER BY r.memory_id
ON CONFLICT (tenant_no, memory_id) DO UPDATE SET
  kind = excluded.kind, month = excluded.month, source_time = excluded.source_time, updated_at = excluded.updated_at,
  expires_at = excluded.expires_at, space = excluded.space, dimension = excluded.dimension, vector_format = excluded.vector_format,
  content_digest = excluded.content_digest, sealed_text = excluded.sealed_text,
  sealed_vector = excluded.sealed_vector, sealed_metadata = excluded.sealed_metadata, sealed_code = excluded.sealed_code
WHERE NOT m.edited AND m.content_digest <> excluded.content_digest AND excluded.month <= m.month
  AND m.more_contributions = 0 AND excluded.more_contributions = 0
  AND m.owner_no = excluded.owner_no
  AND m.contributor_no = excluded.contributor_no AND m.contributor_session = excluded.contributor_session`

// insert stores rows without events and lineage.
func insert(ctx context.Context, db pg.DB, tenant memd.TenantNo, drafts []draft, now time.Time) error {
	sql, args := sqlInsertMemories, pg.Args(nil)
	if len(drafts) == 1 {
		d := &drafts[0]
		sql, args = sqlInsertMemory, pg.Args{
			"tenant": tenant, "now": now, "id": d.id, "owner": d.owner, "kind": int16(d.kind), "month": d.month,
			"contributor": d.contributions[0].Subject, "session": d.contributions[0].Session,
			"source_time": optional(d.sourceTime), "expiry": optional(d.expiresAt), "space": max(1, d.space), "dimension": int16(d.dimension),
			"format": int16(d.format), "digest": d.digest, "text": d.text, "vector": d.vector, "metadata": d.metadata,
			"code": d.code,
		}
	} else {
		args = insertArgs(tenant, drafts, now)
	}
	if _, err := db.Exec(ctx, sql, args); err != nil {
		return fmt.Errorf("writing memories: %w", err)
	}
	return nil
}

func insertArgs(tenant memd.TenantNo, drafts []draft, now time.Time) pg.Args {
	n := len(drafts)
	var (
		ids                                      = make([]uuid.UUID, n)
		owners, contributors, sessions           = make([]memd.Number, n), make([]memd.Number, n), make([]memd.Number, n)
		kinds, more, spaces, dimensions, formats = make([]int16, n), make([]int16, n), make([]int16, n), make([]int16, n), make([]int16, n)
		months                                   = make([]memd.Month, n)
		sourceTimes, expiries                    = make([]*time.Time, n), make([]*time.Time, n)
		digests, texts, vectors, metadata, codes = make([][]byte, n), make([][]byte, n), make([][]byte, n), make([][]byte, n), make([][]byte, n)
	)
	for i := range drafts {
		d := &drafts[i]
		ids[i], owners[i], kinds[i], months[i] = d.id, d.owner, int16(d.kind), d.month
		contributors[i], sessions[i] = d.contributions[0].Subject, d.contributions[0].Session
		more[i] = int16(len(d.contributions) - 1)
		sourceTimes[i], expiries[i] = optional(d.sourceTime), optional(d.expiresAt)
		spaces[i], dimensions[i], formats[i] = max(1, d.space), int16(d.dimension), int16(d.format)
		digests[i], texts[i], vectors[i], metadata[i], codes[i] = d.digest, d.text, d.vector, d.metadata, d.code
	}
	return pg.Args{
		"tenant": tenant, "now": now, "ids": ids, "owners": owners, "kinds": kinds, "months": months,
		"contributors": contributors, "sessions": sessions, "more": more, "source_times": sourceTimes,
		"expiries": expiries, "spaces": spaces, "dimensions": dimensions, "formats": formats, "digests": digests,
		"texts": texts, "vectors": vectors, "metadata": metadata, "codes": codes,
	}
}
