package tombstones

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// State is a fence's state. The zero value is no fence.
type State int16

// Fence states, as stored; append only.
const (
	StateNone    State = 0
	StateFencing State = 1 // new writers are refused, old ones drain
	StateFenced  State = 2 // nothing of the user's is read or written
	StateLifted  State = 3 // the user may return, and starts empty
)

// String returns the state's name.
func (s State) String() string {
	switch s {
	case StateNone:
		return "none"
	case StateFencing:
		return "fencing"
	case StateFenced:
		return "fenced"
	case StateLifted:
		return "lifted"
	}
	return fmt.Sprintf("State(%d)", int16(s))
}

// Up reports whether reads and writes are refused.
func (s State) Up() bool { return s == StateFencing || s == StateFenced }

// Fence is what is known of a user's fence.
type Fence struct {
	State        State
	ErasedBefore time.Time
	RequestID    uuid.UUID
}

// Hide says whose rows a scope hides. Session 0 means all of the contributor's.
type Hide struct {
	Owner       memd.Number
	Contributor memd.Number
	Session     memd.Number
}

// ErrHeld says that another request holds the user's fence: its erasure is
// under way, and this one waits its turn. It is memd.ErrStale.
var ErrHeld = fmt.Errorf("another request holds the fence: %w", memd.ErrStale)

const sqlRaiseFence = `
INSERT INTO memd.fences AS f (tenant_no, user_ref, state, erased_before, request_id, raised_at)
VALUES (@tenant, @ref, 1, @now, @request, @now)
ON CONFLICT (tenant_no, user_ref) DO UPDATE SET
  state = 1, erased_before = greatest(f.erased_before, excluded.erased_before),
  request_id = excluded.request_id, raised_at = excluded.raised_at, lifted_at = NULL
WHERE f.state = 3`

const sqlFenced = `
UPDATE memd.fences SET state = 2 WHERE tenant_no = @tenant AND user_ref = @ref AND state = 1`

const sqlLiftFence = `
UPDATE memd.fences SET state = 3, erased_before = greatest(erased_before, @now), lifted_at = @now
WHERE tenant_no = @tenant AND user_ref = @ref AND request_id = @request AND state IN (1, 2)`

const sqlReadFence = `
SELECT state, erased_before, request_id FROM memd.fences WHERE tenant_no = @tenant AND user_ref = @ref`

const sqlInsertHides = `
INSERT INTO memd.hides (tenant_no, owner_no, contributor_no, contributor_session, changed_xid, request_id)
SELECT @tenant, h.owner_no, h.contributor_no, h.contributor_session, pg_current_xact_id()::text::bigint, @request
FROM unnest(@owners::bigint[], @contributors::bigint[], @sessions::bigint[])
  AS h (owner_no, contributor_no, contributor_session)
ON CONFLICT DO NOTHING`

// Raise raises a user's fence and returns when no write that it forbids can
// commit any more. open is asked first, in the transaction that raises the
// fence, whether the request still wants it: a request that is over must not
// raise again what nobody would lower. scopes is asked, inside the transaction in
// which everything of the user's is committed and nothing new can come, which
// scopes must hide rows of the user. An error of either ends it. Repeating it
// for the same request changes nothing.
//
// A fence that another request holds is ErrHeld.
func Raise(ctx context.Context, pool *pg.Pool, tenant memd.TenantNo, ref memd.Ref, request uuid.UUID, now time.Time,
	open func(ctx context.Context, db pg.DB) error, scopes func(ctx context.Context, db pg.DB) ([]Hide, error),
) error {
	err := pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := open(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sqlRaiseFence, pg.Args{"tenant": tenant, "ref": ref[:], "request": request, "now": now})
		if err != nil {
			return err
		}
		f, err := Read(ctx, tx, tenant, ref)
		if err == nil && f.RequestID != request {
			err = ErrHeld
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("raising a fence: %w", err)
	}
	err = drained(ctx, pool, ref, func(tx pgx.Tx) error {
		hides, err := scopes(ctx, tx)
		if err != nil {
			return err
		}
		if err := insertHides(ctx, tx, tenant, request, hides); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, sqlFenced, pg.Args{"tenant": tenant, "ref": ref[:]})
		return err
	})
	if err != nil {
		return fmt.Errorf("draining writers behind a fence: %w", err)
	}
	return nil
}

// Lift lowers the fence that request raised. What was said before now stays
// refused. Lifting a fence that is not up changes nothing.
func Lift(ctx context.Context, db pg.DB, tenant memd.TenantNo, ref memd.Ref, request uuid.UUID, now time.Time) error {
	_, err := db.Exec(ctx, sqlLiftFence, pg.Args{"tenant": tenant, "ref": ref[:], "request": request, "now": now})
	if err != nil {
		return fmt.Errorf("lifting a fence: %w", err)
	}
	return nil
}

// Read returns a user's fence; the zero Fence when there never was one.
func Read(ctx context.Context, db pg.DB, tenant memd.TenantNo, ref memd.Ref) (Fence, error) {
	var f Fence
	err := db.QueryRow(ctx, sqlReadFence, pg.Args{"tenant": tenant, "ref": ref[:]}).
		Scan(&f.State, &f.ErasedBefore, &f.RequestID)
	if errors.Is(err, pgx.ErrNoRows) {
		return Fence{}, nil
	}
	if err != nil {
		return Fence{}, fmt.Errorf("reading a fence: %w", err)
	}
	return f, nil
}

func insertHides(ctx context.Context, db pg.DB, tenant memd.TenantNo, request uuid.UUID, hides []Hide) error {
	owners := make([]memd.Number, len(hides))
	contributors := make([]memd.Number, len(hides))
	sessions := make([]memd.Number, len(hides))
	for i, h := range hides {
		owners[i], contributors[i], sessions[i] = h.Owner, h.Contributor, h.Session
	}
	_, err := db.Exec(ctx, sqlInsertHides, pg.Args{
		"tenant": tenant, "request": request, "owners": owners, "contributors": contributors, "sessions": sessions,
	})
	return err
}
