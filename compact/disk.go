package compact

import (
	"context"
	"fmt"
	"syscall"

	"forgettable.dev/memd/internal/pg"
)

// Disk says how much space the database's disk has. PostgreSQL has no function for
// it, so the operator says where to look. The zero value does not know, and rewrites
// are refused.
type Disk struct {
	// DataDir is a folder of the disk that the database is on, seen from the worker.
	DataDir string
	// Bytes is how large the disk is, where the worker cannot see it: that of a
	// managed database. What the server's databases and its log take is taken off.
	Bytes int64
}

const sqlUsed = `
SELECT coalesce(sum(pg_database_size(oid)), 0)::bigint + pg_size_bytes(current_setting('max_wal_size'))
FROM pg_database WHERE has_database_privilege(oid, 'CONNECT')`

// free returns the free bytes, and whether anybody said how to see them.
func (d Disk) free(ctx context.Context, db pg.DB) (bytes int64, known bool, err error) {
	switch {
	case d.DataDir != "":
		var s syscall.Statfs_t
		if err := syscall.Statfs(d.DataDir, &s); err != nil {
			return 0, false, fmt.Errorf("looking at the database's disk: %w", err)
		}
		return int64(s.Bavail) * int64(s.Bsize), true, nil
	case d.Bytes > 0:
		var used int64
		if err := db.QueryRow(ctx, sqlUsed).Scan(&used); err != nil {
			return 0, false, fmt.Errorf("measuring the databases: %w", err)
		}
		return max(0, d.Bytes-used), true, nil
	}
	return 0, false, nil
}

// headroom returns a TableError unless a rewrite of the table fits on the disk.
func (d Disk) headroom(ctx context.Context, db pg.DB, t Table) error {
	free, known, err := d.free(ctx, db)
	switch {
	case err != nil:
		return err
	case !known:
		return &TableError{Table: t.Name, Failure: HeadroomUnknown}
	case free < t.Needs:
		return &TableError{Table: t.Name, Failure: NoHeadroom, Need: t.Needs, Free: free}
	}
	return nil
}
