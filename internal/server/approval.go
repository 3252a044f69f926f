package server

import (
	"context"
	"encoding/hex"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/tenants"
)

func (h *erasureHandler) ApproveDeletion(ctx context.Context, req *memdv1.ApproveDeletionRequest) (*memdv1.ApproveDeletionResponse, error) {
	if principalOf(ctx).Tenant != auth.Installation {
		return nil, memd.ErrPermissionDenied
	}
	var digest [32]byte
	if n, err := hex.Decode(digest[:], []byte(req.GetDigest())); err != nil || n != len(digest) {
		return nil, &memd.InvalidError{Field: "digest", Problem: "must be 64 hexadecimal digits, those of the dry run"}
	}
	a, err := h.erasure.ApproveDeletion(ctx, callerOf(ctx), req.GetTenant(), req.GetConfirmDisplayName(), digest)
	if err != nil {
		return nil, err
	}
	return &memdv1.ApproveDeletionResponse{Approval: approvalToProto(a)}, nil
}

func (h *erasureHandler) VoidApproval(ctx context.Context, req *memdv1.VoidApprovalRequest) (*memdv1.VoidApprovalResponse, error) {
	if principalOf(ctx).Tenant != auth.Installation {
		return nil, memd.ErrPermissionDenied
	}
	id, err := idFromProto("approval_id", req.GetApprovalId())
	if err != nil {
		return nil, err
	}
	c, err := h.about(ctx, req.GetTenant())
	if err != nil {
		return nil, err
	}
	var a tenants.Approval
	err = h.erasure.Pool.With(ctx, func(db pg.DB) (err error) {
		a, err = tenants.Void(ctx, db, h.erasure.Clock.Now(), c.Tenant, id)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &memdv1.VoidApprovalResponse{Approval: approvalToProto(a)}, nil
}

func (h *erasureHandler) ListApprovals(ctx context.Context, req *memdv1.ListApprovalsRequest) (*memdv1.ListApprovalsResponse, error) {
	c, err := h.about(ctx, req.GetTenant())
	if err != nil {
		return nil, err
	}
	var all []tenants.Approval
	err = h.erasure.Pool.With(ctx, func(db pg.DB) (err error) {
		all, err = tenants.Approvals(ctx, db, c.Tenant)
		return err
	})
	if err != nil {
		return nil, err
	}
	res := &memdv1.ListApprovalsResponse{}
	for _, a := range all {
		res.Approvals = append(res.Approvals, approvalToProto(a))
	}
	return res, nil
}

func approvalToProto(a tenants.Approval) *memdv1.Approval {
	p := &memdv1.Approval{
		ApprovalId: a.ID.String(), Digest: hex.EncodeToString(a.Digest[:]), ApproverKeyId: a.By.String(),
		ApprovedAt: timestampToProto(a.At), ExpiresAt: timestampToProto(a.ExpiresAt), VoidedAt: timestampToProto(a.VoidedAt),
	}
	if a.Request != uuid.Nil {
		p.RequestId = a.Request.String()
	}
	return p
}

func strangersToProto(all []tenants.Stranger) []*memdv1.Stranger {
	var out []*memdv1.Stranger
	for _, s := range all {
		out = append(out, &memdv1.Stranger{Store: s.Store, Subject: int64(s.Number), Things: s.Things})
	}
	return out
}
