package export

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// Forgotten is what an erasure reached: archives, the files of them that are gone,
// and how often links to them had been followed before.
type Forgotten struct {
	Archives  int64 `json:"archives"`
	Files     int64 `json:"files"`
	LinksUsed int64 `json:"links_used"`
}

const sqlForget = `SELECT memd.forget_in_exports(@tenant, @request, @kind, @ref, @now)`

const sqlForgotten = `
SELECT count(*), coalesce(sum(files), 0)::bigint, coalesce(sum(links_used), 0)::bigint
FROM memd.export_erasures WHERE tenant_no = @tenant AND request_id = @request`

// Forget takes out of every archive of a tenant whom or what an erasure is about,
// its kind as the erasure has it, and returns when the files are gone, and were
// seen to be; or ErrLeft. The database did the first part when the erasure was
// accepted, unless a legal hold kept it waiting. Safe to repeat.
func (w *Worker) Forget(ctx context.Context, tenant memd.TenantNo, request uuid.UUID, kind int16, user *memd.Ref) (Forgotten, error) {
	var ref []byte
	if user != nil {
		ref = user[:]
	}
	err := w.Pool.InTx(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sqlForget, pg.Args{"tenant": tenant, "request": request, "kind": kind, "ref": ref, "now": w.Clock.Now()})
		return err
	})
	if err != nil {
		return Forgotten{}, fmt.Errorf("forgetting in exports: %w", err)
	}
	if _, err := w.Sweep(ctx, &tenant); err != nil {
		return Forgotten{}, err
	}
	var f Forgotten
	err = w.Pool.With(ctx, func(db pg.DB) error {
		return db.QueryRow(ctx, sqlForgotten, pg.Args{"tenant": tenant, "request": request}).Scan(&f.Archives, &f.Files, &f.LinksUsed)
	})
	if err != nil {
		return f, fmt.Errorf("reading what was forgotten in exports: %w", err)
	}
	return f, nil
}
