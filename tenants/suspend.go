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

const sqlSuspend = `SELECT memd.suspend_tenant(@tenant_no, @state, @by, @reason, @now)`

// Suspend takes an active tenant to Suspended: from its commit on no agent is
// admitted, by any replica; single users can still be erased, and the tenant can
// be purged. by is the API key that asked for it, and reason, 1 to MaxReason
// bytes, is stored in clear beside it. Safe to repeat: a tenant that is suspended
// stays so, and nothing is recorded. Any other state is ErrTenantInactive.
func Suspend(ctx context.Context, db pg.DB, now time.Time, name string, by uuid.UUID, reason string) (Tenant, error) {
	return suspend(ctx, db, now, name, StateSuspended, by, reason)
}

// Resume is the way back, to Active. A tenant whose purge was accepted cannot
// be resumed: ErrTenantInactive. Otherwise like Suspend.
func Resume(ctx context.Context, db pg.DB, now time.Time, name string, by uuid.UUID, reason string) (Tenant, error) {
	return suspend(ctx, db, now, name, StateActive, by, reason)
}

func suspend(ctx context.Context, db pg.DB, now time.Time, name string, to State, by uuid.UUID, reason string) (Tenant, error) {
	if reason == "" || len(reason) > MaxReason || !utf8.ValidString(reason) {
		return Tenant{}, invalid("reason", fmt.Sprintf("is required, and at most %d bytes of UTF-8", MaxReason))
	}
	t, err := Get(ctx, db, name)
	if err != nil {
		return Tenant{}, err
	}
	_, err = db.Exec(ctx, sqlSuspend, pg.Args{"tenant_no": t.No, "state": to, "by": by, "reason": reason, "now": now})
	if errors.Is(err, memd.ErrTenantInactive) {
		return Tenant{}, fmt.Errorf("taking a tenant that is %s to %s: %w", t.State, to, memd.ErrTenantInactive)
	}
	if err != nil {
		return Tenant{}, fmt.Errorf("taking a tenant to %s: %w", to, err)
	}
	return Get(ctx, db, name)
}

// Transition is one change of a tenant's state that somebody asked for.
type Transition struct {
	At       time.Time
	From, To State
	By       uuid.UUID
	Reason   string
}

const sqlTransitions = `
SELECT at, from_state, to_state, principal_id, reason FROM memd.tenant_transitions
WHERE tenant_no = @tenant_no ORDER BY at DESC LIMIT @limit`

// maxTransitions bounds what Transitions returns.
const maxTransitions = 100

// Transitions returns the newest transitions of a tenant, at most a hundred.
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
