package purge

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/eraser"
	"forgettable.dev/memd/internal/pg"
)

// Op is what is asked of a target.
type Op = eraser.Op

// Ops, as the helper for targets has them.
const (
	OpCount  = eraser.OpCount
	OpErase  = eraser.OpErase
	OpVerify = eraser.OpVerify
)

// Ack is what a target answered, for the journal and the receipt. It names
// nobody.
type Ack struct {
	Target   uuid.UUID
	Name     string
	Kind     Kind
	Order    Order
	Required bool
	Op       Op
	Round    int
	// Acknowledged: the target did what it was asked. With CodeUncounted or
	// CodeResidual that is its word alone.
	Acknowledged bool
	Code         Code
	// Before answers Count, Erased answers Erase, After answers Verify. Nil when
	// the target gave no number.
	Before, Erased, After *int64
	// Tries is how often the target was called, from 1; 0 when it was not.
	Tries int
	// ResidualUntil is when what the target holds beyond what it erased is gone,
	// by the retention that its owner declares. Zero when none was declared.
	ResidualUntil time.Time
	At            time.Time
}

// sqlRecordAck: an erase that was acknowledged once stays so, because a later
// failure of the same round does not bring anything back. A later look (count or
// verify) replaces an earlier one.
const sqlRecordAck = `
INSERT INTO memd.purge_acks AS a (tenant_no, request_id, target_id, op, round, name, kind, order_class, required,
  acknowledged, code, count_before, count_after, erased, tries, residual_until, recorded_at)
VALUES (@tenant, @request, @target, @op, @round, @name, @kind, @order_class, @required,
  @acknowledged, @code, @before, @after, @erased, @tries, @residual_until, @at)
ON CONFLICT (tenant_no, request_id, target_id, op, round) DO UPDATE SET
  acknowledged = excluded.acknowledged, code = excluded.code, count_before = excluded.count_before,
  count_after = excluded.count_after, erased = excluded.erased, tries = a.tries + excluded.tries,
  residual_until = excluded.residual_until, recorded_at = excluded.recorded_at
WHERE NOT (a.op = 2 AND a.acknowledged)`

// RecordAck journals what a target answered, whether or not it acknowledged.
// Recording again replaces what was recorded for the operation and round, except
// an erase that was acknowledged.
func RecordAck(ctx context.Context, db pg.DB, tenant memd.TenantNo, request uuid.UUID, a Ack) error {
	var residual *time.Time
	if !a.ResidualUntil.IsZero() {
		residual = &a.ResidualUntil
	}
	_, err := db.Exec(ctx, sqlRecordAck, pg.Args{
		"tenant": tenant, "request": request, "target": a.Target, "op": a.Op, "round": a.Round, "name": a.Name,
		"kind": a.Kind, "order_class": a.Order, "required": a.Required, "acknowledged": a.Acknowledged, "code": string(a.Code),
		"before": a.Before, "after": a.After, "erased": a.Erased, "tries": a.Tries, "residual_until": residual, "at": a.At,
	})
	if err != nil {
		return fmt.Errorf("recording an acknowledgement: %w", err)
	}
	return nil
}

const sqlAcks = `
SELECT target_id, op, round, name, kind, order_class, required, acknowledged, code,
  count_before, count_after, erased, tries, residual_until, recorded_at
FROM memd.purge_acks WHERE tenant_no = @tenant AND request_id = @request
ORDER BY round, order_class, name COLLATE "C", op`

// Acks returns what all targets answered for an erasure: by round, then in the
// order of the calls.
func Acks(ctx context.Context, db pg.DB, tenant memd.TenantNo, request uuid.UUID) ([]Ack, error) {
	rows, err := db.Query(ctx, sqlAcks, pg.Args{"tenant": tenant, "request": request})
	if err != nil {
		return nil, fmt.Errorf("reading acknowledgements: %w", err)
	}
	acks, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Ack, error) {
		var a Ack
		var residual *time.Time
		err := row.Scan(&a.Target, &a.Op, &a.Round, &a.Name, &a.Kind, &a.Order, &a.Required, &a.Acknowledged, &a.Code,
			&a.Before, &a.After, &a.Erased, &a.Tries, &residual, &a.At)
		if residual != nil {
			a.ResidualUntil = residual.UTC()
		}
		a.At = a.At.UTC()
		return a, err
	})
	if err != nil {
		return nil, fmt.Errorf("reading acknowledgements: %w", err)
	}
	return acks, nil
}
