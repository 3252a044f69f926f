package erasure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/purge"
	"forgettable.dev/memd/tombstones"
)

// The queues. A tenant's purge has one of its own, so that nobody waits behind
// it, and so have further looks of the verifier.
const (
	queueErasures      = "erasures"
	queueTenants       = "tenants"
	queueVerifications = "verifications"
)

// jobArgs is all that the queue knows of an erasure: two numbers.
type jobArgs struct {
	Job    memd.Number   `json:"job"`
	Tenant memd.TenantNo `json:"tenant"`
}

// Kind implements river.JobArgs.
func (jobArgs) Kind() string { return "memd_erasure" }

// worker carries out jobs of the queue.
type jobWorker struct {
	river.WorkerDefaults[jobArgs]
	w *Worker
}

// Timeout implements river.Worker: a purge takes as long as it takes, and a
// worker that dies is found by its lock.
func (jobWorker) Timeout(*river.Job[jobArgs]) time.Duration { return -1 }

// NextRetry implements river.Worker.
func (jobWorker) NextRetry(j *river.Job[jobArgs]) time.Time {
	return time.Now().Add(backoff(j.Attempt))
}

func backoff(tries int) time.Duration {
	wait := min(MaxBackoff, 100*time.Millisecond<<min(max(tries-1, 0), 10))
	return wait/2 + rand.N(wait/2+1)
}

// codeError is the only kind of error that the queue sees, because it stores
// what it is told.
type codeError string

// Error implements error.
func (e codeError) Error() string { return string(e) }

// failureCode names the reason of a failure in a word that says nothing about
// anybody.
func failureCode(err error) string {
	for _, c := range []struct {
		err  error
		code string
	}{
		{errSurvivors, "survivors"},
		{errFailed, "verification"},
		{errTarget, "target"},
		{memd.ErrKeyUnavailable, "key_service"},
		{memd.ErrLedgerUnavailable, "ledger"},
		{memd.ErrDatabaseBusy, "database_busy"},
		{memd.ErrDatabaseUnavailable, "database"},
		{memd.ErrErasureUnfinished, "unconfirmed"},
		{memd.ErrTenantInactive, "tenant_state"},
		{memd.ErrShredded, "shredded"},
		{memd.ErrCorrupt, "corrupt"},
		{memd.ErrStale, "stale"},
		{errPanic, "panic"},
	} {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	return "internal"
}

var errPanic = errors.New("panic")

// Work implements river.Worker.
func (jw jobWorker) Work(ctx context.Context, job *river.Job[jobArgs]) error {
	var j Job
	err := jw.w.c.Pool.With(ctx, func(db pg.DB) (err error) {
		j, err = readByNo(ctx, db, job.Args.Tenant, job.Args.Job)
		return err
	})
	var p Progress
	switch {
	case errors.Is(err, memd.ErrNotFound):
		return nil // It went with a restore.
	case err == nil:
		p, err = jw.w.exclusively(ctx, j)
	}
	switch {
	case ctx.Err() != nil:
		return river.JobSnooze(0) // For whoever comes next.
	case errors.Is(err, errElsewhere):
		return river.JobSnooze(PollInterval)
	case errors.Is(err, tombstones.ErrHeld):
		return river.JobSnooze(heldPause) // Two requests for one user take turns; that is no failure.
	case errors.Is(err, purge.ErrBusy):
		return river.JobSnooze(pause(job.Metadata, busyPause, busyPauseMost)) // Nor is it when others call targets.
	case err != nil:
		jw.w.stopped(ctx, j, job.Attempt, err)
		return codeError(failureCode(err))
	case p.Held:
		return river.JobSnooze(pause(job.Metadata, time.Second, HoldPause)) // A release that it misses wakes nobody.
	case p.Wait > 0:
		return river.JobSnooze(p.Wait)
	}
	return nil
}

// pause is how long a job waits that was put off, longer each time.
func pause(metadata []byte, first, most time.Duration) time.Duration {
	var m struct {
		Snoozes int `json:"snoozes"`
	}
	_ = json.Unmarshal(metadata, &m) // Without it the first pause is as good.
	return min(most, first<<min(m.Snoozes, 10))
}

// exclusively runs an erasure under its lock, which dies with this process. It
// leaves an erasure alone that another worker has, or has done.
func (w *Worker) exclusively(ctx context.Context, j Job) (p Progress, err error) {
	conn, err := w.c.Pool.Conn(ctx)
	if err != nil {
		return p, err
	}
	defer conn.Release()
	id := pg.LockErasure.ForID(j.ID)
	held, err := pg.TryLock(ctx, conn.Conn(), id)
	if err != nil {
		return p, err
	}
	if !held {
		return p, errElsewhere
	}
	defer func() { _ = pg.Unlock(ctx, conn.Conn(), id) }()
	// What a panic says may be content, and the queue would store it.
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w of type %T", errPanic, v)
		}
	}()
	// It was read before it was locked.
	if j, err = Read(ctx, conn, j.Tenant, j.ID); err != nil {
		return p, err
	}
	if j.State == StateFinal {
		return Progress{Over: true}, nil
	}
	p, err = w.runner.Run(ctx, j)
	if err == nil && j.Tries > 0 {
		_, err = conn.Exec(ctx, sqlGotOn, pg.Args{"tenant": j.Tenant, "id": j.ID})
	}
	if p.Done && w.c.Metrics.Done != nil {
		w.c.Metrics.Done(j.Kind, w.c.Clock.Now().Sub(j.AcceptedAt))
	}
	return p, err
}

// errElsewhere says that another worker runs the erasure.
var errElsewhere = errors.New("another worker runs it")

const sqlGotOn = `
UPDATE memd.erasures SET tries = 0, failure = '' WHERE tenant_no = @tenant AND request_id = @id`

const sqlStopped = `
UPDATE memd.erasures SET tries = tries + 1, failed_at = @now, failure = @code
WHERE tenant_no = @tenant AND request_id = @id AND state < 4`

// stopped records and reports an erasure that could not go on.
func (w *Worker) stopped(ctx context.Context, j Job, tries int, err error) {
	if w.c.Metrics.Failed != nil {
		w.c.Metrics.Failed(j.Kind)
	}
	noted := w.c.Pool.InTx(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sqlStopped, pg.Args{"tenant": j.Tenant, "id": j.ID, "now": w.c.Clock.Now(), "code": failureCode(err)})
		return err
	})
	w.c.Logger.WarnContext(ctx, "erasure stopped and will be tried again", "tenant_no", j.Tenant,
		"request_id", j.ID, "user", j.User, "kind", j.Kind.String(), "tries", tries, "error", errors.Join(err, noted))
}

// queue makes the client of the job queue.
func (w *Worker) queue() (*river.Client[pgx.Tx], error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, jobWorker{w: w})
	river.AddWorker(workers, verificationWorker{w: w})
	river.AddWorker(workers, retentionWorker{w: w})
	c, err := river.NewClient(riverpgxv5.New(w.c.Pool.Raw()), &river.Config{
		Schema:  pg.JobsSchema,
		Workers: workers,
		Queues: map[string]river.QueueConfig{
			queueErasures: {MaxWorkers: Concurrency}, queueTenants: {MaxWorkers: w.c.Purges}, queueVerifications: {MaxWorkers: verifications},
			queueRetention: {MaxWorkers: retentionWorkers},
		},
		PeriodicJobs:        []*river.PeriodicJob{recurring()},
		FetchCooldown:       fetchCooldown,
		FetchPollInterval:   fetchInterval,
		JobTimeout:          -1,
		ReindexerIndexNames: []string{}, // The worker owns none.
		Logger:              slog.New(newQueueLog(w.c.Logger.Handler(), time.Now)),
		// What is rescued by lock is rescued long before.
		RescueStuckJobsAfter:        24 * time.Hour,
		CompletedJobRetentionPeriod: time.Hour,
		DiscardedJobRetentionPeriod: time.Hour,
	})
	if err != nil {
		return nil, fmt.Errorf("opening the job queue: %w", err)
	}
	return c, nil
}
