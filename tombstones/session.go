package tombstones

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

const sqlInsertSessionTombstones = `
INSERT INTO memd.tombstones (tenant_no, kind, ref, changed_xid, request_id, recorded_at)
SELECT @tenant, 1, r.ref, pg_current_xact_id()::text::bigint, @request, @now
FROM unnest(@refs::bytea[]) AS r (ref) ORDER BY r.ref
ON CONFLICT DO NOTHING`

// Bury marks sessions of a fenced user dead for good. The fence drained the
// writers already. Repeating it changes nothing.
func Bury(ctx context.Context, db pg.DB, tenant memd.TenantNo, sessions []memd.Ref, request uuid.UUID, now time.Time) error {
	refs := make([][]byte, len(sessions))
	for i := range sessions {
		refs[i] = sessions[i][:]
	}
	_, err := db.Exec(ctx, sqlInsertSessionTombstones, pg.Args{
		"tenant": tenant, "refs": refs, "request": request, "now": now,
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
	err := pool.InTx(ctx, func(tx pgx.Tx) error {
		return Bury(ctx, tx, tenant, []memd.Ref{session}, request, now)
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
