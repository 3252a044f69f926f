package erasure

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/tenants"
)

// Retention is looked after by two jobs of the queue: one that recurs and finds the
// tenants whose policy keeps anything for a time, and one for each of them, which is
// in the queue once and begins to expire what is due.

const (
	// RetentionInterval is how often workers look whether a month is due.
	RetentionInterval = time.Hour
	queueRetention    = "retention"
	retentionWorkers  = 2
	retentionPage     = 200
)

// retentionArgs has no tenant for the job that recurs.
type retentionArgs struct {
	Tenant memd.TenantNo `json:"tenant"`
}

// Kind implements river.JobArgs.
func (retentionArgs) Kind() string { return "memd_retention" }

// InsertOpts implements river.JobArgsWithInsertOpts: one job of each in the queue.
func (retentionArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: queueRetention, MaxAttempts: 10, UniqueOpts: river.UniqueOpts{ByArgs: true, ByPeriod: RetentionInterval}}
}

// recurring is the job that looks for tenants.
func recurring() *river.PeriodicJob {
	return river.NewPeriodicJob(river.PeriodicInterval(RetentionInterval),
		func() (river.JobArgs, *river.InsertOpts) { return retentionArgs{}, nil },
		&river.PeriodicJobOpts{RunOnStart: true})
}

type retentionWorker struct {
	river.WorkerDefaults[retentionArgs]
	w *Worker
}

// Work implements river.Worker.
func (r retentionWorker) Work(ctx context.Context, job *river.Job[retentionArgs]) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w of type %T", errPanic, p)
		}
		if err != nil {
			r.w.c.Logger.WarnContext(ctx, "retention stopped and will be tried again", "tenant_no", job.Args.Tenant, "error", err)
			err = codeError(failureCode(err))
		}
	}()
	if job.Args.Tenant == 0 {
		return r.each(ctx)
	}
	var t tenants.Tenant
	err = r.w.c.Pool.With(ctx, func(db pg.DB) (err error) {
		t, err = tenants.GetByNo(ctx, db, job.Args.Tenant)
		return err
	})
	if err != nil || t.State != tenants.StateActive {
		return err // It was suspended since the job was queued.
	}
	plan, err := RunRetention(ctx, r.w.c.Pool, t, uuid.Nil, r.w.c.Clock.Now())
	if err != nil {
		return err
	}
	for _, e := range plan {
		if e.State == StateAccepted {
			r.w.c.Logger.InfoContext(ctx, "a month expires", "tenant_no", t.No, "class", e.Class.String(), "month", e.Month.String(), "rows", e.Rows)
		}
	}
	return nil
}

// each puts a job into the queue for every active tenant that keeps anything for a
// time: in one on its way out nothing is done on a schedule.
func (r retentionWorker) each(ctx context.Context) error {
	queue := river.ClientFromContext[pgx.Tx](ctx)
	after := ""
	for {
		var page []tenants.Tenant
		err := r.w.c.Pool.With(ctx, func(db pg.DB) (err error) {
			page, err = tenants.List(ctx, db, after, retentionPage)
			return err
		})
		if err != nil {
			return err
		}
		var jobs []river.InsertManyParams
		for _, t := range page {
			after = t.Name
			if t.State == tenants.StateActive && t.Policy.Sessions.Months+t.Policy.Memories.Months > 0 {
				jobs = append(jobs, river.InsertManyParams{Args: retentionArgs{Tenant: t.No}})
			}
		}
		if len(jobs) > 0 {
			if _, err := queue.InsertMany(ctx, jobs); err != nil {
				return fmt.Errorf("enqueueing retention: %w", err)
			}
		}
		if len(page) < retentionPage {
			return nil
		}
	}
}
