package compact

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd/internal/pg"
)

// Table is one of the database's, as it is now.
type Table struct {
	Name string
	OID  uint32
	// Content says that it has sealed values.
	Content bool
	// Bytes are those of the table, with TOAST and indexes; Dead is how many rows
	// are dead, as far as PostgreSQL has counted.
	Bytes, Dead int64
	// Permitted says whether memd_maintain may vacuum it.
	Permitted bool
	// Estimate is how long a rewrite would lock it.
	Estimate time.Duration
	// Needs is how much free space a rewrite takes at its height: the new files
	// beside the old ones, and what the write-ahead log keeps of them.
	Needs int64
}

// The catalogue says which tables there are, so that none can be forgotten: all of
// memd's, partitions among them. Sealed values are in columns of that name. Who may
// vacuum: the table's owner, the database's, and whoever has the privilege that
// PostgreSQL 17 added; older ones do not know its name.
const sqlTables = `
SELECT c.relname, c.oid,
  EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname LIKE 'sealed%' AND a.atttypid = 'bytea'::regtype AND NOT a.attisdropped),
  pg_total_relation_size(c.oid), coalesce(pg_stat_get_dead_tuples(c.oid), 0),
  pg_has_role('memd_maintain', c.relowner, 'USAGE')
    OR pg_has_role('memd_maintain', (SELECT d.datdba FROM pg_database d WHERE d.datname = current_database()), 'USAGE')
    OR CASE WHEN current_setting('server_version_num')::int >= 170000 THEN has_table_privilege('memd_maintain', c.oid, 'MAINTAIN') ELSE false END,
  pg_size_bytes(current_setting('max_wal_size'))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'memd' AND c.relkind = 'r'
ORDER BY 3 DESC, 4, 1`

// Tables returns all of memd's tables, those with content first, the small ones
// first, each with what a rewrite of it would take. Anybody may ask.
func Tables(ctx context.Context, db pg.DB) ([]Table, error) {
	rate, err := rewriteRate(ctx, db)
	if err != nil {
		return nil, err
	}
	rows, err := db.Query(ctx, sqlTables)
	if err != nil {
		return nil, fmt.Errorf("listing the tables: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (t Table, err error) {
		var wal int64
		err = row.Scan(&t.Name, &t.OID, &t.Content, &t.Bytes, &t.Dead, &t.Permitted, &wal)
		t.Estimate, t.Needs = estimate(t.Bytes, rate), t.Bytes+min(t.Bytes, wal)
		return t, err
	})
	if err != nil {
		return nil, fmt.Errorf("listing the tables: %w", err)
	}
	return out, nil
}

const (
	// rewriteBytes is how many bytes a second a rewrite is assumed to write before
	// any was measured: what a slow disk does.
	rewriteBytes = 20 << 20
	// rewriteLeast is what the smallest rewrite takes.
	rewriteLeast = 50 * time.Millisecond
	// measurable is the size from which a measurement says something.
	measurable = 4 << 20
)

const sqlRate = `
SELECT coalesce(percentile_disc(0.25) WITHIN GROUP (ORDER BY r.rate), 0)::bigint FROM (
  SELECT bytes_before * 1000 / greatest(blocked_ms, 1) AS rate FROM memd.compaction_tables
  WHERE state = 3 AND blocked_ms > 0 AND bytes_before >= @measurable ORDER BY finished_at DESC LIMIT 20) AS r`

// rewriteRate is how many bytes a second rewrites went through here, the slower
// ones of them.
func rewriteRate(ctx context.Context, db pg.DB) (rate int64, err error) {
	if err := db.QueryRow(ctx, sqlRate, pg.Args{"measurable": measurable}).Scan(&rate); err != nil {
		return 0, fmt.Errorf("reading how long rewrites took: %w", err)
	}
	if rate == 0 {
		rate = rewriteBytes
	}
	return rate, nil
}

func estimate(bytes, rate int64) time.Duration {
	return rewriteLeast + time.Duration(float64(bytes)/float64(rate)*float64(time.Second)).Round(time.Millisecond)
}
