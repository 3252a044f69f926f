package main

import (
	"context"
	"slices"
	"time"

	"connectrpc.com/connect/v2"
	"google.golang.org/protobuf/types/known/timestamppb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
)

// The erasures that the fake server knows from the beginning: one that a check
// stopped, and one that is final. Both are about nobody.
const (
	fakeStopped = "0b3e8a34-6a5c-4f0e-9d0e-0f5a5f7d6c31"
	fakeFinal   = "0b3e8a34-6a5c-4f0e-9d0e-0f5a5f7d6c32"
)

func july(day int) *timestamppb.Timestamp {
	return timestamppb.New(time.Date(2026, 7, day, 12, 0, 0, 0, time.UTC))
}

// fakeErasures are reports by request id.
func fakeErasures() map[string]*memdv1.Report {
	stopped := &memdv1.Erasure{
		RequestId: fakeStopped, Kind: memdv1.ErasureKind_ERASURE_KIND_USER, State: memdv1.ErasureState_ERASURE_STATE_RUNNING,
		App: "default", AcceptedAt: july(1), DueAt: july(31), Tries: 3, Failure: "verification",
	}
	final := &memdv1.Erasure{
		RequestId: fakeFinal, Kind: memdv1.ErasureKind_ERASURE_KIND_SESSION, State: memdv1.ErasureState_ERASURE_STATE_FINAL,
		App: "default", AcceptedAt: july(2), DueAt: july(31), FinishedAt: july(3), FinalAt: july(4),
	}
	step := func(name string, done bool) *memdv1.ErasureStep {
		s := &memdv1.ErasureStep{Name: name, Done: done, StartedAt: july(1)}
		if done {
			s.FinishedAt = july(2)
		}
		return s
	}
	return map[string]*memdv1.Report{
		fakeStopped: {
			RequestId: fakeStopped, Erasure: stopped, State: stopped.GetState(), AcceptedAt: stopped.GetAcceptedAt(),
			Counts: []*memdv1.StoreCount{{Store: "memories", Before: 37}, {Store: "artifacts", Before: 8}},
			Steps:  []*memdv1.ErasureStep{step("fence", true), step("check", false)},
			Checks: []*memdv1.ErasureCheck{{
				Name: "unique_probes", Result: "fail", Reason: "hits_elsewhere", ControlBefore: 12, CountAfter: 1,
				Rows: []string{"memories 00000000-0000-4000-8000-0000000000ff"}, Scanned: 900,
			}},
		},
		fakeFinal: {
			RequestId: fakeFinal, Erasure: final, State: final.GetState(), AcceptedAt: final.GetAcceptedAt(), FinishedAt: final.GetFinishedAt(),
			Steps:  []*memdv1.ErasureStep{step("bury", true), step("final", true)},
			Checks: []*memdv1.ErasureCheck{{Name: "rows_by_owner", Result: "pass", ControlBefore: 3}},
		},
	}
}

func (f *fakeServer) named(request string) (*memdv1.Report, error) {
	if r := f.erasures[request]; r != nil {
		return r, nil
	}
	return nil, reasonError(connect.CodeNotFound, memdv1.Reason_REASON_NOT_FOUND, "not found")
}

func (f *fakeServer) GetErasure(_ context.Context, req *memdv1.GetErasureRequest) (*memdv1.GetErasureResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, err := f.named(req.GetRequestId())
	return &memdv1.GetErasureResponse{Report: r}, err
}

// ListErasures gives out one a page.
func (f *fakeServer) ListErasures(_ context.Context, req *memdv1.ListErasuresRequest) (*memdv1.ListErasuresResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := &memdv1.ListErasuresResponse{}
	for _, id := range []string{fakeFinal, fakeStopped} {
		e := f.erasures[id].GetErasure()
		switch {
		case len(req.GetStates()) > 0 && !slices.Contains(req.GetStates(), e.GetState()), req.GetPageToken() != "" && id == fakeFinal:
		case len(resp.GetErasures()) == 1:
			resp.NextPageToken = "after-the-first"
		default:
			resp.Erasures = append(resp.Erasures, e)
		}
	}
	return resp, nil
}

// WatchErasure tells all steps, twice, as a server does that was asked again.
func (f *fakeServer) WatchErasure(_ context.Context, req *memdv1.WatchErasureRequest, stream memdv1connect.ErasureServiceWatchErasureServerStream) error {
	f.mu.Lock()
	r, err := f.named(req.GetRequestId())
	f.mu.Unlock()
	if err != nil {
		return err
	}
	for range 2 {
		for _, s := range r.GetSteps() {
			if err := stream.Send(&memdv1.WatchErasureResponse{Erasure: r.GetErasure(), Step: s}); err != nil {
				return err
			}
		}
	}
	return stream.Send(&memdv1.WatchErasureResponse{Erasure: r.GetErasure()})
}

func (f *fakeServer) DryRun(ctx context.Context, req *memdv1.DryRunRequest) (*memdv1.DryRunResponse, error) {
	f.mu.Lock()
	held := len(f.holds) > 0
	f.mu.Unlock()
	resp := &memdv1.DryRunResponse{Counts: []*memdv1.StoreCount{{Store: "memories", Before: 37}}, Sessions: 4, Held: held}
	if req.GetUserId() != "" {
		return resp, nil
	}
	t, err := f.GetTenant(ctx, &memdv1.GetTenantRequest{Name: req.GetTenant()})
	resp.DisplayName, resp.TenantState, resp.Subjects, resp.Bytes = t.GetTenant().GetDisplayName(), t.GetTenant().GetState(), 12, 3<<20
	resp.Digest = "5f0c9a3e"
	return resp, err
}

// DeleteTenant demands the display name.
func (f *fakeServer) DeleteTenant(ctx context.Context, req *memdv1.DeleteTenantRequest) (*memdv1.DeleteTenantResponse, error) {
	t, err := f.GetTenant(ctx, &memdv1.GetTenantRequest{Name: req.GetTenant()})
	if err != nil || t.GetTenant().GetDisplayName() != req.GetConfirmDisplayName() {
		return nil, reasonError(connect.CodeNotFound, memdv1.Reason_REASON_NOT_FOUND, "not found")
	}
	report, err := f.forget(req.GetRequestId(), func(*memdv1.Memory) bool { return true })
	if err == nil {
		t.Tenant.State = memdv1.TenantState_TENANT_STATE_PURGED
		report.Fallen, report.FallenTotal = nil, 0
		report.Strangers = []*memdv1.Stranger{{Store: "memories", Subject: 999, Things: 1}}
	}
	return &memdv1.DeleteTenantResponse{Report: report}, err
}

// VerifyErasure answers the second time, if it is asked for the same look.
func (f *fakeServer) VerifyErasure(_ context.Context, req *memdv1.VerifyErasureRequest) (*memdv1.VerifyErasureResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, err := f.named(req.GetRequestId())
	const look = 17
	if err != nil || req.GetBudget().GetWholeStore() && req.GetVerification() != look {
		return &memdv1.VerifyErasureResponse{Verification: look}, err
	}
	return &memdv1.VerifyErasureResponse{Checks: r.GetChecks(), Finished: true, Verification: look}, nil
}

// RemoveSurvivors knows the rows that the checks name.
func (f *fakeServer) RemoveSurvivors(_ context.Context, req *memdv1.RemoveSurvivorsRequest) (*memdv1.RemoveSurvivorsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, err := f.named(req.GetRequestId())
	for _, row := range req.GetRows() {
		if err == nil && !slices.Contains(r.GetChecks()[0].GetRows(), row) {
			err = reasonError(connect.CodeInvalidArgument, memdv1.Reason_REASON_INVALID, "rows must be rows that a check of this erasure names")
		}
	}
	return &memdv1.RemoveSurvivorsResponse{}, err
}

func (f *fakeServer) GetReceipt(_ context.Context, req *memdv1.GetReceiptRequest) (*memdv1.GetReceiptResponse, error) {
	if req.GetRequestId() != fakeFinal {
		return nil, reasonError(connect.CodeNotFound, memdv1.Reason_REASON_NOT_FOUND, "not found")
	}
	return &memdv1.GetReceiptResponse{Bundles: [][]byte{[]byte(`{"provisional":1}`), []byte(`{"final":2}`)}}, nil
}

// GetReceiptKeys has none before the first hold is set, as a server has none before
// the first receipt.
func (f *fakeServer) GetReceiptKeys(context.Context, *memdv1.GetReceiptKeysRequest) (*memdv1.GetReceiptKeysResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.holds) == 0 {
		return nil, reasonError(connect.CodeNotFound, memdv1.Reason_REASON_NOT_FOUND, "not found")
	}
	return &memdv1.GetReceiptKeysResponse{Keyset: []byte("{\"primaryKeyId\":1}\n")}, nil
}

func (f *fakeServer) Hold(_ context.Context, req *memdv1.HoldRequest) (*memdv1.HoldResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := &memdv1.LegalHold{HoldId: req.GetHoldId(), Kind: memdv1.ErasureKind_ERASURE_KIND_TENANT, App: req.GetApp(), Reason: req.GetReason(), CreatedAt: july(5)}
	if req.GetUserId() != "" {
		h.Kind = memdv1.ErasureKind_ERASURE_KIND_USER
	}
	if req.GetSessionId() != "" {
		h.Kind = memdv1.ErasureKind_ERASURE_KIND_SESSION
	}
	f.holds = append(f.holds, h)
	return &memdv1.HoldResponse{Hold: h, Paused: []*memdv1.Erasure{f.erasures[fakeStopped].GetErasure()}}, nil
}

func (f *fakeServer) ReleaseHold(_ context.Context, req *memdv1.ReleaseHoldRequest) (*memdv1.ReleaseHoldResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, h := range f.holds {
		if h.GetHoldId() == req.GetHoldId() {
			h.ReleasedAt = july(6)
			return &memdv1.ReleaseHoldResponse{Hold: h}, nil
		}
	}
	return nil, reasonError(connect.CodeNotFound, memdv1.Reason_REASON_NOT_FOUND, "not found")
}

func (f *fakeServer) ListHolds(_ context.Context, req *memdv1.ListHoldsRequest) (*memdv1.ListHoldsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := &memdv1.ListHoldsResponse{}
	for _, h := range f.holds {
		if h.GetReleasedAt() == nil || req.GetReleased() {
			resp.Holds = append(resp.Holds, h)
		}
	}
	return resp, nil
}
