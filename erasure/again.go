package erasure

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/tombstones"
)

// outside are the steps that leave memd's own rows: they ask stores and
// witnesses, destroy keys, or say that all is done.
var outside = []Step{
	StepDraw, StepTargetsBefore, StepTargetsWith, StepTargetsAfter, StepRotate, StepDestroy, StepCompact, StepCheck, StepLift, StepFinish, StepClose,
}

// told are those of the steps that are not repeated when a database is rolled
// back behind an erasure that had been done. Whoever was forgotten may have
// returned to the stores outside since, and the job's memory may be gone.
var told = []Step{StepDraw, StepTargetsBefore, StepTargetsWith, StepTargetsAfter}

// Again does what an erasure does to memd's own rows, in a database that was
// rolled back behind it, and nothing that cannot be undone: the keys went when
// the erasure was carried out, or go when a worker carries on. had is the state
// in which the database knew the erasure, and reached the one that it had come
// to; unless had is StateDone, the erasure begins again from its first step. One
// that a legal hold stops, or that waits for another of the same user, is left
// to the worker. Safe to repeat. Nobody may write meanwhile.
func (r *Runner) Again(ctx context.Context, j Job, had, reached State) error {
	if had >= StateDone {
		return r.sweepAgain(ctx, j)
	}
	if reached >= StateDone {
		skipped := told
		if reached == StateFinal {
			skipped = append(slices.Clone(told), StepSweep)
		}
		if err := r.skip(ctx, j, skipped); err != nil {
			return err
		}
	}
	list := slices.DeleteFunc(slices.Clone(plans[j.Kind].done), func(s Step) bool { return slices.Contains(outside, s) })
	_, _, err := r.steps(ctx, j, list)
	if errors.Is(err, tombstones.ErrHeld) {
		return nil
	}
	return err
}

// sweepAgain repeats the second sweep, of memd's own stores.
func (r *Runner) sweepAgain(ctx context.Context, j Job) error {
	err := r.Pool.InTx(ctx, func(tx pgx.Tx) error { return beginStep(ctx, tx, j, StepSweep, r.Clock.Now()) })
	if err != nil {
		return err
	}
	n := notes{Found: Counts{}}
	if j.Kind == KindTenant {
		err = r.sweepTenant(ctx, j, &n)
	} else if err = r.sweepRows(ctx, j, &n); err == nil {
		err = r.done(ctx, j, StepSweep, n)
	}
	if errors.Is(err, errStepDone) || errors.Is(err, errHeld) {
		return nil
	}
	return err
}

func (r *Runner) skip(ctx context.Context, j Job, steps []Step) error {
	return r.Pool.InTx(ctx, func(tx pgx.Tx) error {
		now := r.Clock.Now()
		for _, s := range steps {
			if _, err := tx.Exec(ctx, sqlBeginStep, pg.Args{"tenant": j.Tenant, "id": j.ID, "step": s, "now": now}); err != nil {
				return err
			}
			if err := noteStep(ctx, tx, j, s, notes{}, true, now); err != nil {
				return err
			}
		}
		return nil
	})
}
