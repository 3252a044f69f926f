package server

import (
	"context"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/receipts"
)

// erasurePage is how many erasures a page has that says nothing of its size.
const erasurePage = 50

func (h *erasureHandler) GetErasure(ctx context.Context, req *memdv1.GetErasureRequest) (*memdv1.GetErasureResponse, error) {
	c, id, err := h.named(ctx, req.GetTenant(), req.GetRequestId())
	if err != nil {
		return nil, err
	}
	r, err := h.erasure.Report(ctx, c, id)
	if err != nil {
		return nil, err
	}
	return &memdv1.GetErasureResponse{Report: reportToProto(r)}, nil
}

func (h *erasureHandler) ListErasures(ctx context.Context, req *memdv1.ListErasuresRequest) (*memdv1.ListErasuresResponse, error) {
	c, err := h.about(ctx, req.GetTenant())
	if err != nil {
		return nil, err
	}
	var after erasure.After
	if err := decodeToken(req.GetPageToken(), &after); err != nil {
		return nil, err
	}
	states := make([]erasure.State, len(req.GetStates()))
	for i, s := range req.GetStates() {
		states[i] = erasure.State(s)
	}
	size := int(req.GetPageSize())
	if size == 0 {
		size = erasurePage
	}
	var jobs []erasure.Job
	err = h.erasure.Pool.With(ctx, func(db pg.DB) (err error) {
		jobs, err = erasure.List(ctx, db, c.Tenant, states, after, size)
		return err
	})
	if err != nil {
		return nil, err
	}
	resp := &memdv1.ListErasuresResponse{}
	for _, j := range jobs {
		resp.Erasures = append(resp.Erasures, erasureToProto(j))
	}
	if len(jobs) == size {
		last := jobs[len(jobs)-1]
		if resp.NextPageToken, err = encodeToken(erasure.After{AcceptedAt: last.AcceptedAt, ID: last.ID}); err != nil {
			return nil, err
		}
	}
	return resp, nil
}

func (h *erasureHandler) WatchErasure(ctx context.Context, req *memdv1.WatchErasureRequest, stream memdv1connect.ErasureServiceWatchErasureServerStream) error {
	c, id, err := h.named(ctx, req.GetTenant(), req.GetRequestId())
	if err != nil {
		return err
	}
	return h.erasure.Watch(ctx, c, id, req.GetUntilDone(), admittedOf(ctx).again, func(e erasure.Event) error {
		resp := &memdv1.WatchErasureResponse{Erasure: erasureToProto(e.Job)}
		if e.Step != erasure.StepUnknown {
			resp.Step = stepToProto(erasure.StepReport{Step: e.Step, Done: e.Done, Started: e.Started, Finished: e.Finished})
		}
		return stream.Send(resp)
	})
}

func (h *erasureHandler) GetReceipt(ctx context.Context, req *memdv1.GetReceiptRequest) (*memdv1.GetReceiptResponse, error) {
	c, id, err := h.named(ctx, req.GetTenant(), req.GetRequestId())
	if err != nil {
		return nil, err
	}
	var bundles []receipts.Bundle
	err = h.erasure.Pool.With(ctx, func(db pg.DB) (err error) {
		bundles, err = receipts.Read(ctx, db, c.Tenant, id)
		return err
	})
	if err != nil {
		return nil, err
	}
	resp := &memdv1.GetReceiptResponse{}
	for _, b := range bundles {
		data, err := b.Encode()
		if err != nil {
			return nil, err
		}
		resp.Bundles = append(resp.Bundles, data)
	}
	if len(resp.Bundles) == 0 {
		return nil, memd.ErrNotFound
	}
	return resp, nil
}

func (h *erasureHandler) VerifyErasure(ctx context.Context, req *memdv1.VerifyErasureRequest) (*memdv1.VerifyErasureResponse, error) {
	c, id, err := h.named(ctx, req.GetTenant(), req.GetRequestId())
	if err != nil {
		return nil, err
	}
	b := req.GetBudget()
	v, err := h.erasure.Verify(ctx, c, id, memd.SearchBudget{
		Whole: b.GetWholeStore(), Rows: b.GetRows(), Bytes: b.GetMebibytes() << 20, Time: b.GetTime().AsDuration(),
	}, req.GetVerification())
	if err != nil {
		return nil, err
	}
	return &memdv1.VerifyErasureResponse{Checks: checksToProto(v.Checks), Finished: v.Done, Verification: v.No}, nil
}
