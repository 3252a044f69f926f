package compact

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd/internal/pg"
)

// watch looks, while a compaction runs on another connection, how far it is and
// whether it is to stop, and cancels it then: a VACUUM that is cancelled leaves the
// table as it was, and lets go of its lock.
func (r *Runner) watch(ctx context.Context, c Compaction, pid uint32, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(WatchInterval)
	defer tick.Stop()
	for {
		stop, err := r.look(ctx, c, pid)
		switch {
		case ctx.Err() != nil:
			return
		case stop != nil:
			cancel(stop)
			return
		case err != nil:
			r.c.Logger.WarnContext(ctx, "the progress of a compaction was not noted", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

const sqlNoteProgress = `
UPDATE memd.compaction_tables SET phase = @phase, blocks = @blocks, blocks_total = @total WHERE compaction_no = @no AND state = 2`

const sqlShare = `
SELECT coalesce(sum(bytes_before) FILTER (WHERE state > 2) / nullif(sum(bytes_before), 0), 0)::float8
FROM memd.compaction_tables WHERE compaction_no = @no`

// look notes the progress, and returns why the compaction is to stop.
func (r *Runner) look(ctx context.Context, c Compaction, pid uint32) (stop, err error) {
	phase, blocks, total := "waiting", int64(0), int64(0)
	err = r.c.Maintain.pool.With(ctx, func(db pg.DB) error {
		err := db.QueryRow(ctx, sqlPhase, pg.Args{"pid": int32(pid)}).Scan(&phase, &blocks, &total)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	err = r.c.Pool.With(ctx, func(db pg.DB) error {
		_, err := db.Exec(ctx, sqlNoteProgress, pg.Args{"no": c.No, "phase": phase, "blocks": blocks, "total": total})
		if err != nil {
			return err
		}
		if r.c.Metrics.Progress != nil {
			var share float64
			if err := db.QueryRow(ctx, sqlShare, pg.Args{"no": c.No}).Scan(&share); err != nil {
				return err
			}
			r.c.Metrics.Progress(c.Mode, share)
		}
		s, err := ReadSettings(ctx, db)
		if err != nil {
			return err
		}
		if s.Paused {
			stop = errPaused
		} else if open, _ := s.Open(r.c.Clock.Now()); !open && c.Cause != CauseOperator {
			stop = errShut
		}
		return nil
	})
	return stop, err
}
