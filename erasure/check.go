package erasure

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// Verifier is the witness of an erasure: it shares no code with what deletes.
type Verifier interface {
	// Draw takes probes from what is about to go, and shows that it finds them:
	// the positive control of what Verify says. What it drew is sealed under the
	// job's leaf.
	Draw(ctx context.Context, e memd.Examination) (memd.Probes, error)
	// Verify looks for what must be gone, with the probes of Draw.
	Verify(ctx context.Context, e memd.Examination, p memd.Probes) ([]memd.Check, error)
}

const (
	reasonNoVerifier = "not_configured"
	checkVerifier    = "verifier"
)

const sqlKeepProbes = `
UPDATE memd.erasures SET sealed_probes = @probes WHERE tenant_no = @tenant AND request_id = @id`

const sqlReadSealed = `
SELECT sealed_user_id, sealed_session_id, sealed_probes FROM memd.erasures WHERE tenant_no = @tenant AND request_id = @id`

// errFailed says that the verifier found what must be gone. The erasure is not
// done, and says so.
var errFailed = errors.New("verification failed")

// notRun is the check that nobody made.
func notRun() []memd.Check {
	return []memd.Check{{Name: checkVerifier, Result: memd.ResultNotRun, Reason: reasonNoVerifier}}
}

// draw has the verifier draw its probes, before anything is deleted.
func (r *Runner) draw(ctx context.Context, j Job, n *notes) error {
	var probes memd.Probes
	if r.Verifier != nil {
		e, err := r.examination(ctx, j)
		if err != nil {
			return err
		}
		if probes, err = r.Verifier.Draw(ctx, e); err != nil {
			return fmt.Errorf("drawing probes: %w", err)
		}
		n.Control = probes.Before
	}
	return r.Pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := hold(ctx, tx, j, StepDraw); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlKeepProbes, pg.Args{"tenant": j.Tenant, "id": j.ID, "probes": probes.Sealed}); err != nil {
			return err
		}
		return noteStep(ctx, tx, j, StepDraw, *n, true, r.Clock.Now())
	})
}

// check has the verifier look; the second time the tables are counted again
// before. What fails stops the erasure where it is, and everything that is known
// to be its own is deleted again before the next look.
func (r *Runner) check(ctx context.Context, j Job, s Step, n *notes) error {
	if s == StepRecheck {
		if err := r.recount(ctx, j, n); err != nil {
			return err
		}
	}
	err := r.removeSurvivors(ctx, j, s)
	if err != nil {
		return err
	}
	if n.Checks, err = r.examine(ctx, j, memd.SearchBudget{}); err != nil {
		return err
	}
	failed := failedOf(n.Checks)
	if failed == nil {
		return r.done(ctx, j, s, *n)
	}
	err = r.Pool.InTx(ctx, func(tx pgx.Tx) error { // So that it can be read what failed.
		if err := hold(ctx, tx, j, s); err != nil {
			return err
		}
		if err := noteStep(ctx, tx, j, s, *n, false, r.Clock.Now()); err != nil {
			return err
		}
		return r.again(ctx, tx, j, s)
	})
	if err != nil {
		return err
	}
	return failed
}

// failedOf names the checks that failed; nil when none did.
func failedOf(checks []memd.Check) error {
	var failed []string
	for _, c := range checks {
		if c.Result == memd.ResultFail {
			failed = append(failed, c.Name)
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w", strings.Join(failed, ", "), errFailed)
}

// again has what the erasure knows to be its own deleted once more by the next try,
// before the next look: it may have come past the guard since.
func (r *Runner) again(ctx context.Context, tx pg.DB, j Job, s Step) error {
	if s == StepRecheck {
		return errors.Join(compactAgain(ctx, tx, j, StepCompacted), reopenStep(ctx, tx, j, StepSweep))
	}
	return errors.Join(r.reopen(ctx, tx, j, 1, 0), compactAgain(ctx, tx, j, StepCompact), reopenStep(ctx, tx, j, StepVerify))
}

// recount asks the tables after the second sweep. What is left is swept again.
func (r *Runner) recount(ctx context.Context, j Job, n *notes) error {
	var left int64
	err := r.Pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := hold(ctx, tx, j, StepRecheck); err != nil {
			return err
		}
		s, err := r.about(ctx, tx, j)
		if err != nil {
			return err
		}
		if n.After, err = countAll(ctx, tx, r.stores(), j, s.target); err != nil {
			return err
		}
		if left = n.After.total(); left == 0 {
			return nil
		}
		return reopenStep(ctx, tx, j, StepSweep)
	})
	if err == nil && left > 0 {
		err = fmt.Errorf("%d rows are left: %w", left, errSurvivors)
	}
	return err
}

// examine asks the verifier, without changing anything.
func (r *Runner) examine(ctx context.Context, j Job, budget memd.SearchBudget) ([]memd.Check, error) {
	if r.Verifier == nil {
		return notRun(), nil
	}
	e, err := r.examination(ctx, j)
	if err != nil {
		return nil, err
	}
	e.Budget = budget
	var p memd.Probes
	err = r.Pool.With(ctx, func(db pg.DB) error {
		steps, err := readSteps(ctx, db, j.Tenant, j.ID)
		if err != nil {
			return err
		}
		p.Before = steps[StepDraw].Notes.Control
		e.KeysLater = e.KeysLater || e.Whole && !steps[StepDestroy].Done
		var user, session []byte
		return db.QueryRow(ctx, sqlReadSealed, pg.Args{"tenant": j.Tenant, "id": j.ID}).Scan(&user, &session, &p.Sealed)
	})
	if err != nil {
		return nil, err
	}
	checks, err := r.Verifier.Verify(ctx, e, p)
	if err != nil {
		return nil, fmt.Errorf("verifying: %w", err)
	}
	return checks, nil
}

func (r *Runner) examination(ctx context.Context, j Job) (memd.Examination, error) {
	e := memd.Examination{
		Tenant: j.Tenant, Job: j.No, Content: j.Kind == KindContent, Whole: j.Kind == KindTenant,
		Class: j.Class, Month: j.Month,
		KeysLater: j.Kind == KindContent && j.State < StateDone, Final: j.State >= StateDone,
	}
	err := r.Pool.With(ctx, func(db pg.DB) error {
		s, err := r.about(ctx, db, j)
		e.Target = s.target
		return err
	})
	return e, err
}

// remembered opens what the job keeps sealed of whom it is about: for the stores
// outside memd, who know people by their ids. Without keys it is nothing.
func (r *Runner) remembered(ctx context.Context, j Job) (userID, sessionID string, err error) {
	var user, session, probes []byte
	err = r.Pool.With(ctx, func(db pg.DB) error {
		return db.QueryRow(ctx, sqlReadSealed, pg.Args{"tenant": j.Tenant, "id": j.ID}).Scan(&user, &session, &probes)
	})
	if err != nil || r.Keys == nil || len(user)+len(session) == 0 {
		return "", "", err
	}
	k, err := r.Keys(ctx, j.Tenant)
	if err != nil {
		return "", "", err
	}
	u, err := openUnder(k, j.No, fieldUser, user)
	if err != nil {
		return "", "", err
	}
	x, err := openUnder(k, j.No, fieldSession, session)
	return string(u), string(x), err
}
