package erasure

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/purge"
	"forgettable.dev/memd/sessions"
)

// stales are the stores in which the sweep looks for what was written for
// somebody who has returned and is older than their erasure, with the name under
// which it counts what it deletes.
var stales = []struct {
	name   string
	delete func(ctx context.Context, db pg.DB, tenant memd.TenantNo, subjects []memd.Number, before time.Time, limit int) (int64, error)
}{
	{"artifacts_stale", artifacts.DeleteStale},
	{"sessions_stale", sessions.DeleteStale},
	{"memories_stale", memory.DeleteStale},
}

// sweep deletes what came after all: by dead number and by contribution, in all
// stores, and what a returned user is said to have said before the erasure. The
// guard refuses all of it, so whatever there is came by a way past the guard,
// and is reported.
func (r *Runner) sweep(ctx context.Context, j Job, n *notes) error {
	if j.Kind == KindTenant {
		return r.sweepTenant(ctx, j, n)
	}
	err := r.Pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := hold(ctx, tx, j, StepSweep); err != nil {
			return err
		}
		if n.Found != nil {
			return nil // A run that was broken off has counted.
		}
		s, err := r.about(ctx, tx, j)
		if err != nil {
			return err
		}
		if n.Found, err = countAll(ctx, tx, r.stores(), j, s.target); err != nil {
			return err
		}
		return noteStep(ctx, tx, j, StepSweep, *n, false, r.Clock.Now())
	})
	if err == nil {
		err = r.sweepRows(ctx, j, n)
	}
	if err == nil && j.Kind == KindMonth {
		return r.done(ctx, j, StepSweep, *n)
	}
	if err == nil {
		err = r.callTargets(ctx, j, roundSweep, purge.BeforeSessions, purge.WithSessions, purge.AfterMemory)
	}
	if err != nil {
		return err
	}
	return r.done(ctx, j, StepSweep, *n)
}

// sweepRows sweeps memd's own stores.
func (r *Runner) sweepRows(ctx context.Context, j Job, n *notes) error {
	for stage := StageArtifacts; stage <= StageMemory; stage++ {
		if !j.reaches(stage) {
			continue
		}
		if err := r.sweepStage(ctx, j, stage); err != nil {
			return err
		}
	}
	switch j.Kind {
	case KindUser:
		return r.sweepStale(ctx, j, n)
	case KindMonth:
		_, err := r.dropMonth(ctx, j, StepSweep)
		return err
	}
	return nil
}

func (r *Runner) sweepStage(ctx context.Context, j Job, stage Stage) error {
	for {
		var deleted int64
		err := r.Pool.InTx(ctx, func(tx pgx.Tx) error {
			if err := hold(ctx, tx, j, StepSweep); err != nil {
				return err
			}
			s, err := r.about(ctx, tx, j)
			if err != nil {
				return err
			}
			deleted, err = r.deleteBatch(ctx, tx, j, s, stage, DeleteBatch)
			return err
		})
		if err != nil || deleted == 0 {
			return err
		}
	}
}

// sweepStale deletes, of a user who has returned, what is older than the
// moment at which the fence was lifted, store by store.
func (r *Runner) sweepStale(ctx context.Context, j Job, n *notes) error {
	for i := 0; i < len(stales); {
		var deleted int64
		next := *n
		next.Found = Counts{}
		next.Found.add(n.Found)
		err := r.Pool.InTx(ctx, func(tx pgx.Tx) error {
			if err := hold(ctx, tx, j, StepSweep); err != nil {
				return err
			}
			live, err := provenance.LiveSubjects(ctx, tx, j.Tenant, j.User)
			if err != nil {
				return err
			}
			if deleted, err = stales[i].delete(ctx, tx, j.Tenant, live, j.FinishedAt, DeleteBatch); err != nil || deleted == 0 {
				return err
			}
			next.Found[stales[i].name] += deleted
			return noteStep(ctx, tx, j, StepSweep, next, false, r.Clock.Now())
		})
		if err != nil {
			return err
		}
		if deleted == 0 {
			i++
			continue
		}
		*n = next
	}
	return nil
}
