package pg

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"forgettable.dev/memd"
)

// DB runs statements: a connection or a transaction. Functions that write take
// one, so that several can share the transaction of their caller.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

var (
	_ DB = (*pgx.Conn)(nil)
	_ DB = (pgx.Tx)(nil)
	_ DB = (*pgxpool.Conn)(nil)
)

// Defaults of a Config, and the time that a rollback or a release may take
// after its caller has given up.
const (
	DefaultMaxConns       = 16
	DefaultAcquireTimeout = 2 * time.Second

	cleanupTimeout = 5 * time.Second
)

// Config says how to reach the database.
type Config struct {
	// URL is a PostgreSQL connection string, as a URL or as keywords. Required.
	URL string
	// Role is what every connection changes to after it connected (SET ROLE).
	// Empty stays with the role that the URL names.
	Role string
	// MaxConns bounds the pool. Zero means DefaultMaxConns. The connection of a
	// Listen comes on top.
	MaxConns int32
	// AcquireTimeout bounds the wait for a free connection. Zero means
	// DefaultAcquireTimeout.
	AcquireTimeout time.Duration
	// StatementTimeout and IdleInTxTimeout are set on every connection, because
	// the settings of a role do not come with SET ROLE. Zero leaves the
	// server's.
	StatementTimeout time.Duration
	IdleInTxTimeout  time.Duration
	// ApplicationName is what pg_stat_activity shows. Zero means "memd".
	ApplicationName string
	// Gate, if set, decides about every new connection and every use of one.
	Gate Gate
	// OnNotice, if set, is told what the server says beside its answers, before the
	// answer that it belongs to.
	OnNotice pgconn.NoticeHandler
}

// Gate keeps a pool closed while the database must not be used.
type Gate interface {
	// Admit is asked about a new connection, after it was prepared; its error
	// closes the connection and is what the caller gets.
	Admit(ctx context.Context, conn *pgx.Conn) error
	// Err says, without asking the database, why nothing may be used now, or
	// nothing.
	Err() error
}

func (c Config) validate() error {
	switch {
	case c.URL == "":
		return errors.New("database URL is not set")
	case c.MaxConns < 0:
		return errors.New("MaxConns is negative")
	case c.AcquireTimeout < 0:
		return errors.New("AcquireTimeout is negative")
	case c.StatementTimeout < 0:
		return errors.New("StatementTimeout is negative")
	case c.IdleInTxTimeout < 0:
		return errors.New("IdleInTxTimeout is negative")
	}
	return nil
}

// Pool is a bounded set of connections. It is safe for concurrent use.
type Pool struct {
	raw     *pgxpool.Pool
	acquire time.Duration
	gate    Gate
}

// Open makes a pool and proves it with one connection. It returns
// ErrDatabaseUnavailable when the server cannot be reached or is older than
// PostgreSQL 15. The caller closes the pool.
func Open(ctx context.Context, c Config) (*Pool, error) {
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("opening the database: %w", err)
	}
	pc, err := pgxpool.ParseConfig(c.URL)
	if err != nil {
		// pgx's text repeats the string, and its redaction is best-effort.
		return nil, errors.New("opening the database: the database URL is no PostgreSQL connection string")
	}
	pc.MaxConns = DefaultMaxConns
	if c.MaxConns > 0 {
		pc.MaxConns = c.MaxConns
	}
	pc.MaxConnLifetimeJitter = pc.MaxConnLifetime / 10
	pc.PingTimeout = cleanupTimeout
	pc.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	pc.ConnConfig.RuntimeParams["application_name"] = "memd"
	if c.ApplicationName != "" {
		pc.ConnConfig.RuntimeParams["application_name"] = c.ApplicationName
	}
	pc.ConnConfig.OnNotice = c.OnNotice
	pc.AfterConnect = c.prepare

	raw, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), pc)
	if err != nil {
		return nil, Classify(fmt.Errorf("opening the database: %w", err))
	}
	p := &Pool{raw: raw, acquire: DefaultAcquireTimeout, gate: c.Gate}
	if c.AcquireTimeout > 0 {
		p.acquire = c.AcquireTimeout
	}
	err = p.raw.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { return checkServer(conn.Conn()) })
	if err != nil {
		raw.Close()
		return nil, Classify(fmt.Errorf("opening the database: %w", err))
	}
	return p, nil
}

// sqlPrepareConnection is one statement instead of startup parameters, which
// connection poolers refuse.
//
// pg_temp is named last because it is searched first where it is not named, so
// that a temporary table could shadow a real one. The two log settings keep
// parameters out of the server's log. The server looks every second whether
// its client is still there, so that a caller who gave up does not leave a
// statement running with its locks.
//
// Statements are planned once: planning what a search asks took ten times as
// long as answering it. All of them look things up by keys, and a plan that
// was made while a table was small must not scan it when it is large.
const sqlPrepareConnection = `
SELECT set_config('search_path', 'pg_catalog, public, pg_temp', false),
       set_config('TimeZone', 'UTC', false),
       set_config('log_parameter_max_length_on_error', '0', false),
       set_config('client_connection_check_interval', '1s', false),
       set_config('plan_cache_mode', 'force_generic_plan', false),
       set_config('enable_seqscan', 'off', false),
       set_config('jit', 'off', false),
       CASE WHEN $1 <> '' THEN set_config('statement_timeout', $1, false) END,
       CASE WHEN $2 <> '' THEN set_config('idle_in_transaction_session_timeout', $2, false) END,
       CASE WHEN $3 <> '' THEN set_config('role', $3, false) END`

func (c Config) prepare(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, sqlPrepareConnection, pgx.QueryExecModeExec,
		milliseconds(c.StatementTimeout), milliseconds(c.IdleInTxTimeout), c.Role)
	if err != nil {
		return fmt.Errorf("preparing a connection: %w", err)
	}
	if c.Gate != nil {
		return c.Gate.Admit(ctx, conn)
	}
	return nil
}

// milliseconds renders a timeout for the server; zero is "leave it".
func milliseconds(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return strconv.FormatInt(max(d.Milliseconds(), 1), 10) + "ms"
}

const minServer = 15

// checkServer refuses a server older than minServer. The version reads like
// "15.18 (Debian …)" or "19beta1"; a server that says nothing passes.
func checkServer(conn *pgx.Conn) error {
	var major int
	version := conn.PgConn().ParameterStatus("server_version")
	if n, err := fmt.Sscanf(version, "%d", &major); n == 1 && err == nil && major < minServer {
		return fmt.Errorf("PostgreSQL %d is too old, %d or newer is needed: %w", major, minServer, memd.ErrDatabaseUnavailable)
	}
	return nil
}

// Conn takes a connection for longer than one call, as session advisory locks
// need. It waits at most AcquireTimeout, then returns ErrDatabaseBusy when all
// connections are in use and ErrDatabaseUnavailable when no new one came up.
// A closed gate's reason comes first. The caller releases it.
func (p *Pool) Conn(ctx context.Context) (*pgxpool.Conn, error) {
	if p.gate != nil {
		if err := p.gate.Err(); err != nil {
			return nil, fmt.Errorf("asking for a database connection: %w", err)
		}
	}
	limited, cancel := context.WithTimeout(ctx, p.acquire)
	defer cancel()
	conn, err := p.raw.Acquire(limited)
	switch {
	case err == nil:
		return conn, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("waiting for a database connection: %w", ctx.Err())
	case limited.Err() != nil:
		if s := p.raw.Stat(); s.AcquiredConns() >= s.MaxConns() {
			return nil, memd.ErrDatabaseBusy
		}
		return nil, fmt.Errorf("connecting: %w", memd.ErrDatabaseUnavailable)
	}
	return nil, Classify(err)
}

// With runs f on a connection of its own, outside a transaction. Errors are
// those of Conn and of Classify.
func (p *Pool) With(ctx context.Context, f func(db DB) error) error {
	conn, err := p.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return classify(ctx, f(conn))
}

// InTx runs f in a READ COMMITTED transaction and commits it when f returns
// nil. Otherwise, and when f panics, it rolls back, even when ctx has ended.
// Errors are those of Conn and of Classify; a rollback that did not work is
// joined to its cause. When the commit's answer was lost the transaction may
// have been committed: callers retry only what is safe to repeat.
func (p *Pool) InTx(ctx context.Context, f func(tx pgx.Tx) error) (err error) {
	conn, err := p.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return classify(ctx, fmt.Errorf("beginning: %w", err))
	}
	finished := false
	defer func() {
		if finished {
			return
		}
		err = errors.Join(err, rollback(ctx, tx))
	}()
	if err = f(tx); err != nil {
		return classify(ctx, err)
	}
	finished = true
	if err = tx.Commit(ctx); err != nil {
		return classify(ctx, fmt.Errorf("committing: %w", err))
	}
	return nil
}

// Look runs f in a transaction of its own kind, of which nothing is kept: it is
// rolled back in any case. Errors are those of Conn and of Classify.
func (p *Pool) Look(ctx context.Context, o pgx.TxOptions, f func(tx pgx.Tx) error) (err error) {
	conn, err := p.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	tx, err := conn.BeginTx(ctx, o)
	if err != nil {
		return classify(ctx, fmt.Errorf("beginning: %w", err))
	}
	defer func() { err = errors.Join(err, rollback(ctx, tx)) }()
	return classify(ctx, f(tx))
}

// rollback ends tx under a context of its own. A connection that is already
// gone needs none: the server rolls back what its client left.
func rollback(ctx context.Context, tx pgx.Tx) error {
	if tx.Conn().IsClosed() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := tx.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
		return Classify(fmt.Errorf("rolling back: %w", err))
	}
	return nil
}

// Raw is the driver's pool, for libraries that want one. Errors from it have
// not passed Classify.
func (p *Pool) Raw() *pgxpool.Pool { return p.raw }

// Close waits for the connections in use and closes all.
func (p *Pool) Close() { p.raw.Close() }
