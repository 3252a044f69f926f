package artifacts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// SweepInterval is how often a worker looks for saves that broke off.
const SweepInterval = 5 * time.Minute

// Sweeper sweeps until it is told to stop. All of it is required. Any number of
// them may run.
type Sweeper struct {
	// Pool is of the worker's role.
	Pool   *pg.Pool
	Clock  memd.Clock
	Logger *slog.Logger
}

// Run sweeps at once and every SweepInterval until ctx ends. A sweep that fails
// is logged, and the next one makes up for it.
func (s *Sweeper) Run(ctx context.Context) {
	tick := time.NewTicker(SweepInterval)
	defer tick.Stop()
	for {
		swept, err := Sweep(ctx, s.Pool, s.Clock.Now())
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.Logger.WarnContext(ctx, "saves of artifacts that broke off were not swept", "error", err)
		case swept > 0:
			s.Logger.InfoContext(ctx, "saves of artifacts that broke off were swept", "saves", swept)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Abandoned is how long a save may be silent before Sweep takes it. A save
// under way says that it is alive every minute that something arrives, and the
// server cuts off a stream that is silent for as long.
const Abandoned = time.Hour

const sqlPickAbandoned = `
SELECT tenant_no, subject_no, session_no, version_id FROM memd.artifact_versions v
WHERE version IS NULL AND touched_at < @before
  AND EXISTS (SELECT FROM memd.active_tenants a WHERE a.tenant_no = v.tenant_no) ORDER BY touched_at LIMIT 1 FOR UPDATE SKIP LOCKED`

// Sweep deletes saves that broke off more than Abandoned ago, and what a Delete
// left, in bounded transactions, as the worker's role. It returns how many saves
// are gone. In tenants that are not active nothing is done on a schedule. Safe to run at any time and in several processes at once.
func Sweep(ctx context.Context, pool *pg.Pool, now time.Time) (int64, error) {
	var swept int64
	for {
		var found, done bool
		err := pool.InTx(ctx, func(tx pgx.Tx) error {
			var tenant memd.TenantNo
			var owner memd.Contribution
			var save uuid.UUID
			err := tx.QueryRow(ctx, sqlPickAbandoned, pg.Args{"before": now.Add(-Abandoned)}).Scan(&tenant, &owner.Subject, &owner.Session, &save)
			if errors.Is(err, pgx.ErrNoRows) {
				return nil
			} else if err != nil {
				return fmt.Errorf("finding abandoned saves: %w", err)
			}
			found = true
			done, err = discardBatch(ctx, tx, tenant, owner, []uuid.UUID{save})
			return err
		})
		if err != nil || !found {
			return swept, err
		}
		if done {
			swept++
		}
	}
}
