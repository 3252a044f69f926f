package erasure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// A verification is another look of the verifier at an erasure that is done. The
// application asks, the queue carries a number, and a worker, who alone may look
// everywhere, answers in the same row.

// One that is not answered yet answers whoever asks the same meanwhile too: looking
// is work, and asking is not. One that was asked for long ago may have died with its
// worker.
const sqlAskVerification = `
WITH open AS (
  SELECT verification_no FROM memd.verifications
  WHERE tenant_no = @tenant AND request_id = @id AND done_at IS NULL AND asked_at > @since AND budget = @budget::jsonb
  ORDER BY verification_no LIMIT 1
), new AS (
  INSERT INTO memd.verifications (tenant_no, request_id, asked_at, budget)
  SELECT @tenant, @id, @now, @budget::jsonb WHERE NOT EXISTS (SELECT FROM open) RETURNING verification_no
)
SELECT verification_no FROM open UNION ALL SELECT verification_no FROM new`

const sqlAskedVerification = `
SELECT verification_no FROM memd.verifications WHERE tenant_no = @tenant AND request_id = @id AND verification_no = @no`

// verificationDies is after what time, beyond that of its search, nobody waits for
// the answer to an earlier question any more.
const verificationDies = 10 * time.Minute

// answerInterval is how often a question is looked at for an answer.
const answerInterval = 100 * time.Millisecond

const sqlReadVerification = `
SELECT done_at IS NOT NULL, checks FROM memd.verifications WHERE tenant_no = @tenant AND verification_no = @no`

const sqlFindVerification = `SELECT tenant_no, request_id, done_at IS NOT NULL, budget FROM memd.verifications WHERE verification_no = @no`

const sqlAnswerVerification = `
UPDATE memd.verifications SET checks = @checks, done_at = @now WHERE verification_no = @no AND done_at IS NULL`

// errNotDone says that an erasure is not done, so that there is nothing to be
// verified again. It is a memd.ErrErasureUnfinished.
var errNotDone = fmt.Errorf("the erasure is not done: %w", memd.ErrErasureUnfinished)

// Verification is a look of the verifier at an erasure that is done. Done is false,
// and Checks empty, while no worker has answered.
type Verification struct {
	No     int64
	Checks []memd.Check
	Done   bool
}

// Verify has a worker look again at an erasure that is done, and waits as long as the
// caller wants. The budget bounds its searches; zero leaves that to the worker. no, if
// it is not zero, names a look that was asked for before, and is waited for instead;
// one that is not the erasure's is memd.ErrNotFound.
func (s *Service) Verify(ctx context.Context, c Caller, id uuid.UUID, budget memd.SearchBudget, no int64) (v Verification, err error) {
	err = s.Pool.With(ctx, func(db pg.DB) error {
		j, err := Read(ctx, db, c.Tenant, id)
		if err == nil && j.State < StateDone {
			err = errNotDone
		}
		if err != nil {
			return err
		}
		if no != 0 {
			err := db.QueryRow(ctx, sqlAskedVerification, pg.Args{"tenant": c.Tenant, "id": id, "no": no}).Scan(&v.No)
			if errors.Is(err, pgx.ErrNoRows) {
				return memd.ErrNotFound
			}
			return err
		}
		now := s.Clock.Now()
		return db.QueryRow(ctx, sqlAskVerification, pg.Args{
			"tenant": c.Tenant, "id": id, "now": now, "since": now.Add(-verificationDies - budget.Takes()), "budget": budget,
		}).Scan(&v.No)
	})
	if err != nil {
		return v, err
	}
	end := time.NewTimer(s.limit(c))
	defer end.Stop()
	tick := time.NewTicker(answerInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return v, ctx.Err()
		case <-end.C:
			return v, nil
		case <-s.Closing:
			return v, nil
		case <-tick.C:
		}
		err := s.Pool.With(ctx, func(db pg.DB) error {
			return db.QueryRow(ctx, sqlReadVerification, pg.Args{"tenant": c.Tenant, "no": v.No}).Scan(&v.Done, &v.Checks)
		})
		if v.Done || err != nil && !memd.Transient(pg.Classify(err)) {
			return v, err
		}
	}
}

// verificationArgs is a number.
type verificationArgs struct {
	No int64 `json:"no"`
}

// Kind implements river.JobArgs.
func (verificationArgs) Kind() string { return "memd_verification" }

type verificationWorker struct {
	river.WorkerDefaults[verificationArgs]
	w *Worker
}

// Work implements river.Worker.
func (v verificationWorker) Work(ctx context.Context, job *river.Job[verificationArgs]) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w of type %T", errPanic, p)
		}
		if snooze := (*river.JobSnoozeError)(nil); err != nil && !errors.As(err, &snooze) {
			v.w.c.Logger.WarnContext(ctx, "verification stopped and will be tried again", "tries", job.Attempt, "error", err)
			err = codeError(failureCode(err))
		}
	}()
	var tenant memd.TenantNo
	var id uuid.UUID
	var done bool
	var budget memd.SearchBudget
	var j Job
	err = v.w.c.Pool.With(ctx, func(db pg.DB) error {
		err := db.QueryRow(ctx, sqlFindVerification, pg.Args{"no": job.Args.No}).Scan(&tenant, &id, &done, &budget)
		if err != nil || done {
			return err
		}
		j, err = Read(ctx, db, tenant, id)
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) || err == nil && done {
		return nil
	}
	if err != nil {
		return err
	}
	if !v.w.verify(tenant, true) {
		return river.JobSnooze(time.Second)
	}
	defer v.w.verify(tenant, false)
	checks, err := v.w.runner.examine(ctx, j, budget)
	if err != nil {
		return err
	}
	return v.w.c.Pool.With(ctx, func(db pg.DB) error {
		_, err := db.Exec(ctx, sqlAnswerVerification, pg.Args{"no": job.Args.No, "checks": checks, "now": v.w.c.Clock.Now()})
		return err
	})
}

// verify begins or ends a verification of a tenant's, of which there is one at a
// time. It reports whether it may begin.
func (w *Worker) verify(t memd.TenantNo, begin bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if begin && w.verifying[t] {
		return false
	}
	if w.verifying[t] = begin; !begin {
		delete(w.verifying, t)
	}
	return true
}
