package erasure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/tenants"
)

const (
	// DeleteBatch is how many rows one transaction of an erasure deletes.
	DeleteBatch = 1000
	// HoldPause is how long an erasure under a legal hold waits at most before it
	// looks again; releasing the hold wakes it at once, as a rule.
	HoldPause = time.Minute
	// purgePause is how long a user's erasure waits for the purge of the whole
	// tenant, which does its work too.
	purgePause = 500 * time.Millisecond
	// RotateEvery is how long a puncture waits for a rotation that nobody asks
	// for at once: keys of sessions whose content was deleted, and of jobs.
	RotateEvery = 24 * time.Hour
)

// Parts are the places that an erasure reaches and the witnesses that it calls.
// What is nil is recorded as not run, with the reason.
type Parts struct {
	// Stores are memd's own; without any, AllStores.
	Stores   []Store
	Verifier Verifier
	Targets  Targets
	Exports  Exports
	Receipts Receipts
	// Compacts says that workers compact: final receipts wait for it.
	Compacts bool
	// Keys returns a tenant's keys of now: for what the job remembers sealed.
	// Without it nothing is drawn, and targets are told refs alone.
	Keys func(ctx context.Context, tenant memd.TenantNo) (*shred.Keys, error)
}

// Runner runs erasures, step by step.
type Runner struct {
	// Pool reaches the database as memd_worker; Rotator destroys. Required.
	Pool    *pg.Pool
	Rotator *shred.Rotator
	Clock   memd.Clock
	Logger  *slog.Logger
	Parts
}

// Progress says how far a run came that did not fail.
type Progress struct {
	// Over: nothing is left to be done, ever.
	Over bool
	// Wait is how long nothing can be done. Held: because of a legal hold.
	Wait time.Duration
	Held bool
	// Done: it was this run that reached StateDone.
	Done bool
}

// subject is whom a job is about, in numbers.
type subject struct {
	numbers []memd.Number // every number that the user ever had
	target  []memd.Contribution
	paths   []shred.Path
}

// Run takes an erasure from wherever its journal says as far as it can go now:
// to its end, to the time of its second sweep, or to a hold. It returns nil
// then; otherwise it can be called again, by anybody, any number of times. Two
// at once do no harm, however long one of them stood still: each step is done by
// one, and once.
func (r *Runner) Run(ctx context.Context, j Job) (Progress, error) {
	p := plans[j.Kind]
	if len(p.done) == 0 {
		return Progress{}, fmt.Errorf("an erasure of %v", j.Kind)
	}
	if passed, err := r.passedToPurge(ctx, j); passed.Over || passed.Wait > 0 || err != nil {
		return passed, err
	}
	var progress Progress
	if j.State < StateDone {
		wait, held, err := r.steps(ctx, j, p.done)
		if wait > 0 || err != nil {
			return Progress{Wait: wait, Held: held}, err
		}
		progress.Done = true
	}
	now, err := r.read(ctx, j)
	if err != nil || now.State == StateFinal {
		progress.Over = err == nil
		return progress, err
	}
	if wait := now.SweepAt.Sub(r.Clock.Now()); wait > 0 {
		progress.Wait = wait
		return progress, nil
	}
	if progress.Wait, progress.Held, err = r.steps(ctx, now, p.final); err != nil {
		return progress, err
	}
	progress.Over = progress.Wait == 0
	return progress, nil
}

func (r *Runner) read(ctx context.Context, j Job) (Job, error) {
	var now Job
	err := r.Pool.With(ctx, func(db pg.DB) (err error) {
		now, err = Read(ctx, db, j.Tenant, j.ID)
		return err
	})
	return now, err
}

// steps does those steps that are not done. It stops with a time to wait at a
// hold, and where a step says that its time has not come.
func (r *Runner) steps(ctx context.Context, j Job, list []Step) (wait time.Duration, held bool, err error) {
	var journal map[Step]stepRow
	err = r.Pool.With(ctx, func(db pg.DB) (err error) {
		journal, err = readSteps(ctx, db, j.Tenant, j.ID)
		return err
	})
	if err != nil {
		return 0, false, err
	}
	for _, s := range list {
		if journal[s].Done {
			continue
		}
		var later *notYet
		switch err := r.step(ctx, j, s, journal[s].Notes); {
		case errors.Is(err, errHeld):
			return HoldPause, true, nil
		case errors.As(err, &later):
			return later.wait, false, nil
		case err != nil:
			return 0, false, fmt.Errorf("%s step: %w", s, err)
		}
	}
	return 0, false, nil
}

// notYet says that a step can only be done later. That is no failure.
type notYet struct{ wait time.Duration }

// Error implements error.
func (e *notYet) Error() string { return "not yet" }

const sqlRunning = `
UPDATE memd.erasures SET state = 2 WHERE tenant_no = @tenant AND request_id = @id AND state = 1`

func (r *Runner) step(ctx context.Context, j Job, s Step, n notes) error {
	err := r.Pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := beginStep(ctx, tx, j, s, r.Clock.Now()); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sqlRunning, pg.Args{"tenant": j.Tenant, "id": j.ID})
		return err
	})
	if err != nil {
		return err
	}
	began := time.Now()
	if err := r.do(ctx, j, s, n); err != nil {
		return err
	}
	r.Logger.InfoContext(ctx, "erasure step done", "tenant_no", j.Tenant, "request_id", j.ID, "user", j.User,
		"kind", j.Kind.String(), "step", s.String(), "took", time.Since(began))
	return nil
}

// do does a step that has begun, unless somebody else has done it meanwhile.
func (r *Runner) do(ctx context.Context, j Job, s Step, n notes) error {
	var err error
	switch s {
	case StepDraw:
		err = r.draw(ctx, j, &n)
	case StepFence:
		err = r.fence(ctx, j, &n)
	case StepBury:
		err = r.bury(ctx, j, &n)
	case StepExports:
		err = r.exports(ctx, j, &n)
	case StepTargetsBefore, StepTargetsWith, StepTargetsAfter:
		err = r.targets(ctx, j, s, &n)
	case StepArtifacts:
		err = r.delete(ctx, j, s, StageArtifacts, &n)
	case StepContent:
		if j.Kind == KindMonth {
			err = r.deleteEvents(ctx, j, &n)
		} else {
			err = r.delete(ctx, j, s, StageContent, &n)
		}
	case StepDelete:
		err = r.delete(ctx, j, s, StageMemory, &n)
	case StepVerify:
		err = r.verify(ctx, j, &n)
	case StepPuncture:
		err = r.puncture(ctx, j)
	case StepRotate:
		err = r.rotate(ctx, j, &n)
	case StepCheck, StepRecheck:
		err = r.check(ctx, j, s, &n)
	case StepLift, StepFinish:
		err = r.finish(ctx, j, s)
	case StepSweep:
		err = r.sweep(ctx, j, &n)
	case StepFinal:
		err = r.final(ctx, j)
	case StepCompact:
		err = r.askCompaction(ctx, j, &n)
	case StepCompacted:
		err = r.awaitCompaction(ctx, j, &n)
	case StepPurge:
		err = r.purge(ctx, j, &n)
	case StepUsers:
		err = r.users(ctx, j, &n)
	case StepRest:
		err = r.rest(ctx, j, &n)
	case StepDestroy:
		err = r.destroy(ctx, j, &n)
	case StepClose:
		err = r.closeTenant(ctx, j)
	default:
		err = errors.New("unknown step")
	}
	if errors.Is(err, errStepDone) {
		return nil
	}
	return err
}

// about resolves a job to numbers. Nobody may be known by them: then there is
// nothing to delete, and the tombstones are all that remains to be done. Once
// the erasure is done, a living number is somebody who has returned, and is no
// business of it.
func (r *Runner) about(ctx context.Context, db pg.DB, j Job) (subject, error) {
	var s subject
	var err error
	numbers := provenance.AllSubjects
	if j.State >= StateDone && j.Kind == KindUser {
		numbers = provenance.RetiredSubjects
	}
	switch j.Kind {
	case KindTenant:
		return s, nil
	case KindMonth:
		s.paths = []shred.Path{shred.MonthPath(j.Class, j.Month)}
		return s, nil
	}
	if s.numbers, err = numbers(ctx, db, j.Tenant, j.User); err != nil {
		return s, err
	}
	if j.Kind == KindUser {
		for _, n := range s.numbers {
			s.target = append(s.target, memd.Contribution{Subject: n})
			s.paths = append(s.paths, shred.SubjectPath(n))
		}
		return s, nil
	}
	found, err := provenance.SessionOf(ctx, db, j.Tenant, s.numbers, j.Session)
	if err != nil {
		return s, err
	}
	for _, c := range found {
		s.target = append(s.target, c)
		s.paths = append(s.paths, shred.SessionPath(c.Subject, memd.ClassContent, c.Session))
		if j.Kind == KindSession {
			s.paths = append(s.paths, shred.SessionPath(c.Subject, memd.ClassMemory, c.Session))
		}
	}
	return s, nil
}

func (r *Runner) stores() []Store {
	if len(r.Stores) == 0 {
		return AllStores()
	}
	return r.Stores
}

// passedToPurge ends the erasure of a user, or of a session, whose whole tenant
// is purged: there is nothing left, and nothing left to do it with.
func (r *Runner) passedToPurge(ctx context.Context, j Job) (Progress, error) {
	if j.Kind == KindTenant {
		return Progress{}, nil
	}
	var t tenants.Tenant
	err := r.Pool.With(ctx, func(db pg.DB) (err error) {
		t, err = tenants.GetByNo(ctx, db, j.Tenant)
		return err
	})
	switch {
	case err != nil:
		return Progress{}, err
	case t.State == tenants.StatePurging:
		return Progress{Wait: purgePause}, nil
	case t.State != tenants.StatePurged:
		return Progress{}, nil
	}
	return Progress{Over: true, Done: j.State < StateDone}, r.endByPurge(ctx, j)
}

func (r *Runner) done(ctx context.Context, j Job, s Step, n notes) error {
	return r.Pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := hold(ctx, tx, j, s); err != nil {
			return err
		}
		return noteStep(ctx, tx, j, s, n, true, r.Clock.Now())
	})
}
