package erasure

import (
	"context"
	"log/slog"
	"time"

	"forgettable.dev/memd/compact"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/purge"
)

// RunStep runs one step of a job whatever the journal says: as a runner does
// that read the journal long ago.
func RunStep(ctx context.Context, r *Runner, j Job, s Step) error {
	err := r.Pool.With(ctx, func(db pg.DB) error { return beginStep(ctx, db, j, s, r.Clock.Now()) })
	if err != nil {
		return err
	}
	return r.do(ctx, j, s, notes{})
}

// NewQueueLog is newQueueLog.
func NewQueueLog(to slog.Handler, now func() time.Time) slog.Handler { return newQueueLog(to, now) }

// CallTargets calls the stores outside memd that come after the memories.
func CallTargets(ctx context.Context, r *Runner, j Job) error {
	return r.callTargets(ctx, j, roundFirst, purge.AfterMemory)
}

// CompactionReason is the receipts' word for a failure of a compaction.
func CompactionReason(f compact.Failure) string { return reasonOf(f) }
