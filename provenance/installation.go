package provenance

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"forgettable.dev/memd/internal/pg"
)

const sqlInstallation = `SELECT installation_id FROM memd.installation`

// Installation returns the id of the installation that the database belongs
// to. It is made once, by the first migration, and names the tenants' keys at
// the key service.
func Installation(ctx context.Context, db pg.DB) (uuid.UUID, error) {
	var id uuid.UUID
	if err := db.QueryRow(ctx, sqlInstallation).Scan(&id); err != nil {
		return uuid.Nil, fmt.Errorf("reading the installation's id: %w", err)
	}
	return id, nil
}
