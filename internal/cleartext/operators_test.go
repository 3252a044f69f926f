package cleartext_test

import (
	"net/http"
	"net/http/httptest"
	"time"

	"filippo.io/age"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/dev"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/gcpkms"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/shred/ledger"
	"forgettable.dev/memd/undo"
)

// until repeats a look until it is satisfied.
func (w *world) until(what string, look func() bool) {
	w.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !look(); <-tick.C {
		if time.Now().After(end) {
			w.t.Fatalf("still not: %s", what)
		}
	}
}

// throughErasures is what erasers, auditors and lawyers say.
func (w *world) throughErasures() {
	ctx, user, session := w.t.Context(), w.word("user"), w.word("session")
	good[*memdv1.AddResponse](w, "Add")(w.memory.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{
		{Scope: userScope(user), SessionId: session, Kind: memdv1.Kind_KIND_RAW, Text: w.word("text"), Vector: w.direction()},
	}}))
	for _, r := range []*memdv1.DryRunRequest{{App: app, UserId: user}, {App: app, UserId: user, SessionId: session}} {
		good[*memdv1.DryRunResponse](w, "DryRun")(w.erasure.DryRun(ctx, r))
	}
	hold := uuid.NewString()
	good[*memdv1.HoldResponse](w, "Hold")(w.erasure.Hold(ctx, &memdv1.HoldRequest{
		HoldId: hold, App: app, UserId: user, SessionId: session, Reason: w.word("reason"),
	}))
	if len(good[*memdv1.ListHoldsResponse](w, "ListHolds")(w.erasure.ListHolds(ctx, &memdv1.ListHoldsRequest{})).GetHolds()) != 1 {
		w.t.Fatal("no hold: the test would be vacuous")
	}
	request := uuid.NewString()
	good[*memdv1.ForgetUserResponse](w, "ForgetUser on hold")(w.erasure.ForgetUser(ctx, &memdv1.ForgetUserRequest{
		App: app, UserId: user, RequestId: request, Wait: durationpb.New(0),
	}))
	good[*memdv1.ReleaseHoldResponse](w, "ReleaseHold")(w.erasure.ReleaseHold(ctx, &memdv1.ReleaseHoldRequest{HoldId: hold}))
	good[*memdv1.ForgetUserResponse](w, "ForgetUser")(w.erasure.ForgetUser(ctx, &memdv1.ForgetUserRequest{App: app, UserId: user, RequestId: request}))
	good[*memdv1.GetErasureResponse](w, "GetErasure")(w.erasure.GetErasure(ctx, &memdv1.GetErasureRequest{RequestId: request, Tenant: tenant}))
	good[*memdv1.ListErasuresResponse](w, "ListErasures")(w.erasure.ListErasures(ctx, &memdv1.ListErasuresRequest{Tenant: tenant}))
	if len(good[*memdv1.GetReceiptResponse](w, "GetReceipt")(w.erasure.GetReceipt(ctx, &memdv1.GetReceiptRequest{RequestId: request, Tenant: tenant})).GetBundles()) == 0 {
		w.t.Fatal("no receipt: the test would be vacuous")
	}
	good[*memdv1.VerifyErasureResponse](w, "VerifyErasure")(w.erasure.VerifyErasure(ctx, &memdv1.VerifyErasureRequest{RequestId: request, Tenant: tenant}))
	good[*memdv1.PlanRetentionResponse](w, "PlanRetention")(w.erasure.PlanRetention(ctx, &memdv1.PlanRetentionRequest{Tenant: tenant}))
	good[*memdv1.RunRetentionResponse](w, "RunRetention")(w.erasure.RunRetention(ctx, &memdv1.RunRetentionRequest{Tenant: tenant}))
	steps, err := w.erasure.WatchErasure(ctx, &memdv1.WatchErasureRequest{RequestId: request, UntilDone: true, Tenant: tenant})
	for n := 0; err == nil; n++ {
		if _, err = steps.Receive(); err != nil && n == 0 {
			w.t.Fatalf("WatchErasure: %v", err)
		}
	}
	w.undo(uuid.MustParse(request))
}

// undo asks for the keys of an erasure back.
func (w *world) undo(erasure uuid.UUID) {
	ctx := w.t.Context()
	must := func(err error) {
		w.t.Helper()
		if err != nil {
			w.t.Fatalf("asking for an undo: %v", err)
		}
	}
	pool, err := pg.Open(ctx, pg.Config{URL: w.d.Cluster.URL(dev.Database, "")})
	must(err)
	defer pool.Close()
	clients := map[kmsemu.Identity]*gcpkms.Client{}
	for _, id := range []kmsemu.Identity{kmsemu.Worker, kmsemu.Shredder, kmsemu.Admin} {
		clients[id], err = gcpkms.Open(ctx, gcpkms.Config{URL: w.d.Identity(id).URL, Token: w.d.Identity(id).Token})
		must(err)
		defer func() { must(clients[id].Close()) }()
	}
	folder, err := ledger.OpenFolder(w.d.Ledger)
	must(err)
	defer func() { must(folder.Close()) }()
	var restorer shred.Restorer = clients[kmsemu.Admin]
	u, err := undo.New(undo.Config{
		Pool: pool, Ledgers: []ledger.Ledger{folder}, Worker: clients[kmsemu.Worker], Shredder: clients[kmsemu.Shredder],
		Restorer: restorer, Clock: memd.SystemClock{}, Logger: w.logger,
	})
	must(err)
	_, err = u.Request(ctx, w.everyRole, tenant, erasure, w.word("reason"))
	must(err)
	asked, err := u.Asked(ctx, w.everyRole, tenant, erasure)
	must(err)
	if !marked(asked.Reason) {
		w.t.Fatal("the reason of an undo is not kept: the test would be vacuous")
	}
	_, err = u.Request(ctx, w.everyRole, tenant, uuid.New(), w.word("reason"))
	w.answers.add(err)
}

// throughExports has a user's archive made, and follows a link to it.
func (w *world) throughExports(user string) {
	ctx, id := w.t.Context(), uuid.NewString()
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		w.t.Fatal(err)
	}
	exports := memdv1connect.NewExportServiceClient(w.client(w.root))
	good[*memdv1.StartExportResponse](w, "StartExport")(exports.StartExport(ctx, &memdv1.StartExportRequest{
		Tenant: tenant, ExportId: id, App: app, UserId: user, Recipients: []string{identity.Recipient().String()},
	}))
	var e *memdv1.Export
	w.until("the archive is ready", func() bool {
		e = good[*memdv1.GetExportResponse](w, "GetExport")(exports.GetExport(ctx, &memdv1.GetExportRequest{Tenant: tenant, ExportId: id})).GetExport()
		return e.GetState() == memdv1.ExportState_EXPORT_STATE_READY
	})
	if e.GetCounts().GetMemories() == 0 || e.GetCounts().GetArtifacts() == 0 || e.GetCounts().GetEvents() == 0 {
		w.t.Fatalf("hardly anything in the archive, which would be vacuous: %v", e.GetCounts())
	}
	good[*memdv1.ListExportsResponse](w, "ListExports")(exports.ListExports(ctx, &memdv1.ListExportsRequest{Tenant: tenant}))
	link := good[*memdv1.CreateExportLinkResponse](w, "CreateExportLink")(exports.CreateExportLink(ctx, &memdv1.CreateExportLinkRequest{Tenant: tenant, ExportId: id}))
	w.get(link.GetPath())
	good[*memdv1.RevokeExportLinkResponse](w, "RevokeExportLink")(exports.RevokeExportLink(ctx,
		&memdv1.RevokeExportLinkRequest{Tenant: tenant, LinkId: link.GetLink().GetLinkId()}))
	gone := uuid.NewString()
	good[*memdv1.StartExportResponse](w, "StartExport")(exports.StartExport(ctx, &memdv1.StartExportRequest{
		Tenant: tenant, ExportId: gone, App: app, UserId: user, Recipients: []string{identity.Recipient().String()},
	}))
	good[*memdv1.DeleteExportResponse](w, "DeleteExport")(exports.DeleteExport(ctx, &memdv1.DeleteExportRequest{Tenant: tenant, ExportId: gone}))
	bad[*memdv1.StartExportResponse](w, "StartExport")(exports.StartExport(ctx, &memdv1.StartExportRequest{
		Tenant: tenant, ExportId: id, App: app, UserId: w.word("user"), Recipients: []string{w.word("recipient")},
	}))
}

// throughTargets registers stores outside: names, addresses and paths are in
// clear in the database, their secrets never.
func (w *world) throughTargets() {
	ctx := w.t.Context()
	targets := memdv1connect.NewTargetServiceClient(w.client(w.root))
	outside := httptest.NewServer(http.NotFoundHandler())
	defer outside.Close()
	for _, c := range []*memdv1.CreateTargetRequest{
		{Kind: memdv1.TargetKind_TARGET_KIND_CONNECT, Url: outside.URL + "/" + w.open("url"), Secret: w.word("secret"), AllowPrivate: true},
		{Kind: memdv1.TargetKind_TARGET_KIND_LOGFILE, Path: w.dir + "/" + w.open("path"),
			LogFields: &memdv1.LogFields{User: w.open("user"), Session: w.open("session"), App: w.open("app")}},
	} {
		c.Tenant, c.Name, c.BestEffort = tenant, w.open("target"), true
		good[*memdv1.CreateTargetResponse](w, "CreateTarget")(targets.CreateTarget(ctx, c))
		good[*memdv1.TestTargetResponse](w, "TestTarget")(targets.TestTarget(ctx, &memdv1.TestTargetRequest{Tenant: tenant, Name: c.GetName()}))
		good[*memdv1.ListTargetsResponse](w, "ListTargets")(targets.ListTargets(ctx, &memdv1.ListTargetsRequest{Tenant: tenant}))
		good[*memdv1.DeleteTargetResponse](w, "DeleteTarget")(targets.DeleteTarget(ctx, &memdv1.DeleteTargetRequest{Tenant: tenant, Name: c.GetName()}))
	}
}

// throughTenants has a tenant come, be renamed to, leave and be purged.
func (w *world) throughTenants() {
	ctx, name, display := w.t.Context(), w.open("tenant"), w.open("display")
	admin, erasure := memdv1connect.NewAdminServiceClient(w.client(w.root)), memdv1connect.NewErasureServiceClient(w.client(w.root))
	good[*memdv1.CreateTenantResponse](w, "CreateTenant")(admin.CreateTenant(ctx, &memdv1.CreateTenantRequest{Name: name, DisplayName: display}))
	get := func() *memdv1.Tenant {
		return good[*memdv1.GetTenantResponse](w, "GetTenant")(admin.GetTenant(ctx, &memdv1.GetTenantRequest{Name: name})).GetTenant()
	}
	w.until("the tenant is active", func() bool { return get().GetState() == memdv1.TenantState_TENANT_STATE_ACTIVE })
	good[*memdv1.SetPolicyResponse](w, "SetPolicy")(admin.SetPolicy(ctx, &memdv1.SetPolicyRequest{
		Tenant: name, Policy: &memdv1.Policy{Index: memdv1.IndexMode_INDEX_MODE_SEALED},
	}))
	key := good[*memdv1.CreateApiKeyResponse](w, "CreateApiKey")(admin.CreateApiKey(ctx, &memdv1.CreateApiKeyRequest{
		Tenant: name, Name: w.open("key"), Roles: []memdv1.Role{memdv1.Role_ROLE_AGENT},
	}))
	good[*memdv1.ListApiKeysResponse](w, "ListApiKeys")(admin.ListApiKeys(ctx, &memdv1.ListApiKeysRequest{Tenant: name}))
	good[*memdv1.RevokeApiKeyResponse](w, "RevokeApiKey")(admin.RevokeApiKey(ctx, &memdv1.RevokeApiKeyRequest{KeyId: key.GetApiKey().GetKeyId()}))
	good[*memdv1.SuspendTenantResponse](w, "SuspendTenant")(admin.SuspendTenant(ctx, &memdv1.SuspendTenantRequest{Tenant: name, Reason: w.word("reason")}))
	good[*memdv1.ResumeTenantResponse](w, "ResumeTenant")(admin.ResumeTenant(ctx, &memdv1.ResumeTenantRequest{Tenant: name, Reason: w.word("reason")}))
	good[*memdv1.SuspendTenantResponse](w, "SuspendTenant")(admin.SuspendTenant(ctx, &memdv1.SuspendTenantRequest{Tenant: name, Reason: w.word("reason")}))
	good[*memdv1.MoveTenantResponse](w, "MoveTenant")(admin.MoveTenant(ctx, &memdv1.MoveTenantRequest{
		Tenant: name, State: memdv1.TenantState_TENANT_STATE_DRAINED, Reason: w.word("reason"),
	}))
	good[*memdv1.ListTransitionsResponse](w, "ListTransitions")(admin.ListTransitions(ctx, &memdv1.ListTransitionsRequest{Tenant: name}))
	digest := good[*memdv1.DryRunResponse](w, "DryRun")(erasure.DryRun(ctx, &memdv1.DryRunRequest{Tenant: name})).GetDigest()
	approver := memdv1connect.NewErasureServiceClient(w.client(w.key(auth.Installation, auth.Approver)))
	approve := func() string {
		return good[*memdv1.ApproveDeletionResponse](w, "ApproveDeletion")(approver.ApproveDeletion(ctx, &memdv1.ApproveDeletionRequest{
			Tenant: name, ConfirmDisplayName: display, Digest: digest,
		})).GetApproval().GetApprovalId()
	}
	good[*memdv1.VoidApprovalResponse](w, "VoidApproval")(approver.VoidApproval(ctx, &memdv1.VoidApprovalRequest{Tenant: name, ApprovalId: approve()}))
	approve()
	good[*memdv1.ListApprovalsResponse](w, "ListApprovals")(erasure.ListApprovals(ctx, &memdv1.ListApprovalsRequest{Tenant: name}))
	bad[*memdv1.DeleteTenantResponse](w, "DeleteTenant")(erasure.DeleteTenant(ctx, &memdv1.DeleteTenantRequest{
		Tenant: name, ConfirmDisplayName: w.word("display"), RequestId: uuid.NewString(),
	}))
	good[*memdv1.DeleteTenantResponse](w, "DeleteTenant")(erasure.DeleteTenant(ctx, &memdv1.DeleteTenantRequest{
		Tenant: name, ConfirmDisplayName: display, RequestId: uuid.NewString(),
	}))
}
