//go:build unix

package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd/internal/pg"
)

// cleanupTimeout bounds the dropping of a database.
const cleanupTimeout = 30 * time.Second

// DB is a test's own database.
type DB struct {
	// Name is its name on the server.
	Name string

	t    testing.TB
	base url.URL
}

var counter atomic.Int64

// Database makes a database with memd's schema. It is dropped when the test
// ends, with whatever is still connected to it.
func Database(t testing.TB) *DB {
	t.Helper()
	base, err := server()
	if err != nil {
		t.Fatalf("pgtest: no PostgreSQL for tests: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), templateTimeout)
	defer cancel()
	template, err := ensureTemplate(ctx, base)
	if err != nil {
		t.Fatalf("pgtest: making the template database: %v", err)
	}
	d := &DB{
		Name: fmt.Sprintf("memd_test_%d_%d_%d", os.Getpid(), counter.Add(1), time.Now().UnixMicro()),
		t:    t, base: base,
	}
	// WAL_LOG copies through the buffers. The other strategy forces two
	// checkpoints for each database, which is slower for one of this size.
	sqlCreate := fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s STRATEGY WAL_LOG", quote(d.Name), quote(template))
	if err := execute(ctx, base.String(), sqlCreate); err != nil {
		t.Fatalf("pgtest: cloning the template database: %v", err)
	}
	t.Cleanup(d.drop)
	if err := harden(ctx, d.URL("")); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return d
}

// At is a database of a server that the test runs itself: it is there, has
// memd's schema, and is not dropped. base is the server's URL.
func At(t testing.TB, base, name string) *DB {
	t.Helper()
	u, err := url.Parse(base)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return &DB{Name: name, t: t, base: *u}
}

// Empty makes a database without memd's schema, for tests of migrations.
func Empty(t testing.TB) *DB {
	t.Helper()
	base, err := server()
	if err != nil {
		t.Fatalf("pgtest: no PostgreSQL for tests: %v", err)
	}
	d := &DB{Name: fmt.Sprintf("memd_empty_%d_%d_%d", os.Getpid(), counter.Add(1), time.Now().UnixMicro()), t: t, base: base}
	if err := execute(t.Context(), base.String(), "CREATE DATABASE "+quote(d.Name)+" TEMPLATE template0"); err != nil {
		t.Fatalf("pgtest: making a database: %v", err)
	}
	t.Cleanup(d.drop)
	return d
}

func (d *DB) drop() {
	// The test's own context has ended by now.
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := execute(ctx, d.base.String(), fmt.Sprintf("DROP DATABASE IF EXISTS %s WITH (FORCE)", quote(d.Name))); err != nil {
		d.t.Errorf("pgtest: dropping the test's database: %v", err)
	}
}

// URL is the connection string for a role: memd_app, memd_worker,
// memd_maintain, or "" for the database's owner, a superuser.
func (d *DB) URL(role string) string {
	u := d.base
	u.Path = "/" + d.Name
	if role != "" {
		if password, ok := u.User.Password(); ok {
			u.User = url.UserPassword(role, password)
		} else {
			u.User = url.User(role)
		}
	}
	return u.String()
}

// Pool opens a pool as a role, closed when the test ends. A role that is
// loginable is logged in as, so that nothing the test does can shed it.
func (d *DB) Pool(role string) *pg.Pool { return d.Open(pg.Config{URL: d.URL(role)}) }

// Open opens a pool with settings of the test's own, closed when the test
// ends. An empty URL is the owner's.
func (d *DB) Open(c pg.Config) *pg.Pool {
	d.t.Helper()
	if c.URL == "" {
		c.URL = d.URL("")
	}
	if c.MaxConns == 0 {
		c.MaxConns = 8 // Many tests share the server.
	}
	if c.AcquireTimeout == 0 {
		c.AcquireTimeout = 20 * time.Second // A loaded machine is no finding.
	}
	p, err := pg.Open(d.t.Context(), c)
	if err != nil {
		d.t.Fatalf("pgtest: %v", err)
	}
	d.t.Cleanup(p.Close)
	return p
}

// Pool makes a database and opens it as its owner, a superuser: for tests of
// statements, not of permissions.
func Pool(t testing.TB) *pg.Pool {
	t.Helper()
	return Database(t).Pool("")
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// execute runs one statement on a connection of its own.
func execute(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, sql)
	return err
}

func harden(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	return pg.Harden(ctx, conn)
}
