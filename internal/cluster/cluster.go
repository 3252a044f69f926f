//go:build unix

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Superuser is the role that owns the cluster.
const Superuser = "postgres"

// Bounds of the waits. A start may have to replay the log of a crash.
const (
	startTimeout = 2 * time.Minute
	stopTimeout  = 30 * time.Second
	readyPoll    = 10 * time.Millisecond
)

// Config says where the cluster lives and how it runs.
type Config struct {
	// Dir holds the lock, the server's log and the data. It is made when it is
	// not there. Required.
	Dir string
	// BinDir names the folder of PostgreSQL's programs. Empty searches
	// MEMD_PG_BIN, then the usual places (see Find).
	BinDir string
	// User is the operating system's user that runs the server when this
	// process is root. Empty means MEMD_PG_USER, then postgres.
	User string
	// MaxConnections is the server's. Zero means 100.
	MaxConnections int
	// InsecureNoSync lets the server lie about durability. For tests only: a
	// crash of the machine destroys the cluster.
	InsecureNoSync bool
	// Settings are further settings of the server, for tests of backups and
	// recovery.
	Settings map[string]string
}

// Cluster is a running server.
type Cluster struct {
	place  place
	server *server
	lock   *os.File
	close  sync.Once
	closed error
}

// Data is the folder that the data lies in.
func (c *Cluster) Data() string { return c.place.data }

// Start makes the cluster when there is none and starts it. It returns when
// the server answers. What an earlier process left, running or not, is
// stopped and recovered first. It fails when another live process has the
// folder. The caller closes the cluster.
func Start(ctx context.Context, c Config) (_ *Cluster, err error) {
	if c.Dir == "" {
		return nil, errors.New("starting PostgreSQL: Dir is not set")
	}
	programs, err := Find(c.BinDir)
	if err != nil {
		return nil, fmt.Errorf("starting PostgreSQL: %w", err)
	}
	if c.Dir, err = filepath.Abs(c.Dir); err != nil {
		return nil, fmt.Errorf("starting PostgreSQL: %w", err)
	}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil { // The server's user must get through; the data is 0700.
		return nil, fmt.Errorf("making the cluster's folder: %w", err)
	}
	lock, err := takeLock(filepath.Join(c.Dir, "lock"))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	account, err := accountFor(c.User)
	if err != nil {
		return nil, fmt.Errorf("starting PostgreSQL: %w", err)
	}
	p, err := settle(c.Dir, account)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := stopOrphan(ctx, p.data); err != nil {
		return nil, err
	}
	if err := p.initialise(ctx, programs, c.InsecureNoSync); err != nil {
		return nil, err
	}
	if err := p.configure(c); err != nil {
		return nil, err
	}
	s, err := launch(ctx, programs, p)
	if err != nil {
		return nil, err
	}
	return &Cluster{place: p, server: s, lock: lock}, nil
}

// takeLock locks the file for as long as this process lives. Its content names
// the holder for the message that a second one gives.
func takeLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking the cluster: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder, _ := os.ReadFile(path) // Only for the message.
		return nil, errors.Join(fmt.Errorf("%s is in use by another memd (process %s): stop that one, or use another folder",
			filepath.Dir(path), strings.TrimSpace(string(holder))), f.Close())
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintln(f, os.Getpid())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("locking the cluster: %w", err), f.Close())
	}
	return f, nil
}

// URL is the connection string for a database and a role. An empty role is
// the superuser. It holds no secret: reaching the socket is the permission.
func (c *Cluster) URL(database, role string) string { return c.place.url(database, role) }

func (p place) url(database, role string) string {
	if role == "" {
		role = Superuser
	}
	u := url.URL{Scheme: "postgres", User: url.User(role), Path: "/" + database}
	u.RawQuery = url.Values{"host": {p.socket}}.Encode()
	return u.String()
}

// CreateDatabase makes a database that is not there yet. Safe to repeat.
func (c *Cluster) CreateDatabase(ctx context.Context, name string) error {
	conn, err := pgx.Connect(ctx, c.URL("postgres", ""))
	if err != nil {
		return fmt.Errorf("creating the database %s: %w", name, err)
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
	var state *pgconn.PgError
	if errors.As(err, &state) && state.Code == "42P04" { // duplicate_database
		return nil
	}
	if err != nil {
		return fmt.Errorf("creating the database %s: %w", name, err)
	}
	return nil
}

// DataDir is where the server keeps its data. Backups and residue checks read
// it; nothing may write there.
func (c *Cluster) DataDir() string { return c.place.data }

// LogFile is the server's log.
func (c *Cluster) LogFile() string { return c.place.log }

// Programs is the folder of the server's programs, pg_dump among them.
func (c *Cluster) Programs() string { return c.server.programs.Dir }

// PID is the server's process.
func (c *Cluster) PID() int { return c.server.cmd.Process.Pid }

// Done is closed when the server has ended, by Close or by itself.
func (c *Cluster) Done() <-chan struct{} { return c.server.done }

// Close stops the server (a fast shutdown: open transactions are rolled back),
// waits for its end and gives the folder free. Safe to repeat.
func (c *Cluster) Close() error {
	c.close.Do(func() {
		c.closed = errors.Join(c.server.stop(), c.place.leave(), c.lock.Close())
	})
	return c.closed
}

// Remove deletes a cluster that is not running, wherever its data lies. It
// fails when a live process has the folder.
func Remove(dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	lock, err := takeLock(filepath.Join(dir, "lock"))
	if err != nil {
		return err
	}
	elsewhere, linkErr := os.Readlink(filepath.Join(dir, linkName))
	if linkErr == nil {
		err = os.RemoveAll(elsewhere)
	}
	return errors.Join(err, os.RemoveAll(dir), lock.Close())
}
