package erasure

import (
	"context"
	"errors"
	"fmt"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/purge"
	"forgettable.dev/memd/tenants"
)

// Targets are the stores outside memd, a purge.Caller.
type Targets interface {
	// EraseAll does one order class of one round at all of a tenant's targets and
	// journals what they answered. Nil means that every required one has erased.
	EraseAll(ctx context.Context, pool *pg.Pool, tenant memd.TenantNo, order purge.Order, r purge.Request) ([]purge.Ack, error)
}

// The rounds: the second sweep is one of its own, because a target remembers
// what it has done.
const (
	roundFirst = 1
	roundSweep = 2
)

var targetOrder = map[Step]purge.Order{
	StepTargetsBefore: purge.BeforeSessions, StepTargetsWith: purge.WithSessions, StepTargetsAfter: purge.AfterMemory,
}

// errTarget: a store outside memd has not erased. The erasure waits for it.
var errTarget = errors.New("a purge target did not acknowledge")

func (r *Runner) targets(ctx context.Context, j Job, s Step, n *notes) error {
	if err := r.callTargets(ctx, j, roundFirst, targetOrder[s]); err != nil {
		return err
	}
	return r.done(ctx, j, s, *n)
}

func (r *Runner) callTargets(ctx context.Context, j Job, round int, orders ...purge.Order) error {
	if r.Targets == nil {
		return nil
	}
	userID, sessionID, err := r.remembered(ctx, j)
	if err != nil {
		return err
	}
	var t tenants.Tenant
	err = r.Pool.With(ctx, func(db pg.DB) (err error) {
		t, err = tenants.GetByNo(ctx, db, j.Tenant)
		return err
	})
	if err != nil {
		return err
	}
	for _, order := range orders {
		_, err := r.Targets.EraseAll(ctx, r.Pool, j.Tenant, order, purge.Request{
			ID: j.ID, Mode: purge.Mode(j.Kind), Tenant: t.Name, App: j.App, UserID: userID, SessionID: sessionID, Round: round,
		})
		if err != nil {
			return fmt.Errorf("%w: %w", errTarget, err)
		}
	}
	return nil
}
