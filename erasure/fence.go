package erasure

import (
	"context"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/tombstones"
)

// scopes is what fences and tombstones ask while writers are drained: which
// scopes must hide rows, and, at that moment, what there is to be deleted.
func (r *Runner) scopes(j Job, n *notes) func(ctx context.Context, db pg.DB) ([]tombstones.Hide, error) {
	return func(ctx context.Context, db pg.DB) ([]tombstones.Hide, error) {
		if err := hold(ctx, db, j, j.Kind.first()); err != nil {
			return nil, err
		}
		s, err := r.about(ctx, db, j)
		if err != nil {
			return nil, err
		}
		if n.Before == nil {
			if n.Before, err = countAll(ctx, db, r.stores(), j, s.target); err != nil {
				return nil, err
			}
		}
		var hides []tombstones.Hide
		if j.Kind != KindContent { // Of which nothing is in anybody's memory.
			held, err := memory.Scopes(ctx, db, j.Tenant, s.target)
			if err != nil {
				return nil, err
			}
			for _, h := range held {
				hides = append(hides, tombstones.Hide{Owner: h.Owner, Contributor: h.Contribution.Subject, Session: h.Contribution.Session})
			}
		}
		return hides, noteStep(ctx, db, j, j.Kind.first(), *n, false, r.Clock.Now())
	}
}

func (r *Runner) fence(ctx context.Context, j Job, n *notes) error {
	open := func(ctx context.Context, db pg.DB) error { return hold(ctx, db, j, StepFence) }
	if err := tombstones.Raise(ctx, r.Pool, j.Tenant, j.User, j.ID, r.Clock.Now(), open, r.scopes(j, n)); err != nil {
		return err
	}
	return r.done(ctx, j, StepFence, *n)
}

// bury leaves the tombstones of sessions: of all that the user had, behind the
// fence, or of the one that is forgotten.
func (r *Runner) bury(ctx context.Context, j Job, n *notes) error {
	var err error
	switch j.Kind {
	case KindSession:
		err = tombstones.BurySession(ctx, r.Pool, j.Tenant, j.User, j.Session, j.ID, r.Clock.Now(), r.scopes(j, n))
	case KindMonth:
		return r.buryMonth(ctx, j, n)
	case KindContent:
		err = tombstones.BuryContent(ctx, r.Pool, j.Tenant, j.User, j.Session, j.ID, r.Clock.Now(), r.scopes(j, n))
	}
	if err != nil {
		return err
	}
	return r.Pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := hold(ctx, tx, j, StepBury); err != nil {
			return err
		}
		s, err := r.about(ctx, tx, j)
		if err != nil {
			return err
		}
		switch j.Kind {
		case KindUser:
			err = r.buryAll(ctx, tx, j, s, n)
		case KindSession:
			for _, c := range s.target {
				var forgotten int64
				if forgotten, err = provenance.ForgetSessions(ctx, tx, j.Tenant, []memd.Number{c.Subject}, c.Session); err != nil {
					break
				}
				n.Sessions += forgotten
			}
		}
		if err != nil {
			return err
		}
		return noteStep(ctx, tx, j, StepBury, *n, true, r.Clock.Now())
	})
}

func (r *Runner) buryAll(ctx context.Context, tx pg.DB, j Job, s subject, n *notes) error {
	refs, err := provenance.SessionRefs(ctx, tx, j.Tenant, s.numbers)
	if err != nil {
		return err
	}
	if err := tombstones.Bury(ctx, tx, j.Tenant, refs, j.ID, r.Clock.Now()); err != nil {
		return err
	}
	forgotten, err := provenance.ForgetSessions(ctx, tx, j.Tenant, s.numbers, 0)
	n.Sessions += forgotten
	return err
}
