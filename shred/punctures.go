package shred

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// Punctures are asked for first, in the transaction of whoever erases, and done
// by the tenant's next rotation, all at once. Paths are numbers: they say how
// many users were erased, and never who.

const sqlInsertPunctures = `
INSERT INTO memd.punctures (tenant_no, path, request_id, requested_at)
SELECT @tenant, p, @request, @now FROM unnest(@paths::text[]) AS p
ON CONFLICT (tenant_no, path) DO NOTHING`

// RequestPuncture records that the paths are to be punctured, for the next
// Rotate. Safe to repeat, also under another request id: a path that was asked
// for before stays as it is, done or not. Nothing is erased until a Rotate that
// began after the caller's commit returns nil. An invalid path is memd.ErrInvalid.
func RequestPuncture(ctx context.Context, db pg.DB, tenant memd.TenantNo, paths []Path, requestID uuid.UUID, now time.Time) error {
	sorted, err := sortedPaths(paths)
	if err != nil {
		return err
	}
	_, err = db.Exec(ctx, sqlInsertPunctures, pg.Args{
		"tenant": tenant, "paths": pathStrings(sorted), "request": requestID, "now": now,
	})
	if err != nil {
		return pg.Classify(fmt.Errorf("requesting punctures: %w", err))
	}
	return nil
}

const sqlSelectPendingPunctures = `
SELECT path FROM memd.punctures WHERE tenant_no = @tenant AND epoch IS NULL ORDER BY path`

// PendingPunctures returns the paths that no rotation has taken up.
func PendingPunctures(ctx context.Context, db pg.DB, tenant memd.TenantNo) ([]Path, error) {
	return readPaths(ctx, db, sqlSelectPendingPunctures, pg.Args{"tenant": tenant})
}

const sqlSelectAppliedPunctures = `
SELECT path FROM memd.punctures WHERE tenant_no = @tenant AND epoch = @epoch ORDER BY path`

// AppliedPunctures returns the paths that the rotation to epoch punctured.
func AppliedPunctures(ctx context.Context, db pg.DB, tenant memd.TenantNo, epoch int64) ([]Path, error) {
	return readPaths(ctx, db, sqlSelectAppliedPunctures, pg.Args{"tenant": tenant, "epoch": epoch})
}

const sqlSelectPunctureEpoch = `
SELECT count(*), count(epoch), COALESCE(max(epoch), 0)
FROM memd.punctures WHERE tenant_no = @tenant AND path = ANY(@paths::text[])`

// PunctureEpoch returns the first epoch in which all of the paths are
// punctured, or 0 while any of them is pending or was never asked for. The keys
// are gone when that epoch's rotation is finished: see FinishedEpoch.
func PunctureEpoch(ctx context.Context, db pg.DB, tenant memd.TenantNo, paths []Path) (int64, error) {
	sorted, err := sortedPaths(paths)
	if err != nil {
		return 0, err
	}
	var asked, applied, epoch int64
	err = db.QueryRow(ctx, sqlSelectPunctureEpoch, pg.Args{
		"tenant": tenant, "paths": pathStrings(sorted),
	}).Scan(&asked, &applied, &epoch)
	if err != nil {
		return 0, pg.Classify(fmt.Errorf("looking up punctures: %w", err))
	}
	if len(sorted) == 0 || asked != int64(len(sorted)) || applied != asked {
		return 0, nil
	}
	return epoch, nil
}

func readPaths(ctx context.Context, db pg.DB, sql string, args pg.Args) ([]Path, error) {
	rows, err := db.Query(ctx, sql, args)
	if err != nil {
		return nil, pg.Classify(fmt.Errorf("reading punctures: %w", err))
	}
	stored, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, pg.Classify(fmt.Errorf("reading punctures: %w", err))
	}
	paths := make([]Path, len(stored))
	for i, s := range stored {
		if paths[i], err = ParsePath(s); err != nil {
			return nil, fmt.Errorf("reading punctures: %w", err)
		}
	}
	return paths, nil
}

func pathStrings(paths []Path) []string {
	s := make([]string, len(paths))
	for i, p := range paths {
		s[i] = string(p)
	}
	return s
}
