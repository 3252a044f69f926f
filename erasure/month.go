package erasure

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/sessions"
	"forgettable.dev/memd/tombstones"
)

// A month that expires is an erasure of a kind of its own: of everybody's, by month
// and class. It is accepted by the plan (retention.go), and by nobody for a month
// that is to be kept: the database looks again, then and before each step until the
// key has gone.

const (
	// PartitionPatience is how long the rows of an expired month wait for other
	// tenants that are about to expire it too, so that a partition is dropped and not
	// emptied row by row.
	PartitionPatience = 10 * time.Minute
	// partitionPause is how long it waits each time.
	partitionPause = 2 * time.Second
)

// monthRequest is the request id of a month's expiry: the same for the same month,
// so that it is expired once.
func monthRequest(c memd.Class, m memd.Month) uuid.UUID {
	sum := sha256.Sum256(fmt.Appendf(nil, "memd/expire-month/%s/%s", c, m))
	id := uuid.UUID(sum[:16])
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80
	return id
}

const sqlMonthRefusal = `SELECT coalesce(memd.month_refusal(@tenant, @class, @month, @id, @now), '')`

// refusal says why a month is not to expire, or "".
func refusal(ctx context.Context, db pg.DB, j Job, now time.Time) (string, error) {
	var why string
	err := db.QueryRow(ctx, sqlMonthRefusal, pg.Args{
		"tenant": j.Tenant, "class": j.Class, "month": j.Month, "id": j.ID, "now": now,
	}).Scan(&why)
	if err != nil {
		return "", fmt.Errorf("asking whether a month is kept: %w", err)
	}
	return why, nil
}

// kept reports whether the month is to be kept after all: its policy was changed,
// or a hold was set, before its key went. The caller has the lock of holds.
func kept(ctx context.Context, tx pg.DB, j Job, now time.Time) (bool, error) {
	why, err := refusal(ctx, tx, j, now)
	return why != "", err
}

// buryMonth closes the month to writers and counts what there is.
func (r *Runner) buryMonth(ctx context.Context, j Job, n *notes) error {
	if err := tombstones.BuryMonth(ctx, r.Pool, j.Tenant, j.Class, j.Month, j.ID, r.Clock.Now()); err != nil {
		return err
	}
	return r.Pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := hold(ctx, tx, j, StepBury); err != nil {
			return err
		}
		if n.Before == nil {
			var err error
			if n.Before, err = countAll(ctx, tx, r.stores(), j, nil); err != nil {
				return err
			}
		}
		return noteStep(ctx, tx, j, StepBury, *n, true, r.Clock.Now())
	})
}

// deleteEvents drops the partition if nobody else needs it, waits a while for those
// who soon will not, and otherwise deletes the tenant's own rows. What the partition
// did not hold is deleted in any case.
func (r *Runner) deleteEvents(ctx context.Context, j Job, n *notes) error {
	became, err := r.dropMonth(ctx, j, StepContent)
	if err != nil {
		return err
	}
	if became == sessions.PartitionWaits && r.Clock.Now().Before(j.AcceptedAt.Add(PartitionPatience)) {
		return &notYet{partitionPause}
	}
	return r.delete(ctx, j, StepContent, StageContent, n)
}

// dropMonth drops the partition of a month of sessions, if it can, and says what
// became of it.
func (r *Runner) dropMonth(ctx context.Context, j Job, s Step) (became string, err error) {
	if j.Class != memd.ClassContent {
		return sessions.PartitionAbsent, nil
	}
	err = r.Pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := hold(ctx, tx, j, s); err != nil {
			return err
		}
		became, err = sessions.DropMonth(ctx, tx, j.Month)
		return err
	})
	return became, err
}
