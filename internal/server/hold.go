package server

import (
	"context"

	"github.com/google/uuid"

	"forgettable.dev/memd/erasure"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/auth"
)

func (h *erasureHandler) Hold(ctx context.Context, req *memdv1.HoldRequest) (*memdv1.HoldResponse, error) {
	id, err := idFromProto("hold_id", req.GetHoldId())
	if err != nil {
		return nil, err
	}
	hold, paused, err := h.erasure.Hold(ctx, callerOf(ctx), id, req.GetApp(), req.GetUserId(), req.GetSessionId(), req.GetReason())
	if err != nil {
		return nil, err
	}
	caller := principalOf(ctx)
	resp := &memdv1.HoldResponse{Hold: holdToProto(hold, hold.Author == caller.Key || caller.Roles.Any(auth.Auditor))}
	for _, j := range paused {
		resp.Paused = append(resp.Paused, erasureToProto(j))
	}
	return resp, nil
}

func (h *erasureHandler) ReleaseHold(ctx context.Context, req *memdv1.ReleaseHoldRequest) (*memdv1.ReleaseHoldResponse, error) {
	id, err := idFromProto("hold_id", req.GetHoldId())
	if err != nil {
		return nil, err
	}
	hold, err := h.erasure.ReleaseHold(ctx, callerOf(ctx), id)
	if err != nil {
		return nil, err
	}
	return &memdv1.ReleaseHoldResponse{Hold: holdToProto(hold, principalOf(ctx).Roles.Any(auth.Auditor))}, nil
}

func (h *erasureHandler) ListHolds(ctx context.Context, req *memdv1.ListHoldsRequest) (*memdv1.ListHoldsResponse, error) {
	holds, err := h.erasure.Holds(ctx, callerOf(ctx), req.GetReleased())
	if err != nil {
		return nil, err
	}
	resp, auditor := &memdv1.ListHoldsResponse{}, principalOf(ctx).Roles.Any(auth.Auditor)
	for _, one := range holds {
		resp.Holds = append(resp.Holds, holdToProto(one, auditor))
	}
	return resp, nil
}

// holdToProto leaves out what was written down about the hold unless the caller may
// read it.
func holdToProto(h erasure.Hold, reason bool) *memdv1.LegalHold {
	if !reason {
		h.Reason = ""
	}
	p := &memdv1.LegalHold{
		HoldId: h.ID.String(), Kind: memdv1.ErasureKind(h.Kind), App: h.App, Reason: h.Reason, AuthorKeyId: h.Author.String(),
		CreatedAt: timestampToProto(h.CreatedAt), ReleasedAt: timestampToProto(h.ReleasedAt),
	}
	if h.ReleasedBy != uuid.Nil {
		p.ReleasedByKeyId = h.ReleasedBy.String()
	}
	return p
}
