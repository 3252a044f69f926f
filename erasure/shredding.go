package erasure

import (
	"context"
	"encoding/hex"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/receipts"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/tenants"
	"forgettable.dev/memd/tombstones"
)

// puncture asks for the keys to go, and ends the life of the user's numbers.
// The reasons of holds on them that were released go too.
func (r *Runner) puncture(ctx context.Context, j Job) error {
	return r.Pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := hold(ctx, tx, j, StepPuncture); err != nil {
			return err
		}
		s, err := r.about(ctx, tx, j)
		if err != nil {
			return err
		}
		now := r.Clock.Now()
		paths := s.paths
		if j.Kind == KindUser {
			reasons, err := forgetReasons(ctx, tx, j)
			if err != nil {
				return err
			}
			paths = append(paths, reasons...)
			if err := provenance.Retire(ctx, tx, j.Tenant, s.numbers, now); err != nil {
				return err
			}
		}
		if len(paths) > 0 {
			if err := shred.RequestPuncture(ctx, tx, j.Tenant, paths, j.ID, now); err != nil {
				return err
			}
		}
		return noteStep(ctx, tx, j, StepPuncture, notes{}, true, now)
	})
}

// rotate destroys the old keys, together with those of whoever else is being
// forgotten at the time. The keys of a session's content wait for a rotation
// that somebody else needs, but no longer than RotateEvery.
func (r *Runner) rotate(ctx context.Context, j Job, n *notes) error {
	var s subject
	var epoch int64
	err := r.Pool.With(ctx, func(db pg.DB) (err error) {
		if s, err = r.about(ctx, db, j); err != nil || len(s.paths) == 0 {
			return err
		}
		epoch, err = shred.PunctureEpoch(ctx, db, j.Tenant, s.paths)
		return err
	})
	if err != nil {
		return err
	}
	if len(s.paths) > 0 {
		if wait := j.FinishedAt.Add(RotateEvery).Sub(r.Clock.Now()); j.Kind == KindContent && epoch == 0 && wait > 0 {
			return &notYet{wait}
		}
		done, err := r.Rotator.Rotate(ctx, j.Tenant)
		if err != nil {
			return err
		}
		if done, err = r.destruction(ctx, j, s, done); err != nil {
			return err
		}
		n.Rotation = &rotated{
			Epoch: done.Epoch, OldVersion: done.OldVersion, DestroyedAt: done.DestroyedAt, DestroyDue: done.DestroyDue,
			TreeBefore: hex.EncodeToString(done.TreeBefore[:]), TreeAfter: hex.EncodeToString(done.TreeAfter[:]),
		}
	}
	return r.done(ctx, j, StepRotate, *n)
}

// destruction returns the rotation in which the paths were punctured, which may
// have been somebody else's and not the last. One that never finished itself
// was finished by the last.
func (r *Runner) destruction(ctx context.Context, j Job, s subject, last shred.Rotation) (shred.Rotation, error) {
	own := last
	err := r.Pool.With(ctx, func(db pg.DB) error {
		epoch, err := shred.PunctureEpoch(ctx, db, j.Tenant, s.paths)
		if err != nil || epoch == 0 || epoch == last.Epoch {
			return err
		}
		own, err = shred.ReadRotation(ctx, db, j.Tenant, epoch)
		return err
	})
	if err != nil || own.State != shred.RotationFinished || own.DestroyedAt.IsZero() {
		return last, err
	}
	return own, nil
}

// finish ends what is done at once, behind the provisional receipt: for a user
// it lifts the fence, unless the tenant's policy keeps it up until the second
// sweep. In one transaction: a fence that this request lifted is never raised by
// it again.
func (r *Runner) finish(ctx context.Context, j Job, s Step) error {
	if err := r.receipt(ctx, j, receipts.Provisional); err != nil {
		return err
	}
	return r.Pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := hold(ctx, tx, j, s); err != nil {
			return err
		}
		t, err := tenants.GetByNo(ctx, tx, j.Tenant)
		if err != nil {
			return err
		}
		now := r.Clock.Now()
		if j.Kind == KindUser && t.Policy.LiftFence != tenants.LiftAfterSweep {
			if err := tombstones.Lift(ctx, tx, j.Tenant, j.User, j.ID, now); err != nil {
				return err
			}
		}
		return r.end(ctx, tx, j, s, now, now.Add(t.Policy.IngestionDelay))
	})
}

// end makes the erasure done.
func (r *Runner) end(ctx context.Context, tx pgx.Tx, j Job, s Step, now, sweep time.Time) error {
	if err := noteStep(ctx, tx, j, s, notes{}, true, now); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, sqlDone, pg.Args{"tenant": j.Tenant, "id": j.ID, "now": now, "sweep": sweep})
	return err
}

// final ends the erasure for good. Its own leaf is punctured, so that the next
// rotation, whoever's it is, destroys what it remembered.
func (r *Runner) final(ctx context.Context, j Job) error {
	if err := r.receipt(ctx, j, receipts.Final); err != nil {
		return err
	}
	return r.Pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := hold(ctx, tx, j, StepFinal); err != nil {
			return err
		}
		now := r.Clock.Now()
		if j.Kind == KindUser { // No more than a repetition unless the policy kept it up.
			if err := tombstones.Lift(ctx, tx, j.Tenant, j.User, j.ID, now); err != nil {
				return err
			}
		}
		if j.Kind != KindTenant {
			if err := shred.RequestPuncture(ctx, tx, j.Tenant, []shred.Path{shred.JobPath(j.No)}, j.ID, now); err != nil {
				return err
			}
		}
		if err := noteStep(ctx, tx, j, StepFinal, notes{}, true, now); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sqlFinal, pg.Args{"tenant": j.Tenant, "id": j.ID, "now": now})
		return err
	})
}

// endByPurge closes an erasure whose tenant was purged meanwhile.
func (r *Runner) endByPurge(ctx context.Context, j Job) error {
	return r.Pool.InTx(ctx, func(tx pgx.Tx) error {
		now := r.Clock.Now()
		if _, err := tx.Exec(ctx, sqlDone, pg.Args{"tenant": j.Tenant, "id": j.ID, "now": now, "sweep": now}); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sqlFinal, pg.Args{"tenant": j.Tenant, "id": j.ID, "now": now})
		return err
	})
}
