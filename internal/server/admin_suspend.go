package server

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/tenants"
)

func (h *adminHandler) SuspendTenant(ctx context.Context, req *memdv1.SuspendTenantRequest) (*memdv1.SuspendTenantResponse, error) {
	t, err := h.take(ctx, req.GetTenant(), req.GetReason(), tenants.Suspend)
	if err != nil {
		return nil, err
	}
	return &memdv1.SuspendTenantResponse{Tenant: tenantToProto(t)}, nil
}

func (h *adminHandler) ResumeTenant(ctx context.Context, req *memdv1.ResumeTenantRequest) (*memdv1.ResumeTenantResponse, error) {
	t, err := h.take(ctx, req.GetTenant(), req.GetReason(), tenants.Resume)
	if err != nil {
		return nil, err
	}
	return &memdv1.ResumeTenantResponse{Tenant: tenantToProto(t)}, nil
}

// take takes a tenant to a state, for the installation's operators. A tenant's
// own is refused whatever it names, so that it learns of none.
func (h *adminHandler) take(ctx context.Context, name, reason string,
	to func(ctx context.Context, db pg.DB, now time.Time, name string, by uuid.UUID, reason string) (tenants.Tenant, error),
) (tenants.Tenant, error) {
	caller := principalOf(ctx)
	if caller.Tenant != auth.Installation {
		return tenants.Tenant{}, memd.ErrPermissionDenied
	}
	var t tenants.Tenant
	err := h.pool.InTx(ctx, func(tx pgx.Tx) (err error) {
		t, err = to(ctx, tx, h.clock.Now(), name, caller.Key, reason)
		return err
	})
	if err != nil {
		return t, err
	}
	h.logger.LogAttrs(ctx, slog.LevelInfo, "tenant is taken to a state",
		slog.String("tenant", t.Name), slog.String("state", t.State.String()), slog.String("by", caller.Key.String()))
	return t, nil
}
