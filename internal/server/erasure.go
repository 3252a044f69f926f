package server

import (
	"context"
	"encoding/hex"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/tenants"
)

type erasureHandler struct {
	erasure *erasure.Service
}

var _ memdv1connect.ErasureServiceHandler = (*erasureHandler)(nil)

func callerOf(ctx context.Context) erasure.Caller {
	p := principalOf(ctx)
	return erasure.Caller{Tenant: p.Tenant, Epoch: p.Epoch, KeyID: p.Key}
}

// waiting is callerOf with the time that the request says to wait.
func waiting(ctx context.Context, wait *durationpb.Duration) erasure.Caller {
	c := callerOf(ctx)
	if wait != nil {
		c.Wait = new(wait.AsDuration())
	}
	return c
}

// about is callerOf for a call that a key of the installation may make for a
// tenant that it names. A tenant's own key names none, or its own.
func (h *erasureHandler) about(ctx context.Context, name string) (erasure.Caller, error) {
	p := principalOf(ctx)
	if p.Tenant != auth.Installation {
		if name != "" && name != p.TenantName {
			return erasure.Caller{}, memd.ErrNotFound
		}
		return callerOf(ctx), nil
	}
	if name == "" {
		return erasure.Caller{}, &memd.InvalidError{Field: "tenant", Problem: "is required with a key of the installation"}
	}
	c := callerOf(ctx)
	err := h.erasure.Pool.With(ctx, func(db pg.DB) error {
		t, err := tenants.Get(ctx, db, name)
		c.Tenant, c.Epoch = t.No, t.Epoch
		return err
	})
	return c, err
}

// named resolves what most calls about one erasure begin with.
func (h *erasureHandler) named(ctx context.Context, tenant, request string) (erasure.Caller, uuid.UUID, error) {
	c, err := h.about(ctx, tenant)
	if err != nil {
		return c, uuid.Nil, err
	}
	id, err := idFromProto("request_id", request)
	return c, id, err
}

func (h *erasureHandler) ForgetUser(ctx context.Context, req *memdv1.ForgetUserRequest) (*memdv1.ForgetUserResponse, error) {
	id, err := idFromProto("request_id", req.GetRequestId())
	if err != nil {
		return nil, err
	}
	r, err := h.erasure.ForgetUser(ctx, waiting(ctx, req.GetWait()), req.GetApp(), req.GetUserId(), id)
	if err != nil {
		return nil, err
	}
	return &memdv1.ForgetUserResponse{Report: reportToProto(r)}, nil
}

func (h *erasureHandler) ForgetSession(ctx context.Context, req *memdv1.ForgetSessionRequest) (*memdv1.ForgetSessionResponse, error) {
	id, err := idFromProto("request_id", req.GetRequestId())
	if err != nil {
		return nil, err
	}
	r, err := h.erasure.ForgetSession(ctx, waiting(ctx, req.GetWait()), req.GetApp(), req.GetUserId(), req.GetSessionId(), id)
	if err != nil {
		return nil, err
	}
	return &memdv1.ForgetSessionResponse{Report: reportToProto(r)}, nil
}

func (h *erasureHandler) DeleteTenant(ctx context.Context, req *memdv1.DeleteTenantRequest) (*memdv1.DeleteTenantResponse, error) {
	if principalOf(ctx).Tenant != auth.Installation {
		return nil, memd.ErrPermissionDenied
	}
	id, err := idFromProto("request_id", req.GetRequestId())
	if err != nil {
		return nil, err
	}
	r, err := h.erasure.DeleteTenant(ctx, waiting(ctx, req.GetWait()), req.GetTenant(), req.GetConfirmDisplayName(), id)
	if err != nil {
		return nil, err
	}
	return &memdv1.DeleteTenantResponse{Report: reportToProto(r)}, nil
}

func (h *erasureHandler) DryRun(ctx context.Context, req *memdv1.DryRunRequest) (*memdv1.DryRunResponse, error) {
	c, err := h.about(ctx, req.GetTenant())
	if err != nil {
		return nil, err
	}
	var p erasure.Preview
	if req.GetApp() == "" && req.GetUserId() == "" && req.GetSessionId() == "" && principalOf(ctx).Tenant == auth.Installation {
		p, err = h.erasure.DryRunTenant(ctx, req.GetTenant())
	} else {
		kind := erasure.KindUser
		switch {
		case req.GetSessionId() != "" && req.GetKeepMemories():
			kind = erasure.KindContent
		case req.GetSessionId() != "":
			kind = erasure.KindSession
		}
		p, err = h.erasure.DryRun(ctx, c, kind, req.GetApp(), req.GetUserId(), req.GetSessionId())
	}
	if err != nil {
		return nil, err
	}
	res := &memdv1.DryRunResponse{
		Counts: countsToProto(p.Counts), Sessions: p.Sessions, Subjects: p.Subjects, Held: p.Held, DisplayName: p.DisplayName,
	}
	if p.Kind == erasure.KindTenant {
		res.TenantState, res.Bytes, res.Strangers = memdv1.TenantState(p.TenantState), p.Bytes, strangersToProto(p.Strangers)
		res.Digest = hex.EncodeToString(p.Digest[:])
	}
	return res, nil
}
