package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect/v2"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
)

// fakeTargets is the part of the fake server that knows purge targets. One that
// is called "down" is.
type fakeTargets struct {
	memdv1connect.UnimplementedTargetServiceHandler

	targetsMu sync.Mutex
	targets   []*memdv1.Target
}

func (f *fakeTargets) CreateTarget(_ context.Context, req *memdv1.CreateTargetRequest) (*memdv1.CreateTargetResponse, error) {
	f.targetsMu.Lock()
	defer f.targetsMu.Unlock()
	t := &memdv1.Target{
		Tenant: req.GetTenant(), Name: req.GetName(), Kind: req.GetKind(), Order: req.GetOrder(), Required: !req.GetBestEffort(),
		Url: req.GetUrl(), Path: req.GetPath(), Timeout: req.GetTimeout(), AllowPrivate: req.GetAllowPrivate(), Retention: req.GetRetention(),
		LogFields: req.GetLogFields(), CreatedAt: timestamppb.New(time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)),
	}
	f.targets = append(f.targets, t)
	resp := &memdv1.CreateTargetResponse{Target: t}
	switch {
	case req.GetSecret() == "given-in-a-file-0001" || req.GetUrl() == "":
	case req.GetSecret() == "":
		resp.Secret = "memdt_shown_once"
	default:
		return nil, reasonError(connect.CodeInvalidArgument, memdv1.Reason_REASON_INVALID, "secret is another")
	}
	return resp, nil
}

func (f *fakeTargets) ListTargets(_ context.Context, req *memdv1.ListTargetsRequest) (*memdv1.ListTargetsResponse, error) {
	f.targetsMu.Lock()
	defer f.targetsMu.Unlock()
	resp := &memdv1.ListTargetsResponse{}
	for _, t := range f.targets {
		if t.GetTenant() == req.GetTenant() {
			resp.Targets = append(resp.Targets, t)
		}
	}
	return resp, nil
}

func (f *fakeTargets) DeleteTarget(_ context.Context, req *memdv1.DeleteTargetRequest) (*memdv1.DeleteTargetResponse, error) {
	f.targetsMu.Lock()
	defer f.targetsMu.Unlock()
	before := len(f.targets)
	f.targets = slices.DeleteFunc(f.targets, func(t *memdv1.Target) bool {
		return t.GetTenant() == req.GetTenant() && t.GetName() == req.GetName()
	})
	if len(f.targets) == before {
		return nil, reasonError(connect.CodeNotFound, memdv1.Reason_REASON_NOT_FOUND, "not found")
	}
	return &memdv1.DeleteTargetResponse{}, nil
}

func (f *fakeTargets) TestTarget(_ context.Context, req *memdv1.TestTargetRequest) (*memdv1.TestTargetResponse, error) {
	resp := &memdv1.TestTargetResponse{Ok: true, Code: "ok", Count: new(int64), Tries: 1, Took: durationpb.New(5 * time.Millisecond)}
	if req.GetName() == "down" {
		resp = &memdv1.TestTargetResponse{Code: "unreachable", Tries: 4, Took: durationpb.New(time.Second)}
	}
	return resp, nil
}
