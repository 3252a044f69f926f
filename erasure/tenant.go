package erasure

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/purge"
	"forgettable.dev/memd/receipts"
	"forgettable.dev/memd/tenants"
	"forgettable.dev/memd/tombstones"
)

// purge takes the tenant past the point of no return and counts what there is, in
// the stores by the tenant's number alone. Whom the directory does not know is
// named: no page of it will lead to them.
func (r *Runner) purge(ctx context.Context, j Job, n *notes) error {
	err := r.Pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := hold(ctx, tx, j, StepPurge); err != nil {
			return err
		}
		return tenants.BeginPurge(ctx, tx, r.Clock.Now(), j.Tenant, j.ID)
	})
	if err != nil {
		return err
	}
	return r.Pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := hold(ctx, tx, j, StepPurge); err != nil {
			return err
		}
		before, err := countAll(ctx, tx, r.stores(), j, nil)
		if err != nil {
			return err
		}
		n.Before = before
		if n.Strangers, err = tenants.Strangers(ctx, tx, j.Tenant); err != nil {
			return err
		}
		for _, s := range n.Strangers {
			r.Logger.WarnContext(ctx, "a subject that the directory does not know is purged too",
				"tenant_no", j.Tenant, "request_id", j.ID, "subject_no", s.Number, "store", s.Store, "things", s.Things)
		}
		return noteStep(ctx, tx, j, StepPurge, *n, true, r.Clock.Now())
	})
}

const sqlPurged = `
INSERT INTO memd.erasure_subjects (tenant_no, request_id, subject_no, purged_at)
SELECT @tenant, @id, s, @now FROM unnest(@subjects::bigint[]) AS s ON CONFLICT DO NOTHING`

const sqlNotPurged = `
SELECT s FROM unnest(@subjects::bigint[]) AS s WHERE NOT EXISTS (
  SELECT FROM memd.erasure_subjects e WHERE e.tenant_no = @tenant AND e.request_id = @id AND e.subject_no = s)`

const sqlCountPurged = `SELECT count(*) FROM memd.erasure_subjects WHERE tenant_no = @tenant AND request_id = @id`

// users goes through the directory, page by page: writers of its subjects are
// waited for, what they have in the stores is deleted, and each subject is
// journalled after its last delete. One page is in memory.
func (r *Runner) users(ctx context.Context, j Job, n *notes) error {
	pace := newPace()
	for after := memd.Number(0); ; {
		var page []provenance.Known
		err := r.Pool.With(ctx, func(db pg.DB) (err error) {
			page, err = provenance.Page(ctx, db, j.Tenant, after, PurgePage)
			return err
		})
		if err == nil && len(page) > 0 {
			err = r.purgePage(ctx, j, page, pace)
		}
		if err != nil {
			return err
		}
		if len(page) == 0 {
			break
		}
		after = page[len(page)-1].Number
	}
	return r.Pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := hold(ctx, tx, j, StepUsers); err != nil {
			return err
		}
		n.Before = Counts{}
		var subjects int64
		if err := tx.QueryRow(ctx, sqlCountPurged, pg.Args{"tenant": j.Tenant, "id": j.ID}).Scan(&subjects); err != nil {
			return err
		}
		n.Before["subjects"] = subjects
		return noteStep(ctx, tx, j, StepUsers, *n, true, r.Clock.Now())
	})
}

func (r *Runner) purgePage(ctx context.Context, j Job, page []provenance.Known, pace *pace) error {
	numbers, refs := make([]memd.Number, len(page)), map[memd.Number]memd.Ref{}
	for i, k := range page {
		numbers[i], refs[k.Number] = k.Number, k.Ref
	}
	var todo []memd.Number
	err := r.Pool.With(ctx, func(db pg.DB) error {
		rows, err := db.Query(ctx, sqlNotPurged, pg.Args{"tenant": j.Tenant, "id": j.ID, "subjects": numbers})
		if err != nil {
			return err
		}
		todo, err = pgx.CollectRows(rows, pgx.RowTo[memd.Number])
		return err
	})
	if err != nil || len(todo) == 0 {
		return err
	}
	target := make([]memd.Contribution, len(todo))
	waiting := make([]memd.Ref, len(todo))
	for i, no := range todo {
		target[i], waiting[i] = memd.Contribution{Subject: no}, refs[no]
	}
	if err := tombstones.Drain(ctx, r.Pool, waiting); err != nil {
		return err
	}
	for stage := StageArtifacts; stage <= StageMemory; stage++ {
		for _, s := range r.stores() {
			if s.Stage() != stage {
				continue
			}
			err := r.paced(ctx, pace, func(tx pgx.Tx, limit int) (int64, error) {
				if p, ok := s.(purger); ok {
					return p.PurgeBatch(ctx, tx, j.Tenant, todo, limit)
				}
				return s.DeleteBatch(ctx, tx, j.Tenant, target, limit)
			})
			if err != nil {
				return err
			}
		}
	}
	return r.Pool.InTx(ctx, func(tx pgx.Tx) error {
		now := r.Clock.Now()
		if _, err := provenance.ForgetSessions(ctx, tx, j.Tenant, todo, 0); err != nil {
			return err
		}
		if err := provenance.Retire(ctx, tx, j.Tenant, todo, now); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sqlPurged, pg.Args{"tenant": j.Tenant, "id": j.ID, "subjects": todo, "now": now})
		return err
	})
}

// rest deletes what the directory did not lead to, store by store, asked by
// tenant alone.
func (r *Runner) rest(ctx context.Context, j Job, n *notes) error {
	if err := r.wipe(ctx, j, StepRest, n); err != nil {
		return err
	}
	return r.done(ctx, j, StepRest, *n)
}

// wipe empties all stores of the tenant. What there was is noted before anything
// is deleted, so that a run that was broken off has counted.
func (r *Runner) wipe(ctx context.Context, j Job, step Step, n *notes) error {
	err := r.Pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := hold(ctx, tx, j, step); err != nil || n.Found != nil {
			return err
		}
		found, err := countAll(ctx, tx, r.stores(), j, nil)
		if err != nil {
			return err
		}
		n.Found = found
		return noteStep(ctx, tx, j, step, *n, false, r.Clock.Now())
	})
	pace := newPace()
	for stage := StageArtifacts; stage <= StageMemory && err == nil; stage++ {
		for _, s := range r.stores() {
			if s.Stage() == stage && err == nil {
				err = r.paced(ctx, pace, func(tx pgx.Tx, limit int) (int64, error) { return s.DeleteTenantBatch(ctx, tx, j.Tenant, limit) })
			}
		}
	}
	return err
}

// destroy destroys the tenant's last key. All rows were counted to be gone.
func (r *Runner) destroy(ctx context.Context, j Job, n *notes) error {
	end, err := r.Rotator.DestroyTenant(ctx, j.Tenant)
	if err != nil {
		return err
	}
	n.Rotation = &rotated{Epoch: end.Epoch, OldVersion: end.Version, DestroyedAt: end.DestroyedAt, DestroyDue: end.Due}
	return r.done(ctx, j, StepDestroy, *n)
}

// closeTenant ends the purge: no API key and no purge target of the tenant's is
// left.
func (r *Runner) closeTenant(ctx context.Context, j Job) error {
	if err := r.receipt(ctx, j, receipts.Provisional); err != nil {
		return err
	}
	return r.Pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := hold(ctx, tx, j, StepClose); err != nil {
			return err
		}
		t, err := tenants.GetByNo(ctx, tx, j.Tenant)
		if err != nil {
			return err
		}
		now := r.Clock.Now()
		if err := tenants.EndPurge(ctx, tx, now, j.Tenant); err != nil {
			return err
		}
		if _, err := purge.DeleteTenant(ctx, tx, j.Tenant); err != nil {
			return err
		}
		return r.end(ctx, tx, j, StepClose, now, now.Add(t.Policy.IngestionDelay))
	})
}

// sweepTenant deletes whatever was written after all. Stores outside memd are
// not asked again: what they ask for went with the last key.
func (r *Runner) sweepTenant(ctx context.Context, j Job, n *notes) error {
	if err := r.wipe(ctx, j, StepSweep, n); err != nil {
		return fmt.Errorf("sweeping: %w", err)
	}
	return r.done(ctx, j, StepSweep, *n)
}
