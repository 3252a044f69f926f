//go:build unix

package pgtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/migrations"
)

const (
	// lockTemplate is an advisory lock of the maintenance database, where memd
	// itself takes none.
	lockTemplate    = 0x6d64746d
	templateTimeout = 2 * time.Minute
)

var (
	templateMu   sync.Mutex
	templateName string
)

// ensureTemplate makes the migrated database that the tests' are cloned from,
// once for each content of the migrations, whoever comes first. A failure is
// not remembered.
func ensureTemplate(ctx context.Context, base url.URL) (string, error) {
	templateMu.Lock()
	defer templateMu.Unlock()
	if templateName != "" {
		return templateName, nil
	}
	sum, err := hashMigrations()
	if err != nil {
		return "", err
	}
	name := "memd_template_" + sum
	conn, err := pgx.Connect(ctx, base.String())
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // Gives the lock up.
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", lockTemplate); err != nil {
		return "", err
	}
	var there bool
	err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&there)
	if err == nil && !there {
		err = buildTemplate(ctx, conn, base, name)
	}
	if err != nil {
		return "", err
	}
	templateName = name
	return name, nil
}

// buildTemplate migrates under another name first, so that the right name is
// always a finished template.
func buildTemplate(ctx context.Context, conn *pgx.Conn, base url.URL, name string) error {
	unfinished := name + "_new"
	for _, sql := range []string{
		fmt.Sprintf("DROP DATABASE IF EXISTS %s WITH (FORCE)", quote(unfinished)),
		fmt.Sprintf("CREATE DATABASE %s TEMPLATE template0", quote(unfinished)),
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	u := base
	u.Path = "/" + unfinished
	if err := pg.Migrate(ctx, u.String()); err != nil {
		return err
	}
	_, err := conn.Exec(ctx, fmt.Sprintf("ALTER DATABASE %s RENAME TO %s", quote(unfinished), quote(name)))
	return err
}

func hashMigrations() (string, error) {
	names, err := fs.Glob(migrations.FS, "*.sql")
	if err != nil {
		return "", err
	}
	if len(names) == 0 {
		return "", errors.New("there are no migrations")
	}
	h := sha256.New()
	for _, name := range names {
		content, err := fs.ReadFile(migrations.FS, name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", name, len(content))
		h.Write(content)
	}
	jobs, err := pg.JobsVersion()
	if err != nil {
		return "", err
	}
	fmt.Fprintf(h, "jobs %d\n", jobs)
	return hex.EncodeToString(h.Sum(nil)[:6]), nil
}
