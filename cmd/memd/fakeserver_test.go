package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"connectrpc.com/connect/v2/connectproto"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"forgettable.dev/memd"
	"google.golang.org/protobuf/proto"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
)

// fakeKey is the one API key that the fake server knows.
const fakeKey = "memd_fake"

// fakeServer is the API with just enough behind it to see what the command line
// sends and how it shows what comes back. User ids that begin with the name of
// a reason in lower case are refused for that reason.
type fakeServer struct {
	memdv1connect.UnimplementedMemoryServiceHandler
	memdv1connect.UnimplementedErasureServiceHandler
	memdv1connect.UnimplementedAdminServiceHandler
	fakeTargets
	fakeCompaction

	mu       sync.Mutex
	rows     []*memdv1.Memory
	events   map[string]*memdv1.Memory
	tenants  map[string]*memdv1.Tenant
	keys     []*memdv1.ApiKey
	requests map[string]int // erasures, by request id
	erasures map[string]*memdv1.Report
	holds    []*memdv1.LegalHold
	busy     int // how many further Adds are refused for want of a connection
	adds     int
	largest  int // rows of one Add
	handler  http.Handler
}

// newFakeServer starts a server that ends with the test.
func newFakeServer() (*fakeServer, *httptest.Server) {
	f := &fakeServer{
		events:   map[string]*memdv1.Memory{},
		tenants:  map[string]*memdv1.Tenant{},
		requests: map[string]int{},
		erasures: fakeErasures(),
	}
	server := connect.NewServer(func(next connect.ServerFunc) connect.ServerFunc {
		return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
			info, _ := connect.CallInfoForServerContext(ctx)
			if info.RequestHeader().Get("Authorization") != "Bearer "+fakeKey {
				return reasonError(connect.CodeUnauthenticated, memdv1.Reason_REASON_UNAUTHENTICATED, "no valid API key")
			}
			return next(ctx, spec, stream)
		}
	})
	memdv1connect.RegisterMemoryServiceHandler(server, f)
	memdv1connect.RegisterErasureServiceHandler(server, f)
	memdv1connect.RegisterAdminServiceHandler(server, f)
	memdv1connect.RegisterTargetServiceHandler(server, f)
	memdv1connect.RegisterCompactServiceHandler(server, f)
	memdv1connect.RegisterArtifactServiceHandler(server, &fakeArtifacts{kept: map[string][]kept{}})
	memdv1connect.RegisterSessionServiceHandler(server, &fakeSessions{kept: map[string]*memdv1.SessionRecord{}})
	mux := http.NewServeMux()
	exports := &fakeExports{archives: map[string][]byte{}}
	memdv1connect.RegisterExportServiceHandler(server, exports)
	mux.Handle("GET /exports/{secret}", exports)
	connecthttp.Mount(mux, server, connecthttp.WithReadMaxBytes(memd.MaxBatchBytes))
	f.handler = mux
	return f, httptest.NewServer(mux)
}

func reasonError(code connect.Code, reason memdv1.Reason, message string) error {
	detail, err := connectproto.NewErrorDetail(&errdetails.ErrorInfo{Domain: "memd", Reason: reasonName(reason)})
	if err != nil {
		panic(err)
	}
	return connect.NewError(code, message).WithDetail(detail)
}

func (f *fakeServer) Add(_ context.Context, req *memdv1.AddRequest) (*memdv1.AddResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.adds++
	f.largest = max(f.largest, len(req.GetRows()))
	if f.busy > 0 {
		f.busy--
		return nil, reasonError(connect.CodeResourceExhausted, memdv1.Reason_REASON_DATABASE_BUSY, "no database connection in time")
	}
	for _, row := range req.GetRows() {
		user := row.GetScope().GetUser().GetUserId()
		for n, name := range memdv1.Reason_name {
			if n != 0 && strings.HasPrefix(user, strings.ToLower(strings.TrimPrefix(name, "REASON_"))) {
				return nil, reasonError(connect.CodeFailedPrecondition, memdv1.Reason(n), "refused")
			}
		}
	}
	resp := &memdv1.AddResponse{}
	for _, row := range req.GetRows() {
		status := memdv1.AddStatus_ADD_STATUS_CREATED
		event := fmt.Sprintf("%s %q %q", scopeName(row.GetScope()), row.GetSessionId(), row.GetEventId())
		m := f.events[event]
		switch {
		case m != nil && row.GetEventId() != "" && m.GetText() == row.GetText():
			status = memdv1.AddStatus_ADD_STATUS_UNCHANGED
		case m != nil && row.GetEventId() != "":
			m.Text, m.Version = row.GetText(), m.GetVersion()+1
			status = memdv1.AddStatus_ADD_STATUS_UPDATED
		default:
			m = &memdv1.Memory{
				MemoryId: fmt.Sprintf("00000000-0000-4000-8000-%012d", len(f.rows)+1),
				Scope:    row.GetScope(), Kind: row.GetKind(), Text: row.GetText(), Metadata: row.GetMetadata(),
				SourceTime: row.GetSourceTime(), ExpiresAt: row.GetExpiresAt(), Version: 1, ContributionCount: 1,
				CreatedAt: timestamppb.New(time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)),
			}
			if s := cmp.Or(row.GetSessionId(), row.GetContributor().GetSessionId()); s != "" {
				m.SessionIds = []string{s}
			}
			f.rows = append(f.rows, m)
			f.events[event] = m
		}
		resp.Results = append(resp.Results, &memdv1.AddResult{MemoryId: m.GetMemoryId(), Version: m.GetVersion(), Status: status})
	}
	return resp, nil
}

func (f *fakeServer) in(scope *memdv1.Scope, filter *memdv1.Filter) []*memdv1.Memory {
	var out []*memdv1.Memory
	for _, m := range f.rows {
		switch {
		case scopeName(m.GetScope()) != scopeName(scope),
			len(filter.GetKinds()) > 0 && !slices.Contains(filter.GetKinds(), m.GetKind()),
			len(filter.GetSessionIds()) > 0 && !slices.ContainsFunc(filter.GetSessionIds(), func(s string) bool { return slices.Contains(m.GetSessionIds(), s) }):
			continue
		}
		match := true
		for k, v := range filter.GetMetadata() {
			match = match && m.GetMetadata()[k] == v
		}
		if match {
			out = append(out, m)
		}
	}
	return out
}

func (f *fakeServer) Search(_ context.Context, req *memdv1.SearchRequest) (*memdv1.SearchResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if req.GetScope().GetUser().GetUserId() == "fenced" {
		return &memdv1.SearchResponse{Fenced: true}, nil
	}
	resp := &memdv1.SearchResponse{Fused: req.GetLexicalWeight() == 0.5}
	for _, m := range f.in(req.GetScope(), req.GetFilter()) {
		if strings.Contains(strings.ToLower(m.GetText()), strings.ToLower(req.GetText())) && len(resp.Hits) < int(req.GetTopK()) {
			resp.Hits = append(resp.Hits, &memdv1.Hit{Memory: m, Score: 0.5})
		}
	}
	return resp, nil
}

// List gives pages of two, however many were asked for.
func (f *fakeServer) List(_ context.Context, req *memdv1.ListRequest) (*memdv1.ListResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rows := f.in(req.GetScope(), req.GetFilter())
	from, _ := strconv.Atoi(req.GetPageToken())
	to := min(from+min(2, int(req.GetPageSize())), len(rows))
	resp := &memdv1.ListResponse{Memories: rows[from:to]}
	if to < len(rows) {
		resp.NextPageToken = strconv.Itoa(to)
	}
	return resp, nil
}

func (f *fakeServer) Get(_ context.Context, req *memdv1.GetRequest) (*memdv1.GetResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.in(req.GetScope(), nil) {
		if m.GetMemoryId() == req.GetMemoryId() {
			return &memdv1.GetResponse{Memory: m}, nil
		}
	}
	return nil, reasonError(connect.CodeNotFound, memdv1.Reason_REASON_NOT_FOUND, "not found")
}

func (f *fakeServer) Delete(ctx context.Context, req *memdv1.DeleteRequest) (*memdv1.DeleteResponse, error) {
	if _, err := f.Get(ctx, &memdv1.GetRequest{Scope: req.GetScope(), MemoryId: req.GetMemoryId()}); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rows = slices.DeleteFunc(f.rows, func(m *memdv1.Memory) bool { return m.GetMemoryId() == req.GetMemoryId() })
	return &memdv1.DeleteResponse{DerivedRemaining: 1}, nil
}

func (f *fakeServer) ForgetUser(_ context.Context, req *memdv1.ForgetUserRequest) (*memdv1.ForgetUserResponse, error) {
	report, err := f.forget(req.GetRequestId(), func(m *memdv1.Memory) bool {
		return scopeName(m.GetScope()) == req.GetApp()+"/"+req.GetUserId()
	})
	return &memdv1.ForgetUserResponse{Report: report}, err
}

func (f *fakeServer) ForgetSession(_ context.Context, req *memdv1.ForgetSessionRequest) (*memdv1.ForgetSessionResponse, error) {
	report, err := f.forget(req.GetRequestId(), func(m *memdv1.Memory) bool {
		return scopeName(m.GetScope()) == req.GetApp()+"/"+req.GetUserId() && slices.Contains(m.GetSessionIds(), req.GetSessionId())
	})
	return &memdv1.ForgetSessionResponse{Report: report}, err
}

// forget is unfinished the first time that it is asked, and done the second.
func (f *fakeServer) forget(request string, match func(*memdv1.Memory) bool) (*memdv1.Report, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.requests[request]++; f.requests[request] == 1 {
		return nil, reasonError(connect.CodeDeadlineExceeded, memdv1.Reason_REASON_ERASURE_UNFINISHED, "erasure is still running")
	}
	before := len(f.rows)
	f.rows = slices.DeleteFunc(f.rows, match)
	at := func(day int) *timestamppb.Timestamp {
		return timestamppb.New(time.Date(2026, 7, day, 12, 0, 0, 0, time.UTC))
	}
	return &memdv1.Report{
		RequestId: request, State: memdv1.ErasureState_ERASURE_STATE_DONE, AcceptedAt: at(1), FinishedAt: at(2), KeyEpoch: 2,
		Counts: []*memdv1.StoreCount{{Store: "memories", Before: int64(before - len(f.rows))}},
		Fallen: []*memdv1.FallenRow{{
			MemoryId: "00000000-0000-4000-8000-0000000000ff", Scope: userScope("default", "bob"),
			SurvivingSources: []*memdv1.Source{{Source: &memdv1.Source_MemoryId{MemoryId: "00000000-0000-4000-8000-0000000000fe"}}},
		}},
		FallenTotal: 3,
		Key:         &memdv1.KeyDestruction{KmsVersion: "kms/1", UnreadableAt: at(2), DestroyedAt: at(3), PurgedAt: at(30)},
	}, nil
}

func (f *fakeServer) CreateTenant(_ context.Context, req *memdv1.CreateTenantRequest) (*memdv1.CreateTenantResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tenants[req.GetName()] != nil {
		return nil, reasonError(connect.CodeAlreadyExists, memdv1.Reason_REASON_EXISTS, "exists already")
	}
	policy := req.GetPolicy()
	policy.Dimension = cmp.Or(policy.GetDimension(), 384)
	policy.Embedder = cmp.Or(policy.GetEmbedder(), "lexical")
	policy.VectorFormat = cmp.Or(policy.GetVectorFormat(), memdv1.VectorFormat_VECTOR_FORMAT_FLOAT32)
	policy.LiftFence = cmp.Or(policy.GetLiftFence(), memdv1.LiftFence_LIFT_FENCE_AFTER_ERASURE)
	policy.Index = cmp.Or(policy.GetIndex(), memdv1.IndexMode_INDEX_MODE_AUTO)
	if policy.DestroyDelay == nil {
		policy.DestroyDelay = durationpb.New(24 * time.Hour)
	}
	f.tenants[req.GetName()] = &memdv1.Tenant{
		Name: req.GetName(), DisplayName: req.GetDisplayName(), State: memdv1.TenantState_TENANT_STATE_ACTIVE, KeyEpoch: 1, Policy: policy,
	}
	res := &memdv1.CreateTenantResponse{Tenant: f.tenants[req.GetName()]}
	if len(req.GetFirstKeyRoles()) > 0 && len(f.tenants) == 1 { // The second has one.
		res.FirstKey, res.FirstSecret = &memdv1.ApiKey{KeyId: "k1", Tenant: req.GetName(), Roles: req.GetFirstKeyRoles()}, "memd_first"
	}
	return res, nil
}

func (f *fakeServer) GetTenant(_ context.Context, req *memdv1.GetTenantRequest) (*memdv1.GetTenantResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := f.tenants[req.GetName()]; t != nil {
		return &memdv1.GetTenantResponse{Tenant: t}, nil
	}
	return nil, reasonError(connect.CodeNotFound, memdv1.Reason_REASON_NOT_FOUND, "not found")
}

func (f *fakeServer) ListTenants(context.Context, *memdv1.ListTenantsRequest) (*memdv1.ListTenantsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := &memdv1.ListTenantsResponse{}
	for _, t := range f.tenants {
		resp.Tenants = append(resp.Tenants, t)
	}
	slices.SortFunc(resp.Tenants, func(a, b *memdv1.Tenant) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return resp, nil
}

func (f *fakeServer) SetPolicy(ctx context.Context, req *memdv1.SetPolicyRequest) (*memdv1.SetPolicyResponse, error) {
	resp, err := f.GetTenant(ctx, &memdv1.GetTenantRequest{Name: req.GetTenant()})
	if err != nil {
		return nil, err
	}
	if d := req.GetPolicy().GetIngestionDelay(); d != nil {
		resp.Tenant.Policy.IngestionDelay = d
	}
	if l := req.GetPolicy().GetLiftFence(); l != memdv1.LiftFence_LIFT_FENCE_UNSPECIFIED {
		resp.Tenant.Policy.LiftFence = l
	}
	if r := req.GetPolicy().GetSessionRetention(); r != nil {
		proto.Merge(resp.Tenant.Policy, &memdv1.Policy{SessionRetention: r})
	}
	resp.Tenant.Policy.Quota = req.GetPolicy().GetQuota()
	return &memdv1.SetPolicyResponse{Tenant: resp.GetTenant()}, nil
}

// expiries are a plan of three months.
func expiries(state memdv1.ErasureState) []*memdv1.Expiry {
	due := &memdv1.Expiry{DataClass: memdv1.DataClass_DATA_CLASS_SESSION, Month: "2026-09", Rows: 12, Bytes: 3456, RequestId: "9", State: state}
	kept := func(month string, why memdv1.KeptReason) *memdv1.Expiry {
		return &memdv1.Expiry{DataClass: memdv1.DataClass_DATA_CLASS_MEMORY, Month: month, Rows: 1, Bytes: 2, Kept: why}
	}
	return []*memdv1.Expiry{due, kept("2026-09", memdv1.KeptReason_KEPT_REASON_HELD), kept("2026-10", memdv1.KeptReason_KEPT_REASON_IN_WINDOW)}
}

func (f *fakeServer) PlanRetention(context.Context, *memdv1.PlanRetentionRequest) (*memdv1.PlanRetentionResponse, error) {
	return &memdv1.PlanRetentionResponse{Expiries: expiries(0)}, nil
}

func (f *fakeServer) RunRetention(context.Context, *memdv1.RunRetentionRequest) (*memdv1.RunRetentionResponse, error) {
	return &memdv1.RunRetentionResponse{Expiries: expiries(memdv1.ErasureState_ERASURE_STATE_DONE)}, nil
}

func (f *fakeServer) SuspendTenant(ctx context.Context, req *memdv1.SuspendTenantRequest) (*memdv1.SuspendTenantResponse, error) {
	t, err := f.take(ctx, req.GetTenant(), memdv1.TenantState_TENANT_STATE_SUSPENDED)
	return &memdv1.SuspendTenantResponse{Tenant: t}, err
}

func (f *fakeServer) ResumeTenant(ctx context.Context, req *memdv1.ResumeTenantRequest) (*memdv1.ResumeTenantResponse, error) {
	t, err := f.take(ctx, req.GetTenant(), memdv1.TenantState_TENANT_STATE_ACTIVE)
	return &memdv1.ResumeTenantResponse{Tenant: t}, err
}

func (f *fakeServer) take(ctx context.Context, name string, to memdv1.TenantState) (*memdv1.Tenant, error) {
	resp, err := f.GetTenant(ctx, &memdv1.GetTenantRequest{Name: name})
	if err != nil {
		return nil, err
	}
	resp.Tenant.State = to
	return resp.GetTenant(), nil
}

func (f *fakeServer) CreateApiKey(_ context.Context, req *memdv1.CreateApiKeyRequest) (*memdv1.CreateApiKeyResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := &memdv1.ApiKey{KeyId: fmt.Sprintf("00000000-0000-4000-9000-%012d", len(f.keys)+1), Tenant: req.GetTenant(), Name: req.GetName(), Roles: req.GetRoles()}
	f.keys = append(f.keys, key)
	return &memdv1.CreateApiKeyResponse{ApiKey: key, Secret: "memd_shown_once"}, nil
}

func (f *fakeServer) ListApiKeys(_ context.Context, req *memdv1.ListApiKeysRequest) (*memdv1.ListApiKeysResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := &memdv1.ListApiKeysResponse{}
	for _, k := range f.keys {
		if k.GetTenant() == req.GetTenant() {
			resp.ApiKeys = append(resp.ApiKeys, k)
		}
	}
	return resp, nil
}

func (f *fakeServer) RevokeApiKey(_ context.Context, req *memdv1.RevokeApiKeyRequest) (*memdv1.RevokeApiKeyResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range f.keys {
		if k.GetKeyId() == req.GetKeyId() {
			k.RevokedAt = timestamppb.New(time.Date(2026, 7, 3, 0, 0, 0, 0, time.UTC))
			return &memdv1.RevokeApiKeyResponse{ApiKey: k}, nil
		}
	}
	return nil, reasonError(connect.CodeNotFound, memdv1.Reason_REASON_NOT_FOUND, "not found")
}

// startFake starts a fake server for a Go test.
func startFake(t testing.TB) (*fakeServer, *httptest.Server) {
	t.Helper()
	f, srv := newFakeServer()
	t.Cleanup(srv.Close)
	return f, srv
}
