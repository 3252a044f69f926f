package server

import (
	"context"

	"github.com/google/uuid"

	"forgettable.dev/memd/erasure"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/memory"
)

type erasureHandler struct {
	erasure *erasure.Service
}

var _ memdv1connect.ErasureServiceHandler = (*erasureHandler)(nil)

func callerOf(ctx context.Context) erasure.Caller {
	p := principalOf(ctx)
	return erasure.Caller{Tenant: p.Tenant, Epoch: p.Epoch, KeyID: p.Key}
}

func (h *erasureHandler) ForgetUser(ctx context.Context, req *memdv1.ForgetUserRequest) (*memdv1.ForgetUserResponse, error) {
	id, err := idFromProto("request_id", req.GetRequestId())
	if err != nil {
		return nil, err
	}
	r, err := h.erasure.ForgetUser(ctx, callerOf(ctx), req.GetApp(), req.GetUserId(), id)
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
	r, err := h.erasure.ForgetSession(ctx, callerOf(ctx), req.GetApp(), req.GetUserId(), req.GetSessionId(), id)
	if err != nil {
		return nil, err
	}
	return &memdv1.ForgetSessionResponse{Report: reportToProto(r)}, nil
}

func reportToProto(r erasure.Report) *memdv1.Report {
	p := &memdv1.Report{
		RequestId:   r.ID.String(),
		State:       memdv1.ErasureState(r.State),
		AcceptedAt:  timestampToProto(r.AcceptedAt),
		FinishedAt:  timestampToProto(r.FinishedAt),
		FallenTotal: r.FallenTotal,
		KeyEpoch:    r.Key.Epoch,
	}
	for _, s := range r.Stores {
		one := &memdv1.StoreCount{Store: s.Store, Before: s.Before}
		if s.After >= 0 { // Below zero: not counted yet.
			one.After = new(s.After)
		}
		p.Counts = append(p.Counts, one)
	}
	for _, f := range r.Fallen {
		p.Fallen = append(p.Fallen, fallenToProto(f))
	}
	if r.Key.Epoch > 0 {
		p.Key = &memdv1.KeyDestruction{
			KmsVersion:   r.Key.Version,
			UnreadableAt: timestampToProto(r.Key.Unreadable),
			DestroyedAt:  timestampToProto(r.Key.DestroyedForGood),
			PurgedAt:     timestampToProto(r.Key.Purged),
		}
	}
	return p
}

func fallenToProto(f erasure.FallenRow) *memdv1.FallenRow {
	p := &memdv1.FallenRow{MemoryId: f.ID.String(), Kind: memdv1.Kind(f.Kind)}
	if f.Scope.App != "" {
		p.Scope = scopeToProto(f.Scope)
	}
	for _, s := range f.Sources {
		p.SurvivingSources = append(p.SurvivingSources, sourceToProto(s))
	}
	return p
}

func sourceToProto(s memory.Source) *memdv1.Source {
	if s.MemoryID != uuid.Nil {
		return &memdv1.Source{Source: &memdv1.Source_MemoryId{MemoryId: s.MemoryID.String()}, Version: s.Version}
	}
	return &memdv1.Source{Source: &memdv1.Source_Session{
		Session: &memdv1.Session{UserId: s.UserID, SessionId: s.SessionID},
	}}
}
