package erasure

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd/internal/pg"
)

const (
	// rescueAfter is how long a job has been running before it is asked whether
	// anybody still runs it.
	rescueAfter = time.Second
	// reconcileInterval is how often erasures are looked for that the queue has
	// lost: a restore empties it.
	reconcileInterval = 10 * time.Second
	reconcileBatch    = 1000
)

const sqlRunningJobs = `
SELECT j.id, j.attempt, e.request_id FROM memd_jobs.river_job j
JOIN memd.erasures e ON e.tenant_no = (j.args->>'tenant')::bigint AND e.job_no = (j.args->>'job')::bigint
WHERE j.kind = 'memd_erasure' AND j.state = 'running' AND j.attempted_at < clock_timestamp() - @after::interval`

// The attempt in the condition: whoever has taken it up since keeps it.
const sqlRescue = `
UPDATE memd_jobs.river_job SET state = 'available', scheduled_at = clock_timestamp()
WHERE id = @id AND state = 'running' AND attempt = @attempt`

const sqlEnqueueLost = `
SELECT count(*) FILTER (WHERE memd.enqueue_job(e.tenant_no, e.job_no, e.kind, coalesce(e.sweep_at, @now))) FROM (
  SELECT e.tenant_no, e.job_no, e.kind, e.sweep_at FROM memd.erasures e
  WHERE e.state < 4 AND NOT EXISTS (
    SELECT FROM memd_jobs.river_job j
    WHERE j.unique_key = memd.job_key(e.tenant_no, e.job_no) AND j.unique_states IS NOT NULL
      AND memd_jobs.river_job_state_in_bitmask(j.unique_states, j.state))
  ORDER BY e.accepted_at LIMIT @limit) e`

type runningJob struct {
	id      int64
	attempt int64
	request uuid.UUID
}

// rescue gives back to the queue the jobs whose worker is dead: its lock went
// with its connection. The queue itself would notice after hours, because it
// knows of time alone.
func (w *Worker) rescue(ctx context.Context) error {
	conn, err := w.c.Pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	rows, err := conn.Query(ctx, sqlRunningJobs, pg.Args{"after": rescueAfter})
	if err != nil {
		return pg.Classify(fmt.Errorf("looking for orphaned jobs: %w", err))
	}
	running, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (j runningJob, err error) {
		err = row.Scan(&j.id, &j.attempt, &j.request)
		return j, err
	})
	if err != nil {
		return pg.Classify(fmt.Errorf("looking for orphaned jobs: %w", err))
	}
	for _, j := range running {
		id := pg.LockErasure.ForID(j.request)
		held, err := pg.TryLock(ctx, conn.Conn(), id)
		if err != nil {
			return err
		}
		if !held {
			continue // Somebody runs it.
		}
		tag, err := conn.Exec(ctx, sqlRescue, pg.Args{"id": j.id, "attempt": j.attempt})
		if err := pg.Unlock(ctx, conn.Conn(), id); err != nil {
			return err
		}
		if err != nil {
			return pg.Classify(fmt.Errorf("rescuing a job: %w", err))
		}
		if tag.RowsAffected() > 0 {
			w.c.Logger.InfoContext(ctx, "an erasure that nobody runs goes on", "request_id", j.request)
		}
	}
	return nil
}

// reconcile enqueues open erasures that have no job, and says how many.
func (w *Worker) reconcile(ctx context.Context) error {
	var n int64
	err := w.c.Pool.With(ctx, func(db pg.DB) error {
		return db.QueryRow(ctx, sqlEnqueueLost, pg.Args{"now": w.c.Clock.Now(), "limit": reconcileBatch}).Scan(&n)
	})
	if err != nil {
		return fmt.Errorf("enqueueing lost erasures: %w", err)
	}
	if n > 0 {
		w.c.Logger.InfoContext(ctx, "open erasures were not in the queue and are now", "erasures", n)
	}
	return nil
}
