package export

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

const sqlDoomed = `
SELECT tenant_no, export_id, object, size IS NOT NULL FROM memd.export_objects
WHERE doomed AND (@tenant::bigint IS NULL OR tenant_no = @tenant) ORDER BY export_id, size NULLS LAST`

const sqlUnfinished = `SELECT tenant_no, export_id, object, true FROM memd.export_objects WHERE export_id = @id AND size IS NULL`

const sqlGone = `
WITH gone AS (DELETE FROM memd.export_objects WHERE tenant_no = @tenant AND object = @object RETURNING export_id)
UPDATE memd.exports e SET objects_deleted = e.objects_deleted + 1 FROM gone WHERE e.tenant_no = @tenant AND e.export_id = gone.export_id`

const sqlDeleted = `
UPDATE memd.exports e SET state = 4, deleted_at = @now WHERE e.state = 3
  AND NOT EXISTS (SELECT FROM memd.export_objects o WHERE o.tenant_no = e.tenant_no AND o.export_id = e.export_id)`

type doomed struct {
	Tenant         memd.TenantNo
	Export, Object uuid.UUID
	Whole          bool
}

// ErrLeft says that files are left which somebody is writing still, and who will
// see that they must not.
var ErrLeft = errors.New("files of an archive are left")

// Sweep deletes the files that are doomed, of one tenant or, with nil, of all, sees
// that each is gone, and notes archives of which nothing is left. It returns how
// many files it deleted, and ErrLeft, with a tenant, when a file could not be deleted
// because it is being written.
func (w *Worker) Sweep(ctx context.Context, tenant *memd.TenantNo) (int, error) {
	n, busy := 0, 0
	found, err := w.doomed(ctx, sqlDoomed, pg.Args{"tenant": tenant})
	if err != nil {
		return 0, err
	}
	for _, d := range found {
		remove := func() error { return w.remove(ctx, d) }
		if d.Whole {
			err = remove()
		} else if err = w.locked(ctx, d.Export, remove); errors.Is(err, errElsewhere) {
			busy++
			continue
		}
		if err != nil {
			return n, err
		}
		n++
	}
	err = w.Pool.InTx(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sqlDeleted, pg.Args{"now": w.Clock.Now()})
		return err
	})
	if err != nil {
		return n, fmt.Errorf("noting deleted exports: %w", err)
	}
	if n > 0 {
		w.Logger.InfoContext(ctx, "files of exports were deleted", "files", n)
	}
	if busy > 0 && tenant != nil {
		return n, ErrLeft
	}
	return n, nil
}

// clear deletes what crashes left unfinished of an archive. The caller has its lock.
func (c WorkerConfig) clear(ctx context.Context, id uuid.UUID) error {
	found, err := c.doomed(ctx, sqlUnfinished, pg.Args{"id": id})
	for _, d := range found {
		err = errors.Join(err, c.remove(ctx, d))
	}
	return err
}

func (c WorkerConfig) doomed(ctx context.Context, sql string, args pg.Args) (found []doomed, err error) {
	err = c.Pool.With(ctx, func(db pg.DB) error {
		rows, err := db.Query(ctx, sql, args)
		if err == nil {
			found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[doomed])
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("looking for files to delete: %w", err)
	}
	return found, nil
}

// remove deletes a file, sees that it is gone, and only then forgets its row.
func (c WorkerConfig) remove(ctx context.Context, d doomed) error {
	if c.Store == nil {
		return fmt.Errorf("files of exports are to be deleted, and no place of exports is set: %w", memd.ErrExportsUnavailable)
	}
	if err := c.Store.Delete(ctx, d.Object); err != nil {
		return err
	}
	switch there, err := c.Store.Exists(ctx, d.Object); {
	case err != nil:
		return err
	case there:
		return fmt.Errorf("a deleted file is still there: %w", memd.ErrExportsUnavailable)
	}
	return c.Pool.InTx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, sqlGone, pg.Args{"tenant": d.Tenant, "object": d.Object}); err != nil {
			return fmt.Errorf("noting a deleted file: %w", err)
		}
		return nil
	})
}

const sqlKnown = `SELECT o.object FROM memd.export_objects o WHERE o.object = ANY (@objects::uuid[])`

// orphanPage is how many objects are looked up at once.
const orphanPage = 1000

// SweepOrphans deletes objects that no row knows: a restored database may have lost
// theirs. Rows are there before their objects, so one that is listed first and then
// has no row never gets one.
func (w *Worker) SweepOrphans(ctx context.Context) error {
	if w.Store == nil {
		return nil
	}
	var page []uuid.UUID
	look := func() error {
		known := map[uuid.UUID]bool{}
		err := w.Pool.With(ctx, func(db pg.DB) error {
			rows, err := db.Query(ctx, sqlKnown, pg.Args{"objects": page})
			if err != nil {
				return err
			}
			var id uuid.UUID
			_, err = pgx.ForEachRow(rows, []any{&id}, func() error { known[id] = true; return nil })
			return err
		})
		if err != nil {
			return fmt.Errorf("looking for objects of nobody: %w", err)
		}
		for _, id := range page {
			if known[id] {
				continue
			}
			if err := w.Store.Delete(ctx, id); err != nil {
				return err
			}
			w.Logger.WarnContext(ctx, "an object of no export was deleted", "object", id)
		}
		page = page[:0]
		return nil
	}
	err := w.Store.List(ctx, func(id uuid.UUID) error {
		if page = append(page, id); len(page) < orphanPage {
			return nil
		}
		return look()
	})
	if err == nil {
		err = look()
	}
	return err
}
