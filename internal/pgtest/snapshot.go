//go:build unix

package pgtest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Snapshot copies the database as it is now, for Rollback. Whoever is connected
// to it is thrown out.
func (d *DB) Snapshot() string {
	d.t.Helper()
	copied := fmt.Sprintf("%s_at_%d", d.Name, time.Now().UnixNano())
	d.alone(fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s STRATEGY WAL_LOG", quote(copied), quote(d.Name)))
	d.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := execute(ctx, d.base.String(), fmt.Sprintf("DROP DATABASE IF EXISTS %s WITH (FORCE)", quote(copied))); err != nil {
			d.t.Errorf("pgtest: dropping a snapshot: %v", err)
		}
	})
	return copied
}

// Rollback puts a snapshot in the database's place, under whoever uses it.
func (d *DB) Rollback(snapshot string) {
	d.t.Helper()
	d.alone(
		fmt.Sprintf("DROP DATABASE %s", quote(d.Name)),
		fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s STRATEGY WAL_LOG", quote(d.Name), quote(snapshot)),
	)
	if err := harden(d.t.Context(), d.URL("")); err != nil {
		d.t.Fatalf("pgtest: %v", err)
	}
}

// alone runs statements about the database while nobody is connected to it.
func (d *DB) alone(statements ...string) {
	d.t.Helper()
	ctx := d.t.Context()
	conn, err := pgx.Connect(ctx, d.base.String())
	if err != nil {
		d.t.Fatalf("pgtest: %v", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	all := append([]string{
		fmt.Sprintf("ALTER DATABASE %s ALLOW_CONNECTIONS false", quote(d.Name)),
		fmt.Sprintf("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '%s'", strings.ReplaceAll(d.Name, "'", "''")),
	}, statements...)
	for _, sql := range append(all, fmt.Sprintf("ALTER DATABASE %s ALLOW_CONNECTIONS true", quote(d.Name))) {
		if _, err := conn.Exec(ctx, sql); err != nil {
			d.t.Fatalf("pgtest: %s: %v", sql, err)
		}
	}
}
