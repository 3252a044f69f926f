package journal

import (
	"context"
	"errors"
	"fmt"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

const sqlNoteAll = `SELECT memd.note_all()`

// Rebuild writes a ledger that was lost anew, from the database: every fact that
// it knows, as the beginning of a journal. The Config's Pool is the owner's, and
// its Rebuilding is set. trees writes what else a ledger holds. It is refused with
// memd.ErrExists while any location still has the database's last record, or a
// later one: then there is something to mirror, or to restore. Safe to repeat.
//
// What only the lost ledger knew stays lost: with it goes the proof that the
// database had not been rolled back before.
func (j *Journal) Rebuild(ctx context.Context, trees func(ctx context.Context, db pg.DB) error) (facts int64, err error) {
	var p Position
	err = j.c.Pool.With(ctx, func(db pg.DB) (err error) {
		p, err = ReadPosition(ctx, db)
		return err
	})
	if err != nil {
		return 0, err
	}
	for _, seq := range []int64{p.Seq, p.Seq + 1} {
		_, err := first(ctx, j.c.Ledgers, RecordName(seq))
		if err == nil {
			return 0, fmt.Errorf("record %d is in a ledger, so that not all is lost: run memd ledger mirror, or memd restore: %w", seq, memd.ErrExists)
		}
		if !errors.Is(err, memd.ErrNotFound) {
			return 0, err
		}
	}
	err = j.c.Pool.With(ctx, func(db pg.DB) error {
		if err := trees(ctx, db); err != nil {
			return err
		}
		return db.QueryRow(ctx, sqlNoteAll).Scan(&facts)
	})
	if err != nil {
		return 0, fmt.Errorf("telling everything again: %w", err)
	}
	if p.Known == p.Server {
		// The generation that is in use has been given out already.
		if err := j.putGeneration(ctx, p, p.Generation); err != nil && !errors.Is(err, memd.ErrExists) {
			return 0, err
		}
	} else if err := j.adopt(ctx, p); err != nil {
		return 0, err
	}
	return facts, j.Flush(ctx)
}
