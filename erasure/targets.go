package erasure

import (
	"context"
	"errors"
	"fmt"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
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
	var refs []memd.Ref
	err = r.Pool.With(ctx, func(db pg.DB) (err error) {
		if t, err = tenants.GetByNo(ctx, db, j.Tenant); err == nil {
			refs, err = furtherRefs(ctx, db, j)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, order := range orders {
		_, err := r.Targets.EraseAll(ctx, r.Pool, j.Tenant, order, purge.Request{
			ID: j.ID, Mode: purge.Mode(j.Kind), Tenant: t.Name, App: j.App, UserID: userID, SessionID: sessionID, Round: round, Refs: refs,
		})
		if err != nil {
			return fmt.Errorf("%w: %w", errTarget, err)
		}
	}
	return nil
}

// refsPage is how many subjects of a tenant are read at a time.
const refsPage = 1000

// furtherRefs are the digests by which log files name whom a job is about, beyond
// those of the ids that it remembers: of a user's sessions, of a tenant's users.
func furtherRefs(ctx context.Context, db pg.DB, j Job) ([]memd.Ref, error) {
	refs := []memd.Ref{} // Not nil: a tenant may have had nobody.
	switch j.Kind {
	case KindUser:
		numbers, err := provenance.AllSubjects(ctx, db, j.Tenant, j.User)
		if err != nil {
			return nil, err
		}
		sessions, err := provenance.SessionRefs(ctx, db, j.Tenant, numbers)
		return append(refs, sessions...), err
	case KindTenant:
		for after := memd.Number(0); ; {
			page, err := provenance.Page(ctx, db, j.Tenant, after, refsPage)
			if err != nil || len(page) == 0 {
				return refs, err
			}
			for _, k := range page {
				refs, after = append(refs, k.Ref), k.Number
			}
		}
	}
	return refs, nil
}
