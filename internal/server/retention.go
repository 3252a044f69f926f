package server

import (
	"context"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/tenants"
)

func (h *erasureHandler) PlanRetention(ctx context.Context, req *memdv1.PlanRetentionRequest) (*memdv1.PlanRetentionResponse, error) {
	t, err := h.tenant(ctx, req.GetTenant())
	if err != nil {
		return nil, err
	}
	var plan []erasure.Expiry
	err = h.erasure.Pool.With(ctx, func(db pg.DB) (err error) {
		plan, err = erasure.PlanRetention(ctx, db, erasure.AllStores(), t, h.erasure.Clock.Now())
		return err
	})
	if err != nil {
		return nil, err
	}
	return &memdv1.PlanRetentionResponse{Expiries: expiriesToProto(plan)}, nil
}

func (h *erasureHandler) RunRetention(ctx context.Context, req *memdv1.RunRetentionRequest) (*memdv1.RunRetentionResponse, error) {
	t, err := h.tenant(ctx, req.GetTenant())
	if err != nil {
		return nil, err
	}
	if !t.State.Erases() {
		return nil, memd.ErrTenantInactive
	}
	plan, err := erasure.RunRetention(ctx, h.erasure.Pool, t, principalOf(ctx).Key, h.erasure.Clock.Now())
	if err != nil {
		return nil, err
	}
	return &memdv1.RunRetentionResponse{Expiries: expiriesToProto(plan)}, nil
}

// tenant resolves whose months a call is about.
func (h *erasureHandler) tenant(ctx context.Context, name string) (tenants.Tenant, error) {
	c, err := h.about(ctx, name)
	if err != nil {
		return tenants.Tenant{}, err
	}
	var t tenants.Tenant
	err = h.erasure.Pool.With(ctx, func(db pg.DB) (err error) {
		t, err = tenants.GetByNo(ctx, db, c.Tenant)
		return err
	})
	return t, err
}

// keptToProto names the reasons of the database.
var keptToProto = map[string]memdv1.KeptReason{
	"":                    memdv1.KeptReason_KEPT_REASON_UNSPECIFIED,
	erasure.KeptForEver:   memdv1.KeptReason_KEPT_REASON_FOR_EVER,
	erasure.KeptInWindow:  memdv1.KeptReason_KEPT_REASON_IN_WINDOW,
	erasure.KeptNotBefore: memdv1.KeptReason_KEPT_REASON_NOT_BEFORE,
	erasure.KeptHeld:      memdv1.KeptReason_KEPT_REASON_HELD,
}

func classToProto(c memd.Class) memdv1.DataClass {
	if c == memd.ClassMemory {
		return memdv1.DataClass_DATA_CLASS_MEMORY
	}
	return memdv1.DataClass_DATA_CLASS_SESSION
}

func expiriesToProto(plan []erasure.Expiry) []*memdv1.Expiry {
	out := make([]*memdv1.Expiry, len(plan))
	for i, e := range plan {
		out[i] = &memdv1.Expiry{
			DataClass: classToProto(e.Class), Month: e.Month.String(), Rows: e.Rows, Bytes: e.Bytes, Kept: keptToProto[e.Kept],
			RequestId: e.Request.String(), State: memdv1.ErasureState(e.State),
		}
	}
	return out
}
