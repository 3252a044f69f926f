package erasure

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// Receipts signs what an erasure did. Issue runs in the transaction that makes
// the erasure done, or final, so that there is neither without its receipt.
type Receipts interface {
	Issue(ctx context.Context, tx pgx.Tx, e Evidence) error
}

// Evidence is what a receipt tells. It names nobody.
type Evidence struct {
	Job   Job
	Final bool
	// Before and After are counts by store; Found is what the second sweep
	// found and deleted.
	Before, After, Found Counts
	Checks               []memd.Check
	Acks                 []Ack
	Key                  Destruction
	FallenTotal          int64
	// NotRun names what was left out, with the reason.
	NotRun map[string]string
}

var errTarget = errors.New("a purge target did not acknowledge")

// reasonCompaction: rows that were deleted stay in the database's files until
// they are vacuumed, sealed under keys that are gone.
const reasonCompaction = "deleted rows, sealed under destroyed keys, are left to the database's own vacuum"

func (r *Runner) receipt(ctx context.Context, tx pgx.Tx, j Job, final bool) error {
	if r.Receipts == nil {
		return nil
	}
	e, err := evidence(ctx, tx, j)
	if err != nil {
		return err
	}
	e.Final = final
	if err := r.Receipts.Issue(ctx, tx, e); err != nil {
		return fmt.Errorf("issuing a receipt: %w", err)
	}
	return nil
}

// evidence collects from the journal what a receipt tells.
func evidence(ctx context.Context, db pg.DB, j Job) (Evidence, error) {
	now, err := Read(ctx, db, j.Tenant, j.ID)
	if err != nil {
		return Evidence{}, err
	}
	steps, err := readSteps(ctx, db, j.Tenant, j.ID)
	if err != nil {
		return Evidence{}, err
	}
	e := Evidence{
		Job: now, Before: steps[j.Kind.first()].Notes.Before, After: steps[StepVerify].Notes.After,
		Found: steps[StepSweep].Notes.Found, Key: destructionOf(steps), NotRun: map[string]string{"compaction": reasonCompaction},
	}
	for _, s := range j.Kind.Steps() {
		e.Checks = append(e.Checks, steps[s].Notes.Checks...)
		e.Acks = append(e.Acks, steps[s].Notes.Acks...)
	}
	for _, c := range e.Checks {
		if c.Result == memd.ResultNotRun {
			e.NotRun[c.Name] = c.Reason
		}
	}
	e.FallenTotal, err = countFallen(ctx, db, j)
	return e, err
}

const sqlCountFallen = `SELECT count(*) FROM memd.erasure_fallen WHERE tenant_no = @tenant AND request_id = @id`

func countFallen(ctx context.Context, db pg.DB, j Job) (n int64, err error) {
	if err = db.QueryRow(ctx, sqlCountFallen, pg.Args{"tenant": j.Tenant, "id": j.ID}).Scan(&n); err != nil {
		return 0, fmt.Errorf("counting fallen rows: %w", err)
	}
	return n, nil
}
