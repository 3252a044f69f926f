package main

import (
	"context"
	"fmt"

	"forgettable.dev/memd/internal/pg"
)

// migrateCmd changes the schema; nothing else does.
type migrateCmd struct {
	DatabaseURL string `required:"" env:"MEMD_DATABASE_URL" help:"Direct connection string (no pooler), as the database's owner, with the right to create roles."`
}

func (c *migrateCmd) Run(ctx context.Context, con *console) error {
	if err := pg.Migrate(ctx, c.DatabaseURL); err != nil {
		return err
	}
	fmt.Fprintf(con.Stdout, "The schema is at version %d.\n", pg.SchemaVersion())
	return nil
}
