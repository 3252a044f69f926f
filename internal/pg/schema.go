package pg

import (
	"context"
	"fmt"
	"io/fs"
	"slices"

	"github.com/pressly/goose/v3"

	"forgettable.dev/memd"
	"forgettable.dev/memd/migrations"
)

// SchemaVersion is the number of this binary's newest migration.
func SchemaVersion() int64 { return versions(migrations.FS)[0] }

// CheckSchema returns nil when the database has this binary's schema or the
// one before, so that a new binary can run before the database is migrated:
// migrations only add, and take away one release later. Otherwise it returns
// ErrSchemaVersion with what to run.
func CheckSchema(ctx context.Context, db DB) error { return checkSchema(ctx, db, migrations.FS) }

func checkSchema(ctx context.Context, db DB, files fs.FS) error {
	known := versions(files)
	at, err := currentVersion(ctx, db)
	switch {
	case err != nil:
		return err
	case at == 0:
		return fmt.Errorf("%w: it has none; run memd migrate", memd.ErrSchemaVersion)
	case at > known[0]:
		return fmt.Errorf("%w: it has %d and this binary knows %d; run a newer memd", memd.ErrSchemaVersion, at, known[0])
	case at < known[min(1, len(known)-1)]:
		return fmt.Errorf("%w: it has %d and this binary needs %d; run memd migrate", memd.ErrSchemaVersion, at, known[0])
	}
	return nil
}

// versions lists the numbers of the migrations, newest first, and 0 alone when
// there are none.
func versions(files fs.FS) []int64 {
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		panic(err) // Only a malformed pattern does this.
	}
	var all []int64
	for _, name := range names {
		if v, err := goose.NumericComponent(name); err == nil {
			all = append(all, v)
		}
	}
	if len(all) == 0 {
		return []int64{0}
	}
	slices.Sort(all)
	slices.Reverse(all)
	return all
}
