package server

import (
	"context"
	"log/slog"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/tenants"
)

func (h *adminHandler) SuspendTenant(ctx context.Context, req *memdv1.SuspendTenantRequest) (*memdv1.SuspendTenantResponse, error) {
	t, err := h.take(ctx, req.GetTenant(), req.GetReason(), tenants.StateSuspended)
	if err != nil {
		return nil, err
	}
	return &memdv1.SuspendTenantResponse{Tenant: tenantToProto(t)}, nil
}

func (h *adminHandler) ResumeTenant(ctx context.Context, req *memdv1.ResumeTenantRequest) (*memdv1.ResumeTenantResponse, error) {
	t, err := h.take(ctx, req.GetTenant(), req.GetReason(), tenants.StateActive)
	if err != nil {
		return nil, err
	}
	return &memdv1.ResumeTenantResponse{Tenant: tenantToProto(t)}, nil
}

func (h *adminHandler) MoveTenant(ctx context.Context, req *memdv1.MoveTenantRequest) (*memdv1.MoveTenantResponse, error) {
	t, err := h.take(ctx, req.GetTenant(), req.GetReason(), tenants.State(req.GetState()))
	if err != nil {
		return nil, err
	}
	return &memdv1.MoveTenantResponse{Tenant: tenantToProto(t)}, nil
}

func (h *adminHandler) ListTransitions(ctx context.Context, req *memdv1.ListTransitionsRequest) (*memdv1.ListTransitionsResponse, error) {
	t, err := h.tenant(ctx, req.GetTenant())
	if err != nil {
		return nil, err
	}
	all, err := h.erasure.Transitions(ctx, t, principalOf(ctx).Roles.Any(auth.Auditor))
	if err != nil {
		return nil, err
	}
	res := &memdv1.ListTransitionsResponse{}
	for _, m := range all {
		one := &memdv1.TenantTransition{
			At: timestampToProto(m.At), From: memdv1.TenantState(m.From), To: memdv1.TenantState(m.To), Reason: m.Reason,
		}
		if m.By != uuid.Nil {
			one.ByKeyId = m.By.String()
		}
		res.Transitions = append(res.Transitions, one)
	}
	return res, nil
}

// take takes a tenant to a state, for the installation's operators. A tenant's
// own is refused whatever it names, so that it learns of none.
func (h *adminHandler) take(ctx context.Context, name, reason string, to tenants.State) (tenants.Tenant, error) {
	caller := principalOf(ctx)
	if caller.Tenant != auth.Installation {
		return tenants.Tenant{}, memd.ErrPermissionDenied
	}
	t, err := h.erasure.MoveTenant(ctx, name, to, caller.Key, reason)
	if err != nil {
		return t, err
	}
	h.logger.LogAttrs(ctx, slog.LevelInfo, "tenant is taken to a state",
		slog.String("tenant", t.Name), slog.String("state", t.State.String()), slog.String("by", caller.Key.String()))
	return t, nil
}
