package erasure

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/export"
	"forgettable.dev/memd/receipts"
)

// Exports are the archives that customers download, an export.Worker.
type Exports interface {
	// Forget takes out of every archive of a tenant whom or what an erasure is about,
	// and returns when the files that held it are gone, and were seen to be, or
	// export.ErrLeft. Safe to repeat.
	Forget(ctx context.Context, tenant memd.TenantNo, request uuid.UUID, kind int16, user *memd.Ref) (export.Forgotten, error)
}

// exportPause is how long an erasure waits for whoever is just writing a file of an
// archive, and is about to see that it must not.
const exportPause = 500 * time.Millisecond

// exports has files of archives deleted that hold what the job is about. They are
// made anew without it in their own time.
func (r *Runner) exports(ctx context.Context, j Job, n *notes) error {
	if r.Exports == nil {
		return r.done(ctx, j, StepExports, *n)
	}
	var user *memd.Ref
	if j.Kind != KindTenant && j.Kind != KindMonth {
		user = &j.User
	}
	reached, err := r.Exports.Forget(ctx, j.Tenant, j.ID, int16(j.Kind), user)
	switch {
	case errors.Is(err, export.ErrLeft):
		return &notYet{exportPause}
	case err != nil:
		return err
	case reached.Archives > 0:
		n.Before, n.After = Counts{storeExports: reached.Files}, Counts{storeExports: 0}
		n.Exports = &reached
	}
	return r.done(ctx, j, StepExports, *n)
}

// storeExports is the name under which files of archives are counted.
const storeExports = "exports"

// exportsOf is what a report and a receipt tell of archives; nothing when there
// were none.
func exportsOf(steps map[Step]stepRow) (counts []StoreCount, residuals []receipts.Residual) {
	n := steps[StepExports].Notes
	if n.Exports == nil {
		return nil, nil
	}
	counts = []StoreCount{{storeExports, n.Before[storeExports], n.After[storeExports]}}
	if used := n.Exports.LinksUsed; used > 0 {
		residuals = []receipts.Residual{{Kind: receipts.ResidualExport, Provider: receipts.ProviderOther, RetentionDays: -1, Count: used}}
	}
	return counts, residuals
}
