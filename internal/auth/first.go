package auth

import (
	"context"
	"fmt"

	"forgettable.dev/memd/internal/pg"
)

const sqlNoKeys = `SELECT NOT EXISTS (SELECT FROM memd.principals)`

// None reports whether no key was ever made: the installation is new, and its
// first key is made by whoever has the database, because no key could.
func None(ctx context.Context, db pg.DB) (bool, error) {
	var none bool
	if err := db.QueryRow(ctx, sqlNoKeys).Scan(&none); err != nil {
		return false, fmt.Errorf("looking for API keys: %w", err)
	}
	return none, nil
}
