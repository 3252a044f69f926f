package tenants

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// MaxReason is the length of a transition's reason in bytes.
const MaxReason = 1024

// Seal seals the reason that somebody gave at a time.
type Seal func(at time.Time, reason string) ([]byte, error)

const sqlMove = `SELECT memd.move_tenant(@tenant_no, @state, @by, @reason, @now)`

// Move takes a tenant a step further on its way out, from Active to Suspended, to
// Exporting if it wants an export, and to Drained, or any way back, to Active from
// wherever it is: from its
// commit on every replica knows. Only Active admits agents; single users can be
// erased in all of them. by is the API key that asked for it, and reason, 1 to
// MaxReason bytes, is stored sealed beside it. Leaving Drained voids what was
// approved. Safe to repeat: a tenant that is there already stays, and nothing is
// recorded. A tenant from whose state no way leads there, and one whose purge was
// accepted, is ErrTenantInactive.
func Move(ctx context.Context, db pg.DB, now time.Time, name string, to State, by uuid.UUID, reason string, seal Seal) (Tenant, error) {
	if reason == "" || len(reason) > MaxReason || !utf8.ValidString(reason) {
		return Tenant{}, invalid("reason", fmt.Sprintf("is required, and at most %d bytes of UTF-8", MaxReason))
	}
	t, err := Get(ctx, db, name)
	if err != nil {
		return Tenant{}, err
	}
	sealed, err := seal(now, reason)
	if err == nil {
		_, err = db.Exec(ctx, sqlMove, pg.Args{"tenant_no": t.No, "state": to, "by": by, "reason": sealed, "now": now})
	}
	if errors.Is(pg.Classify(err), memd.ErrTenantInactive) {
		return Tenant{}, &memd.RefusalError{
			Class: memd.ErrTenantInactive, Problem: fmt.Sprintf("it is %s, from where no way leads to %s", t.State, to),
		}
	}
	if err != nil {
		return Tenant{}, fmt.Errorf("taking a tenant to %s: %w", to, err)
	}
	return Get(ctx, db, name)
}

// Transition is one change of a tenant's state.
type Transition struct {
	At       time.Time
	From, To State
	// By is the API key that asked for it; zero for what the worker did by itself.
	By uuid.UUID
	// Reason is memd's own word for what the worker did by itself. What somebody said
	// is Sealed.
	Reason string
	Sealed []byte
}

const sqlTransitions = `
SELECT at, from_state, to_state, coalesce(principal_id, '00000000-0000-0000-0000-000000000000'), reason, sealed_reason
FROM memd.tenant_transitions
WHERE tenant_no = @tenant_no ORDER BY at DESC, to_state DESC LIMIT @limit`

// maxTransitions bounds what Transitions returns.
const maxTransitions = 1000

// Transitions returns the newest transitions of a tenant, at most a thousand, the
// newest first.
func Transitions(ctx context.Context, db pg.DB, no memd.TenantNo) ([]Transition, error) {
	rows, err := db.Query(ctx, sqlTransitions, pg.Args{"tenant_no": no, "limit": maxTransitions})
	if err != nil {
		return nil, fmt.Errorf("reading a tenant's transitions: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Transition])
	if err != nil {
		return nil, fmt.Errorf("reading a tenant's transitions: %w", err)
	}
	for i := range all {
		all[i].At = all[i].At.UTC()
	}
	return all, nil
}
