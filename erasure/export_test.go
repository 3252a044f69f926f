package erasure

import "context"

// RunStep runs one step of a job, past its journal: as a runner would that read
// the journal long ago.
func RunStep(ctx context.Context, r *Runner, j Job, s Step) error { return r.do(ctx, j, s, notes{}) }
