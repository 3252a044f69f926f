package purge

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// EraseAll does one order class of an erasure's round: it counts, erases and
// verifies at each of the tenant's targets of that class, in order, and journals
// what each answered before it goes on. It goes on past a target that fails, so
// that one that is down keeps nobody else from erasing.
//
// It returns the acknowledgements of all targets of the class, as journalled, and
// the errors of those that are required, joined. Nil means that every required
// target has erased in this round, and counts nothing more if it counts at all.
// Safe to repeat: a target that was erased and verified in this round is not
// called again. When there is something to call and as many erasures are calling
// as may, it is ErrBusy at once.
func (c *Caller) EraseAll(ctx context.Context, pool *pg.Pool, tenant memd.TenantNo, order Order, r Request) ([]Ack, error) {
	var targets []Target
	var acks []Ack
	err := pool.With(ctx, func(db pg.DB) (err error) {
		if targets, err = Targets(ctx, db, tenant); err != nil {
			return err
		}
		acks, err = Acks(ctx, db, tenant, r.ID)
		return err
	})
	if err != nil {
		return nil, err
	}
	targets = slices.DeleteFunc(targets, func(t Target) bool {
		return t.Order != order || slices.ContainsFunc(acks, func(a Ack) bool {
			return a.Target == t.ID && a.Acknowledged && a.Op == OpVerify && a.Round == r.Round
		})
	})
	if len(targets) > 0 {
		if !c.bound.enter(tenant, c.c.Erasures, c.c.ErasuresPerTenant) {
			return nil, ErrBusy
		}
		defer c.bound.leave(tenant)
	}
	var errs []error
	for _, t := range targets {
		err := c.eraseOne(ctx, pool, t, r)
		if ctx.Err() != nil {
			return nil, err
		}
		var call *CallError
		if err != nil && (t.Required || !errors.As(err, &call)) {
			errs = append(errs, err)
		}
	}
	err = pool.With(ctx, func(db pg.DB) (err error) {
		acks, err = Acks(ctx, db, tenant, r.ID)
		return err
	})
	if err != nil {
		return nil, err
	}
	of := acks[:0]
	for _, a := range acks {
		if a.Order == order && a.Round == r.Round {
			of = append(of, a)
		}
	}
	return of, errors.Join(errs...)
}

// eraseOne asks one target in turn for the three operations. A count that fails
// does not keep it from erasing: there may be targets that cannot count.
func (c *Caller) eraseOne(ctx context.Context, pool *pg.Pool, t Target, r Request) error {
	for _, op := range []Op{OpCount, OpErase, OpVerify} {
		a, err := c.call(ctx, t, op, r)
		recorded := pool.InTx(ctx, func(tx pgx.Tx) error { return RecordAck(ctx, tx, t.Tenant, r.ID, a) })
		if recorded != nil {
			return errors.Join(err, recorded)
		}
		if err != nil && op != OpCount {
			return err
		}
	}
	return nil
}
