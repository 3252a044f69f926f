package compact

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"forgettable.dev/memd/internal/pg"
)

// Role is the role as which compactions run, and which does nothing else.
const Role = "memd_maintain"

// Maintain is the way to the database as memd_maintain. It keeps what the server
// says beside its answers.
type Maintain struct {
	pool *pg.Pool

	mu      sync.Mutex
	notices map[uint32][]pgconn.Notice // by backend
}

// Connect opens it. The connection string is that of a role that may become
// memd_maintain, and reaches the server itself: what a transaction pooler hands out
// keeps no settings. The caller closes it.
func Connect(ctx context.Context, url string) (*Maintain, error) {
	m := &Maintain{notices: map[uint32][]pgconn.Notice{}}
	pool, err := pg.Open(ctx, pg.Config{
		URL: url, Role: Role, MaxConns: 4, ApplicationName: "memd compact",
		OnNotice: func(c *pgconn.PgConn, n *pgconn.Notice) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.notices[c.PID()] = append(m.notices[c.PID()], *n)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("connecting as %s: %w", Role, err)
	}
	m.pool = pool
	return m, nil
}

// Pool is the connections themselves, for what else is done as memd_maintain.
func (m *Maintain) Pool() *pg.Pool { return m.pool }

// Close closes its connections.
func (m *Maintain) Close() { m.pool.Close() }

// run runs one statement and returns the SQLSTATE of each notice that it raised.
func (m *Maintain) run(ctx context.Context, conn *pgxpool.Conn, sql string) (notices []string, err error) {
	pid := conn.Conn().PgConn().PID()
	m.taken(pid)
	_, err = conn.Exec(ctx, sql)
	for _, n := range m.taken(pid) {
		notices = append(notices, n.Code)
	}
	return notices, pg.Classify(err)
}

func (m *Maintain) taken(pid uint32) []pgconn.Notice {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.notices[pid]
	delete(m.notices, pid)
	return n
}

const sqlLockTimeout = `SELECT set_config('lock_timeout', $1, false)`

func limitLocks(ctx context.Context, conn *pgxpool.Conn, d time.Duration) error {
	if _, err := conn.Exec(ctx, sqlLockTimeout, strconv.FormatInt(d.Milliseconds(), 10)+"ms"); err != nil {
		return pg.Classify(fmt.Errorf("limiting the wait for locks: %w", err))
	}
	return nil
}

// Two statements. TRUNCATE, because the pages at a table's end that held only
// deleted rows go back to the file system; it gives up by itself as soon as anybody
// else wants the table. Nothing is analysed: see migration 0018.
func vacuumOf(table string) string {
	return `VACUUM (INDEX_CLEANUP ON, TRUNCATE ON) ` + pgx.Identifier{"memd", table}.Sanitize()
}

func rewriteOf(table string) string {
	return `VACUUM (FULL) ` + pgx.Identifier{"memd", table}.Sanitize()
}

// Whoever has the table locked, in whatever mode: a rewrite waits for all of them.
const sqlHolders = `
SELECT coalesce(array_agg(DISTINCT virtualtransaction), '{}') FROM pg_locks
WHERE locktype = 'relation' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND relation = @oid::bigint::oid AND granted AND pid <> pg_backend_pid()`

// occupied reports whether somebody keeps the table locked: the same transaction
// that had it a moment ago still has it.
func occupied(ctx context.Context, db pg.DB, oid uint32, moment time.Duration) (bool, error) {
	var before, after []string
	ask := func(into *[]string) error {
		if err := db.QueryRow(ctx, sqlHolders, pg.Args{"oid": int64(oid)}).Scan(into); err != nil {
			return pg.Classify(fmt.Errorf("looking who has a table locked: %w", err))
		}
		return nil
	}
	if err := ask(&before); err != nil || len(before) == 0 {
		return false, err
	}
	if err := sleep(ctx, moment); err != nil {
		return false, err
	}
	if err := ask(&after); err != nil {
		return false, err
	}
	return slices.ContainsFunc(before, func(t string) bool { return slices.Contains(after, t) }), nil
}

// Who may still see what was deleted before the horizon: transactions of this
// database, prepared ones, standbys that said so, and slots. A vacuum keeps nothing
// from going.
const sqlOlder = `
SELECT count(*) FROM (
  SELECT greatest(age(a.backend_xmin), age(a.backend_xid)) AS age FROM pg_stat_activity a
  WHERE (a.datid = (SELECT oid FROM pg_database WHERE datname = current_database()) OR a.backend_type = 'walsender')
    AND a.pid <> pg_backend_pid() AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
  UNION ALL SELECT age(p.transaction) FROM pg_prepared_xacts p WHERE p.database = current_database()
  UNION ALL SELECT age(s.xmin) FROM pg_replication_slots s
) AS t WHERE t.age > age(@horizon::text::xid8::xid)`

// older counts them.
func older(ctx context.Context, db pg.DB, horizon string) (n int64, err error) {
	if err := db.QueryRow(ctx, sqlOlder, pg.Args{"horizon": horizon}).Scan(&n); err != nil {
		return 0, fmt.Errorf("looking for older transactions: %w", err)
	}
	return n, nil
}

// The file that a table is in.
const sqlFile = `SELECT coalesce(pg_relation_filenode(@oid::bigint::oid), 0)::bigint`

func fileOf(ctx context.Context, db pg.DB, oid uint32) (file int64, err error) {
	if err := db.QueryRow(ctx, sqlFile, pg.Args{"oid": int64(oid)}).Scan(&file); err != nil {
		return 0, fmt.Errorf("reading which file a table has: %w", err)
	}
	return file, nil
}

const sqlMeasure = `SELECT coalesce(pg_total_relation_size(@oid::bigint::oid), 0)`

func measure(ctx context.Context, db pg.DB, oid uint32) (bytes int64, err error) {
	if err := db.QueryRow(ctx, sqlMeasure, pg.Args{"oid": int64(oid)}).Scan(&bytes); err != nil {
		return 0, fmt.Errorf("measuring a table: %w", err)
	}
	return bytes, nil
}

const sqlPhase = `
SELECT phase, heap_blks_scanned, heap_blks_total FROM pg_stat_progress_vacuum WHERE pid = @pid
UNION ALL SELECT phase, heap_blks_scanned, heap_blks_total FROM pg_stat_progress_cluster WHERE pid = @pid`

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
