package pg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// JobsSchema is where River keeps its tables.
const JobsSchema = "memd_jobs"

// migrateJobs has River bring its own tables to the version of this binary. The
// schema and everybody's rights in it are those of the migrations before.
func migrateJobs(ctx context.Context, url string) error {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return errors.New("migrating the job queue: the database URL is no PostgreSQL connection string")
	}
	config.MaxConns = 2
	config.ConnConfig.RuntimeParams["application_name"] = "memd migrate"
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return Classify(fmt.Errorf("migrating the job queue: %w", err))
	}
	defer pool.Close()
	m, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{
		Schema: JobsSchema, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return fmt.Errorf("reading the job queue's migrations: %w", err)
	}
	// River says nothing of a database that a newer binary has migrated.
	have, err := m.ExistingVersions(ctx)
	if err != nil {
		return fmt.Errorf("reading the job queue's version: %w", err)
	}
	known := m.AllVersions()
	if len(have) > 0 && have[len(have)-1].Version > known[len(known)-1].Version {
		return errors.New("the job queue's tables are newer than this binary; run a newer memd")
	}
	if _, err := m.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("migrating the job queue: %w", err)
	}
	return nil
}

// hasJobs tells memd's migrations, which make the schema, from those of a test.
func hasJobs(files fs.FS) bool {
	names, err := fs.Glob(files, "*_create_jobs.sql")
	return err == nil && len(names) > 0
}

// JobsVersion is the newest version of River's tables that this binary knows.
func JobsVersion() (int, error) {
	m, err := rivermigrate.New(riverpgxv5.New(nil), &rivermigrate.Config{Schema: JobsSchema})
	if err != nil {
		return 0, err
	}
	known := m.AllVersions()
	return known[len(known)-1].Version, nil
}
