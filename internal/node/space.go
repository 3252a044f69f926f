package node

import (
	"context"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/internal/server"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/tenants"
)

// moving returns the tenants whose rows are to be embedded anew.
func moving(ctx context.Context, db pg.DB) ([]memory.Tenant, error) {
	all, err := tenants.Moving(ctx, db)
	out := make([]memory.Tenant, len(all))
	for i, t := range all {
		out[i] = server.MemoryTenant(t.No, t.Epoch, t.Policy)
	}
	return out, err
}

// moved has a tenant leave its former space.
func (s *Server) moved(ctx context.Context, tx pgx.Tx, t memory.Tenant) error {
	return tenants.Moved(ctx, tx, s.common.Clock.Now(), t.No, int(t.Space))
}
