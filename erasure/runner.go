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
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/tombstones"
)

// DeleteBatch is how many rows one transaction of an erasure deletes.
const DeleteBatch = 1000

// Runner runs erasures, step by step.
type Runner struct {
	// Pool reaches the database as memd_worker; Rotator destroys. Required.
	Pool    *pg.Pool
	Rotator *shred.Rotator
	Clock   memd.Clock
	Logger  *slog.Logger
}

// subject is whom a job is about, in numbers.
type subject struct {
	numbers []memd.Number // every number that the user ever had
	target  memory.Target
	paths   []shred.Path
}

// Run takes an erasure from wherever its journal says to its end. It returns
// nil when the erasure is done; otherwise it can be called again, by anybody,
// any number of times. Two at once do no harm, however long one of them stood
// still: each step is done by one, and once.
func (r *Runner) Run(ctx context.Context, j Job) error {
	steps := userSteps
	if j.Kind == KindSession {
		steps = sessionSteps
	}
	err := r.Pool.InTx(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sqlRunning, pg.Args{"tenant": j.Tenant, "id": j.ID})
		return err
	})
	if err != nil {
		return fmt.Errorf("starting an erasure: %w", err)
	}
	for _, s := range steps {
		if err := r.step(ctx, j, s); err != nil {
			return fmt.Errorf("%s step: %w", s, err)
		}
	}
	return nil
}

func (r *Runner) step(ctx context.Context, j Job, s Step) error {
	var journal map[Step]stepRow
	err := r.Pool.With(ctx, func(db pg.DB) (err error) {
		if journal, err = readSteps(ctx, db, j.Tenant, j.ID); err != nil || journal[s].Done {
			return err
		}
		return beginStep(ctx, db, j, s, r.Clock.Now())
	})
	if err != nil || journal[s].Done {
		return err
	}
	began := time.Now()
	if err := r.do(ctx, j, s, journal[s].Notes); err != nil {
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
	case StepFence:
		err = r.fence(ctx, j, &n)
	case StepBury:
		err = r.bury(ctx, j, &n)
	case StepDelete:
		err = r.delete(ctx, j, &n)
	case StepVerify:
		err = r.verify(ctx, j, &n)
	case StepPuncture:
		err = r.puncture(ctx, j)
	case StepRotate:
		err = r.rotate(ctx, j, &n)
	case StepLift, StepFinish:
		err = r.finish(ctx, j, s)
	default:
		err = errors.New("unknown step")
	}
	if errors.Is(err, errStepDone) {
		return nil
	}
	return err
}

// about resolves a job to numbers. Nobody may be known by them: then there is
// nothing to delete, and the tombstones are all that remains to be done.
func (r *Runner) about(ctx context.Context, db pg.DB, j Job) (subject, error) {
	var s subject
	var err error
	if s.numbers, err = provenance.AllSubjects(ctx, db, j.Tenant, j.User); err != nil {
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
		s.paths = append(s.paths,
			shred.SessionPath(c.Subject, memd.ClassContent, c.Session),
			shred.SessionPath(c.Subject, memd.ClassMemory, c.Session))
	}
	return s, nil
}

// scopes is what fences and tombstones ask while writers are drained: which
// scopes must hide rows, and, at that moment, what there is to be deleted.
func (r *Runner) scopes(j Job, n *notes) func(ctx context.Context, db pg.DB) ([]tombstones.Hide, error) {
	return func(ctx context.Context, db pg.DB) ([]tombstones.Hide, error) {
		if err := hold(ctx, db, j, first(j.Kind)); err != nil {
			return nil, err
		}
		s, err := r.about(ctx, db, j)
		if err != nil {
			return nil, err
		}
		if n.Before == nil {
			before, err := memory.Count(ctx, db, j.Tenant, s.target)
			if err != nil {
				return nil, err
			}
			n.Before = &before
		}
		held, err := memory.Scopes(ctx, db, j.Tenant, s.target)
		if err != nil {
			return nil, err
		}
		hides := make([]tombstones.Hide, len(held))
		for i, h := range held {
			hides[i] = tombstones.Hide{Owner: h.Owner, Contributor: h.Contribution.Subject, Session: h.Contribution.Session}
		}
		return hides, noteStep(ctx, db, j, first(j.Kind), *n, false, r.Clock.Now())
	}
}

// first is the step whose notes hold the counts before.
func first(k Kind) Step {
	if k == KindUser {
		return StepFence
	}
	return StepBury
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
	if j.Kind == KindSession {
		err := tombstones.BurySession(ctx, r.Pool, j.Tenant, j.User, j.Session, j.ID, r.Clock.Now(), r.scopes(j, n))
		if err != nil {
			return err
		}
	}
	return r.Pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := hold(ctx, tx, j, StepBury); err != nil {
			return err
		}
		s, err := r.about(ctx, tx, j)
		if err != nil {
			return err
		}
		if j.Kind == KindUser {
			refs, err := provenance.SessionRefs(ctx, tx, j.Tenant, s.numbers)
			if err != nil {
				return err
			}
			if err := tombstones.Bury(ctx, tx, j.Tenant, refs, j.ID, r.Clock.Now()); err != nil {
				return err
			}
			forgotten, err := provenance.ForgetSessions(ctx, tx, j.Tenant, s.numbers, 0)
			if err != nil {
				return err
			}
			n.Sessions += forgotten
			return noteStep(ctx, tx, j, StepBury, *n, true, r.Clock.Now())
		}
		for _, c := range s.target {
			forgotten, err := provenance.ForgetSessions(ctx, tx, j.Tenant, []memd.Number{c.Subject}, c.Session)
			if err != nil {
				return err
			}
			n.Sessions += forgotten
		}
		return noteStep(ctx, tx, j, StepBury, *n, true, r.Clock.Now())
	})
}

// delete deletes batch after batch; each batch and the record of it are one
// transaction, so that the count is right wherever it stops.
func (r *Runner) delete(ctx context.Context, j Job, n *notes) error {
	for {
		var deleted int64
		next := *n
		err := r.Pool.InTx(ctx, func(tx pgx.Tx) error {
			if err := hold(ctx, tx, j, StepDelete); err != nil {
				return err
			}
			s, err := r.about(ctx, tx, j)
			if err != nil {
				return err
			}
			var fallen []memory.Fallen
			if deleted, fallen, err = memory.DeleteBatch(ctx, tx, j.Tenant, s.target, DeleteBatch); err != nil {
				return err
			}
			if err := insertFallen(ctx, tx, j, fallen); err != nil {
				return err
			}
			next.Deleted = n.Deleted + deleted
			return noteStep(ctx, tx, j, StepDelete, next, deleted == 0, r.Clock.Now())
		})
		if err != nil {
			return err
		}
		if *n = next; deleted == 0 {
			return nil
		}
	}
}

// verify counts, asking the tables. When something is left, deletion is done
// again by the next try, and keys are not touched before there is nothing.
func (r *Runner) verify(ctx context.Context, j Job, n *notes) error {
	var after memory.Counts
	var sessions int64
	err := r.Pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := hold(ctx, tx, j, StepVerify); err != nil {
			return err
		}
		s, err := r.about(ctx, tx, j)
		if err != nil {
			return err
		}
		if after, err = memory.Count(ctx, tx, j.Tenant, s.target); err != nil {
			return err
		}
		if sessions, err = provenance.CountLiveSessions(ctx, tx, j.Tenant, s.target); err != nil {
			return err
		}
		if sessions > 0 {
			err = reopenStep(ctx, tx, j, StepBury)
		}
		if after.Memories > 0 {
			err = errors.Join(err, reopenStep(ctx, tx, j, StepDelete))
		}
		if err != nil || sessions > 0 || after.Memories > 0 {
			return err
		}
		n.After, n.Sessions = &after, sessions
		return noteStep(ctx, tx, j, StepVerify, *n, true, r.Clock.Now())
	})
	if err == nil && (after.Memories > 0 || sessions > 0) {
		err = fmt.Errorf("%d rows and %d sessions are left: %w", after.Memories, sessions, errSurvivors)
	}
	return err
}

// errSurvivors stops an erasure before its keys are touched.
var errSurvivors = errors.New("deletion was not complete")

// puncture asks for the keys to go, and ends the life of the user's numbers.
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
		if len(s.paths) > 0 {
			if err := shred.RequestPuncture(ctx, tx, j.Tenant, s.paths, j.ID, now); err != nil {
				return err
			}
		}
		if j.Kind == KindUser {
			if err := provenance.Retire(ctx, tx, j.Tenant, s.numbers, now); err != nil {
				return err
			}
		}
		return noteStep(ctx, tx, j, StepPuncture, notes{}, true, now)
	})
}

// rotate destroys the old keys, together with those of whoever else is being
// forgotten at the time.
func (r *Runner) rotate(ctx context.Context, j Job, n *notes) error {
	var s subject
	err := r.Pool.With(ctx, func(db pg.DB) (err error) {
		s, err = r.about(ctx, db, j)
		return err
	})
	if err != nil {
		return err
	}
	if len(s.paths) > 0 {
		done, err := r.Rotator.Rotate(ctx, j.Tenant)
		if err != nil {
			return err
		}
		if done, err = r.destruction(ctx, j, s, done); err != nil {
			return err
		}
		n.Rotation = &rotated{
			Epoch: done.Epoch, OldVersion: done.OldVersion, DestroyedAt: done.DestroyedAt, DestroyDue: done.DestroyDue,
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

// finish ends the erasure, and for a user lifts the fence, in one transaction:
// a fence that this request lifted is never raised by it again.
func (r *Runner) finish(ctx context.Context, j Job, s Step) error {
	return r.Pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := hold(ctx, tx, j, s); err != nil {
			return err
		}
		now := r.Clock.Now()
		if j.Kind == KindUser {
			if err := tombstones.Lift(ctx, tx, j.Tenant, j.User, j.ID, now); err != nil {
				return err
			}
		}
		if err := noteStep(ctx, tx, j, s, notes{}, true, now); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sqlDone, pg.Args{"tenant": j.Tenant, "id": j.ID, "now": now})
		return err
	})
}

func (r *Runner) done(ctx context.Context, j Job, s Step, n notes) error {
	return r.Pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := hold(ctx, tx, j, s); err != nil {
			return err
		}
		return noteStep(ctx, tx, j, s, n, true, r.Clock.Now())
	})
}
