package erasure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/sessions"
)

// delete empties the stores of a stage, batch after batch; each batch and the
// record of it are one transaction, so that the count is right wherever it
// stops.
func (r *Runner) delete(ctx context.Context, j Job, step Step, stage Stage, n *notes) error {
	p, limit := newPace(), DeleteBatch
	for {
		if j.Kind == KindMonth { // Nobody waits for it.
			limit = p.rows
		}
		began := time.Now()
		var deleted int64
		next := *n
		err := r.Pool.InTx(ctx, func(tx pgx.Tx) error {
			if err := hold(ctx, tx, j, step); err != nil {
				return err
			}
			s, err := r.about(ctx, tx, j)
			if err != nil {
				return err
			}
			if deleted, err = r.deleteBatch(ctx, tx, j, s, stage, limit); err != nil {
				return err
			}
			next.Deleted = n.Deleted + deleted
			if deleted == 0 && j.Kind == KindMonth && stage == StageContent {
				if next.Dropped, err = sessions.DroppedEvents(ctx, tx, j.Tenant, j.Month); err != nil {
					return err
				}
				next.Deleted += next.Dropped - n.Dropped
			}
			return noteStep(ctx, tx, j, step, next, deleted == 0, r.Clock.Now())
		})
		if err != nil {
			return err
		}
		if *n = next; deleted == 0 {
			return nil
		}
		if j.Kind == KindMonth {
			if err := p.rest(ctx, deleted, time.Since(began)); err != nil {
				return err
			}
		}
	}
}

// deleteBatch deletes a batch of the first store of the stage that has any left.
func (r *Runner) deleteBatch(ctx context.Context, tx pg.DB, j Job, s subject, stage Stage, limit int) (int64, error) {
	for _, store := range r.stores() {
		if store.Stage() != stage || !j.reaches(stage) || len(s.target) == 0 && j.Kind != KindMonth {
			continue
		}
		var deleted int64
		var err error
		if j.Kind == KindMonth {
			deleted, err = store.DeleteMonthBatch(ctx, tx, j.Tenant, j.Month, limit)
		} else if d, ok := store.(deriver); ok {
			var fallen []memory.Fallen
			if deleted, fallen, err = d.DeleteFalling(ctx, tx, j.Tenant, s.target, limit); err == nil {
				err = insertFallen(ctx, tx, j, fallen)
			}
		} else {
			deleted, err = store.DeleteBatch(ctx, tx, j.Tenant, s.target, limit)
		}
		if deleted > 0 || err != nil {
			return deleted, err
		}
	}
	return 0, nil
}

// stageSteps are the steps that empty the stores, to be done again when
// something is left.
var stageSteps = map[Stage]Step{StageArtifacts: StepArtifacts, StageContent: StepContent, StageMemory: StepDelete}

// verify counts, asking the tables. When something is left, deletion is done
// again by the next try, and keys are not touched before there is nothing; what
// is left is noted, store by store. Of a tenant, whose last key goes next, the
// verifier has to say the same.
func (r *Runner) verify(ctx context.Context, j Job, n *notes) error {
	var left, sessions int64
	var witness error
	if j.Kind == KindTenant {
		var err error
		if n.Checks, err = r.examine(ctx, j, memd.SearchBudget{}); err != nil {
			return err
		}
		witness = failedOf(n.Checks)
	}
	err := r.Pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := hold(ctx, tx, j, StepVerify); err != nil {
			return err
		}
		s, err := r.about(ctx, tx, j)
		if err != nil {
			return err
		}
		after, err := countAll(ctx, tx, r.stores(), j, s.target)
		if err != nil {
			return err
		}
		left = after.total()
		if j.Kind == KindUser || j.Kind == KindSession {
			if sessions, err = provenance.CountLiveSessions(ctx, tx, j.Tenant, s.target); err != nil {
				return err
			}
		}
		n.After, n.Sessions = after, sessions
		gone := left == 0 && sessions == 0 && witness == nil
		if err := noteStep(ctx, tx, j, StepVerify, *n, gone, r.Clock.Now()); err != nil || gone {
			return err
		}
		return r.reopen(ctx, tx, j, left, sessions)
	})
	if err == nil && (left > 0 || sessions > 0) {
		return fmt.Errorf("%d rows and %d sessions are left: %w", left, sessions, errSurvivors)
	}
	if err == nil {
		err = witness
	}
	return err
}

func (r *Runner) reopen(ctx context.Context, tx pg.DB, j Job, left, sessions int64) error {
	var errs []error
	if sessions > 0 {
		errs = append(errs, reopenStep(ctx, tx, j, StepBury))
	}
	if left > 0 && j.Kind == KindTenant {
		errs = append(errs, reopenStep(ctx, tx, j, StepRest))
	} else if left > 0 {
		for _, s := range stageSteps {
			errs = append(errs, reopenStep(ctx, tx, j, s))
		}
	}
	return errors.Join(errs...)
}

// errSurvivors stops an erasure before its keys are touched.
var errSurvivors = errors.New("deletion was not complete")
