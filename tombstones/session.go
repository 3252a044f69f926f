package tombstones

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// Kinds of session tombstones, as stored: of a session, and of its content
// alone.
const (
	kindSession = 1
	kindContent = 2
)

const sqlInsertSessionTombstones = `
INSERT INTO memd.tombstones (tenant_no, kind, ref, changed_xid, request_id, recorded_at)
SELECT @tenant, @kind, r.ref, pg_current_xact_id()::text::bigint, @request, @now
FROM unnest(@refs::bytea[]) AS r (ref) ORDER BY r.ref
ON CONFLICT DO NOTHING`

// Bury marks sessions of a fenced user dead for good. The fence drained the
// writers already. Repeating it changes nothing.
func Bury(ctx context.Context, db pg.DB, tenant memd.TenantNo, sessions []memd.Ref, request uuid.UUID, now time.Time) error {
	return bury(ctx, db, kindSession, tenant, sessions, request, now)
}

func bury(ctx context.Context, db pg.DB, kind int16, tenant memd.TenantNo, sessions []memd.Ref, request uuid.UUID, now time.Time) error {
	refs := make([][]byte, len(sessions))
	for i := range sessions {
		refs[i] = sessions[i][:]
	}
	_, err := db.Exec(ctx, sqlInsertSessionTombstones, pg.Args{
		"tenant": tenant, "kind": kind, "refs": refs, "request": request, "now": now,
	})
	if err != nil {
		return fmt.Errorf("burying sessions: %w", err)
	}
	return nil
}

// BurySession marks one session of a user who is not fenced dead for good, and
// returns when no write from it can commit any more. scopes is asked, inside
// the transaction in which all of the session's writers are done, which scopes
// must hide rows of the session. Repeating it changes nothing.
func BurySession(ctx context.Context, pool *pg.Pool, tenant memd.TenantNo, user, session memd.Ref, request uuid.UUID, now time.Time,
	scopes func(ctx context.Context, db pg.DB) ([]Hide, error),
) error {
	return buryOne(ctx, pool, kindSession, tenant, user, session, request, now, scopes)
}

// BuryContent is BurySession for the session's own content, its events, state
// and artifacts: what memory draws from it may go on being written.
func BuryContent(ctx context.Context, pool *pg.Pool, tenant memd.TenantNo, user, session memd.Ref, request uuid.UUID, now time.Time,
	scopes func(ctx context.Context, db pg.DB) ([]Hide, error),
) error {
	return buryOne(ctx, pool, kindContent, tenant, user, session, request, now, scopes)
}

func buryOne(ctx context.Context, pool *pg.Pool, kind int16, tenant memd.TenantNo, user, session memd.Ref, request uuid.UUID, now time.Time,
	scopes func(ctx context.Context, db pg.DB) ([]Hide, error),
) error {
	err := pool.InTx(ctx, func(tx pgx.Tx) error {
		return bury(ctx, tx, kind, tenant, []memd.Ref{session}, request, now)
	})
	if err != nil {
		return err
	}
	err = drained(ctx, pool, user, func(tx pgx.Tx) error {
		hides, err := scopes(ctx, tx)
		if err != nil {
			return err
		}
		return insertHides(ctx, tx, tenant, request, hides)
	})
	if err != nil {
		return fmt.Errorf("draining writers of a session: %w", err)
	}
	return nil
}

// Drain returns when every write of the users that had begun has ended. What
// refuses new ones, a tenant's state, has committed before. It locks some
// users at a time.
func Drain(ctx context.Context, pool *pg.Pool, refs []memd.Ref) error {
	for batch := range slices.Chunk(refs, drainBatch) {
		err := drainedAll(ctx, pool, batch)
		if err != nil {
			return fmt.Errorf("draining writers: %w", err)
		}
	}
	return nil
}
