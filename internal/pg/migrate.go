package pg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"forgettable.dev/memd"
	"forgettable.dev/memd/migrations"
)

const (
	versionTable = "memd.schema_versions"
	minVector    = "0.8"
	// migratePoll is how often a second migrator asks for the lock. It does not
	// wait inside the server, where its snapshot would hold up the first one's
	// concurrent index builds.
	migratePoll = 100 * time.Millisecond
)

// Migrate brings the database at url to this binary's schema. It is safe to
// repeat and safe for several at once: one migrates, the others wait and find
// nothing to do. It needs a direct connection (no pooler) as the database's
// owner, and pgvector installed on the server. Its errors are for the operator
// and keep the server's message, since migrations carry no user data.
func Migrate(ctx context.Context, url string) error { return migrateFS(ctx, url, migrations.FS) }

func migrateFS(ctx context.Context, url string, files fs.FS) (err error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return errors.New("migrating: the database URL is no PostgreSQL connection string")
	}
	config.RuntimeParams["application_name"] = "memd migrate"
	db := stdlib.OpenDB(*config)
	defer func() { err = errors.Join(err, db.Close()) }()

	guard, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("migrating: %w", Classify(err))
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		err = errors.Join(err, guard.Close(ctx)) // Closing gives up the lock.
	}()
	if err := checkServer(guard); err != nil {
		return fmt.Errorf("migrating: %w", err)
	}
	if err := waitForLock(ctx, guard, LockMigrate); err != nil {
		return fmt.Errorf("migrating: %w", err)
	}
	if err := prepareDatabase(ctx, guard); err != nil {
		return fmt.Errorf("preparing the database: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithTableName(versionTable), goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger()))
	if err != nil {
		return fmt.Errorf("reading the migrations: %w", err)
	}
	if err := refuseNewer(ctx, guard, files); err != nil {
		return err
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrating: %w", err)
	}
	if hasJobs(files) {
		if err := migrateJobs(ctx, url); err != nil {
			return err
		}
	}
	return finishDatabase(ctx, guard)
}

func waitForLock(ctx context.Context, conn *pgx.Conn, id LockID) error {
	ticker := time.NewTicker(migratePoll)
	defer ticker.Stop()
	for {
		held, err := TryLock(ctx, conn, id)
		if err != nil || held {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for another migration: %w", ctx.Err())
		case <-ticker.C:
		}
	}
}

const sqlVectorVersions = `
SELECT coalesce((SELECT default_version FROM pg_catalog.pg_available_extensions WHERE name = 'vector'), ''),
       coalesce((SELECT extversion FROM pg_catalog.pg_extension WHERE extname = 'vector'), '')`

// prepareDatabase makes what has to be there before the first migration: the
// extension, and the schema that holds the table of versions.
func prepareDatabase(ctx context.Context, conn *pgx.Conn) error {
	var available, installed string
	if err := conn.QueryRow(ctx, sqlVectorVersions).Scan(&available, &installed); err != nil {
		return fmt.Errorf("looking for pgvector: %w", err)
	}
	switch {
	case installed == "" && available == "":
		return fmt.Errorf("the database server has no pgvector: install %s or newer there (package postgresql-NN-pgvector, or scripts/setup.sh), then migrate again", minVector)
	case installed == "" && olderThan(available, minVector):
		return fmt.Errorf("the database server has pgvector %s and memd needs %s: install a newer one there, then migrate again", available, minVector)
	case installed == "":
		_, err := conn.Exec(ctx, `CREATE EXTENSION IF NOT EXISTS vector`)
		if SQLState(err) == "42501" {
			return errors.New("this role may not create the extension: as a superuser, in this database, run CREATE EXTENSION vector, then migrate again")
		}
		if err != nil {
			return fmt.Errorf("creating the extension vector: %w", err)
		}
	case olderThan(installed, minVector):
		return fmt.Errorf("this database has pgvector %s and memd needs %s: as its owner, in this database, run ALTER EXTENSION vector UPDATE, then migrate again", installed, minVector)
	}
	if _, err := conn.Exec(ctx, `CREATE SCHEMA IF NOT EXISTS memd`); err != nil {
		return fmt.Errorf("creating the schema memd: %w", err)
	}
	return nil
}

// finishDatabase applies what a migration cannot keep in force: rights on the
// database itself are lost by CREATE DATABASE ... TEMPLATE and by a restore.
func finishDatabase(ctx context.Context, conn *pgx.Conn) error {
	// The versions are no secret, and serve has to read them.
	if _, err := conn.Exec(ctx, `GRANT SELECT ON memd.schema_versions TO PUBLIC`); err != nil {
		return fmt.Errorf("granting the schema's version: %w", err)
	}
	return Harden(ctx, conn)
}

// Harden calls memd.harden() where the schema has it: it takes TEMP and CREATE
// on the database away from everybody. A database made by CREATE DATABASE ...
// TEMPLATE or by a restore needs it again. Safe to repeat.
func Harden(ctx context.Context, db DB) error {
	var there bool
	if err := db.QueryRow(ctx, `SELECT pg_catalog.to_regprocedure('memd.harden()') IS NOT NULL`).Scan(&there); err != nil {
		return Classify(fmt.Errorf("looking for memd.harden: %w", err))
	}
	if !there {
		return nil
	}
	if _, err := db.Exec(ctx, `SELECT memd.harden()`); err != nil {
		return Classify(fmt.Errorf("hardening the database: %w", err))
	}
	return nil
}

// olderThan compares dotted numbers.
func olderThan(version, least string) bool {
	var a, b [2]int
	_, _ = fmt.Sscanf(version, "%d.%d", &a[0], &a[1])
	_, _ = fmt.Sscanf(least, "%d.%d", &b[0], &b[1])
	return a[0] < b[0] || a[0] == b[0] && a[1] < b[1]
}

// refuseNewer stops an old binary from reporting success on a schema that it
// does not know.
func refuseNewer(ctx context.Context, db DB, files fs.FS) error {
	at, err := currentVersion(ctx, db)
	if err != nil {
		return err
	}
	if newest := versions(files)[0]; at > newest {
		return fmt.Errorf("%w: the database is at %d and this binary knows %d; run a newer memd", memd.ErrSchemaVersion, at, newest)
	}
	return nil
}

// currentVersion is 0 where there is no schema.
func currentVersion(ctx context.Context, db DB) (int64, error) {
	const sqlCurrentVersion = `SELECT coalesce(max(version_id), 0) FROM memd.schema_versions WHERE is_applied`
	var at int64
	err := db.QueryRow(ctx, sqlCurrentVersion).Scan(&at)
	var state *pgconn.PgError
	if errors.As(err, &state) && (state.Code == "42P01" || state.Code == "3F000") { // No such table or schema.
		return 0, nil
	}
	if err != nil {
		return 0, Classify(fmt.Errorf("reading the schema's version: %w", err))
	}
	return at, nil
}
