package erasure

import (
	"context"

	"forgettable.dev/memd/internal/pg"
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
