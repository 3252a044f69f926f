package erasure

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/compact"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory/sketches"
	"forgettable.dev/memd/receipts"
	"forgettable.dev/memd/tenants"
)

const (
	// MaxCompactionWait is how long a final receipt waits for a compaction after the
	// second sweep: longer than a window of once a week stays shut, and well within
	// the month in which an erasure is due.
	MaxCompactionWait = 8 * 24 * time.Hour
	// sketchPause is how long it waits for who reads sketches that are to go.
	sketchPause = time.Second
	// compactionPause is how often it looks whether there is one by now.
	compactionPause = time.Second
)

// compacted is a compaction as an erasure's journal tells it.
type compacted struct {
	No int64 `json:"no"`
	// Reason is why there was none, or "".
	Reason   string        `json:"reason,omitempty"`
	Mode     compact.Mode  `json:"mode,omitempty"`
	Started  time.Time     `json:"started,omitzero"`
	Finished time.Time     `json:"finished,omitzero"`
	Blocked  time.Duration `json:"blocked,omitempty"`
	Before   int64         `json:"before,omitempty"` // bytes
	After    int64         `json:"after,omitempty"`
	Tables   int64         `json:"tables,omitempty"`
}

// askCompaction asks for a compaction of what the erasure has deleted. It does not
// wait for it: the tables are everybody's, a vacuum of large ones takes minutes, and
// one serves all erasures that ask meanwhile.
//
// Sketches of scopes that held what was deleted were taken out of use with the fence.
// Their tables go here, and the step waits for whoever is still reading one.
func (r *Runner) askCompaction(ctx context.Context, j Job, n *notes) error {
	var kept int
	err := r.Pool.With(ctx, func(db pg.DB) (err error) {
		kept, err = sketches.Drop(ctx, db)
		return err
	})
	if err != nil {
		return err
	}
	if kept > 0 {
		return &notYet{sketchPause}
	}
	return r.Pool.InTx(ctx, func(tx pgx.Tx) (err error) {
		if err := hold(ctx, tx, j, StepCompact); err != nil {
			return err
		}
		if n.Compaction, err = r.ask(ctx, tx, j); err != nil {
			return err
		}
		return noteStep(ctx, tx, j, StepCompact, *n, true, r.Clock.Now())
	})
}

const sqlCompactAgain = `
UPDATE memd.erasure_steps SET counts = counts - 'compaction', done = done AND step <> @step,
  finished_at = CASE WHEN step <> @step THEN finished_at END
WHERE tenant_no = @tenant AND request_id = @id AND step IN (25, 26)`

// compactAgain forgets what was asked for, because more is deleted after it, and
// reopens the step.
func compactAgain(ctx context.Context, tx pg.DB, j Job, s Step) error {
	_, err := tx.Exec(ctx, sqlCompactAgain, pg.Args{"tenant": j.Tenant, "id": j.ID, "step": s})
	return err
}

func (r *Runner) ask(ctx context.Context, tx pg.DB, j Job) (*compacted, error) {
	if !r.Compacts {
		return nil, nil
	}
	t, err := tenants.GetByNo(ctx, tx, j.Tenant)
	if err != nil {
		return nil, err
	}
	mode := compact.Vacuum
	if t.Policy.Compaction == tenants.CompactionRewrite {
		mode = compact.Rewrite
	}
	no, err := compact.Ask(ctx, tx, mode, compact.CauseErasure, uuid.Nil, r.Clock.Now())
	return &compacted{No: no}, err
}

// awaitCompaction waits until a compaction that began after the last deletion is
// over, or will not come. What did not run is told by the receipt, with how much is
// left: it is sealed under a key that is gone, so nothing is held up for it.
func (r *Runner) awaitCompaction(ctx context.Context, j Job, n *notes) error {
	var wait time.Duration
	err := r.Pool.InTx(ctx, func(tx pgx.Tx) (err error) {
		if err := hold(ctx, tx, j, StepCompacted); err != nil {
			return err
		}
		if n.Compaction == nil {
			if n.Compaction, err = r.asked(ctx, tx, j); err != nil {
				return err
			}
		}
		if n.Compaction != nil && n.Compaction.Reason == "" {
			if wait, err = r.compaction(ctx, tx, j, n.Compaction); err != nil {
				return err
			}
		}
		return noteStep(ctx, tx, j, StepCompacted, *n, wait == 0, r.Clock.Now())
	})
	if err == nil && wait > 0 {
		err = &notYet{wait}
	}
	return err
}

// asked is the compaction that was asked for when all was deleted, unless the second
// sweep deleted more.
func (r *Runner) asked(ctx context.Context, tx pg.DB, j Job) (*compacted, error) {
	steps, err := readSteps(ctx, tx, j.Tenant, j.ID)
	if err != nil {
		return nil, err
	}
	if c := steps[StepCompact].Notes.Compaction; c != nil && r.Compacts && steps[StepSweep].Notes.Found.total() == 0 {
		return c, nil
	}
	return r.ask(ctx, tx, j)
}

// compaction notes how a compaction went, or returns how long to wait for it.
func (r *Runner) compaction(ctx context.Context, tx pg.DB, j Job, c *compacted) (wait time.Duration, err error) {
	now, err := compact.Read(ctx, tx, c.No)
	switch {
	case errors.Is(err, memd.ErrNotFound): // The journal does not keep it for ever.
		c.Reason = "unavailable"
		return 0, nil
	case err != nil:
		return 0, err
	case now.State < compact.StateDone && r.Clock.Now().Before(j.SweepAt.Add(MaxCompactionWait)):
		return compactionPause, nil
	case now.State < compact.StateDone:
		c.Reason = "timeout"
	case now.State == compact.StateFailed:
		c.Reason = reasonOf(now.Failure)
	}
	c.Mode, c.Started, c.Finished, c.Blocked, c.Tables = now.Mode, now.StartedAt, now.FinishedAt, now.Blocked(), int64(len(now.Tables))
	c.Before, c.After = now.Bytes()
	return 0, nil
}

// reasonOf is the receipts' word for a failure.
func reasonOf(f compact.Failure) string {
	if f == compact.NoRight {
		return "no_permission"
	}
	return string(f)
}

// compactionOf tells of the compaction, or why there was none, and what of deleted
// rows is left in the tables' files.
func compactionOf(rec *receipts.Receipt, steps map[Step]stepRow) {
	before, after := residueOf(steps[StepCheck].Notes.Checks), residueOf(steps[StepRecheck].Notes.Checks)
	left := before
	if rec.Stage == receipts.Final {
		left = after
	}
	pages := receipts.Residual{Kind: receipts.ResidualPages, Provider: receipts.ProviderMemd, RetentionDays: -1}
	if left != nil {
		pages.Count = left.CountAfter
	}
	if left == nil || left.Result != memd.ResultPass {
		rec.Residuals = append(rec.Residuals, pages)
	}
	asked, c := steps[StepCompact].Notes.Compaction, steps[StepCompacted].Notes.Compaction
	reason := receipts.Reason("not_configured")
	switch {
	case c != nil && c.Reason == "":
		rec.Compaction = &receipts.Compaction{
			Mode: receipts.CompactionMode(c.Mode.String()), Started: c.Started, Finished: c.Finished, BlockedMicros: c.Blocked.Microseconds(),
			BytesBefore: c.Before, BytesAfter: c.After, Tables: c.Tables, ResidueBefore: countOf(before), ResidueAfter: countOf(after),
		}
		return
	case c != nil:
		reason = receipts.Reason(c.Reason)
	case asked != nil:
		reason = "pending"
	}
	rec.NotRun = append(rec.NotRun, receipts.NotRun{What: string(receipts.OmittedCompaction), Reason: reason})
}

// residueOf is the look into raw pages, or nil when there was none.
func residueOf(checks []memd.Check) *memd.Check {
	for _, c := range checks {
		if c.Name == checkResidue && (c.Result != memd.ResultNotRun || c.Scanned > 0) {
			return &c
		}
	}
	return nil
}

const checkResidue = "residue"

func countOf(c *memd.Check) *int64 {
	if c == nil {
		return nil
	}
	return &c.CountAfter
}
