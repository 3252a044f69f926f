package server_test

import (
	"strings"
	"testing"

	"connectrpc.com/connect/v2"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/auth"
)

// Who may approve a deletion, of what, and who may take it back.
func TestErasure_ApprovesDeletions(t *testing.T) {
	in := setup(t)
	s := in.serve()
	acme := in.tenant("acme")
	ctx := t.Context()
	_, root := in.key(auth.Installation, auth.Operator)
	_, both := in.key(auth.Installation, auth.Operator|auth.Approver)
	_, approver := in.key(auth.Installation, auth.Approver)
	_, auditor := in.key(auth.Installation, auth.Auditor)
	_, own := in.key(acme.No, auth.Operator|auth.Approver|auth.Eraser|auth.Agent)
	move := func(to memdv1.TenantState) {
		t.Helper()
		if _, err := s.admin(root).MoveTenant(ctx, &memdv1.MoveTenantRequest{Tenant: "acme", State: to, Reason: "it leaves"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.memory(own).Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{raw(user("chat", "alice"), "green tea"), raw(user("chat", "bob"), "black tea")}}); err != nil {
		t.Fatal(err)
	}
	shown := func() *memdv1.DryRunResponse {
		t.Helper()
		res, err := s.erasure(approver).DryRun(ctx, &memdv1.DryRunRequest{Tenant: "acme"})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	approve := func(secret, display, digest string) error {
		_, err := s.erasure(secret).ApproveDeletion(ctx, &memdv1.ApproveDeletionRequest{Tenant: "acme", ConfirmDisplayName: display, Digest: digest})
		return err
	}
	drop := func(secret string) error {
		_, err := s.erasure(secret).DeleteTenant(ctx, &memdv1.DeleteTenantRequest{Tenant: "acme", RequestId: uuid.NewString(), Wait: durationpb.New(0)})
		return err
	}
	if got := answerOf(t, approve(approver, "", shown().GetDigest())); got.reason != "TENANT_INACTIVE" {
		t.Errorf("of an active tenant: %v", got)
	}
	move(memdv1.TenantState_TENANT_STATE_SUSPENDED)
	early := shown().GetDigest()
	move(memdv1.TenantState_TENANT_STATE_DRAINED)
	good := shown()
	if good.GetSubjects() != 2 || good.GetBytes() == 0 || good.GetTenantState() != memdv1.TenantState_TENANT_STATE_DRAINED {
		t.Errorf("the dry run shows %v", good)
	}
	digest := good.GetDigest()
	if again := shown().GetDigest(); again != digest {
		t.Errorf("two dry runs of the same differ: %s and %s", digest, again)
	}
	for name, c := range map[string]struct {
		err  error
		code connect.Code
	}{
		"an operator":                 {approve(root, "", digest), connect.CodePermissionDenied},
		"the tenant's own":            {approve(own, "", digest), connect.CodePermissionDenied},
		"no digest":                   {approve(approver, "", strings.ToUpper(digest)), connect.CodeInvalidArgument},
		"another display name":        {approve(approver, "Acme", digest), connect.CodeInvalidArgument},
		"another digest":              {approve(approver, "", strings.Repeat("0", 64)), connect.CodeFailedPrecondition},
		"one from before it drained":  {approve(approver, "", early), connect.CodeFailedPrecondition},
		"voiding by the tenant's own": {second(s.erasure(own).VoidApproval(ctx, &memdv1.VoidApprovalRequest{Tenant: "acme", ApprovalId: uuid.NewString()})), connect.CodePermissionDenied},
		"voiding nothing":             {second(s.erasure(root).VoidApproval(ctx, &memdv1.VoidApprovalRequest{Tenant: "acme", ApprovalId: uuid.NewString()})), connect.CodeNotFound},
		"approvals of nobody":         {second(s.erasure(root).ListApprovals(ctx, &memdv1.ListApprovalsRequest{Tenant: "nobody"})), connect.CodeNotFound},
		"moves of nobody":             {second(s.admin(root).ListTransitions(ctx, &memdv1.ListTransitionsRequest{Tenant: "nobody"})), connect.CodeNotFound},
	} {
		if connect.CodeOf(c.err) != c.code {
			t.Errorf("%s: %v", name, c.err)
		}
	}
	if err := approve(both, "", digest); err != nil {
		t.Fatal(err)
	}
	if err := drop(both); answerOf(t, err).reason != "NOT_APPROVED" || !strings.Contains(err.Error(), "cannot be the one who approves") {
		t.Errorf("approved by the requester: %v", err)
	}
	// Somebody is forgotten: it is not any more what was approved.
	if _, err := s.erasure(own).ForgetUser(ctx, &memdv1.ForgetUserRequest{App: "chat", UserId: "alice", RequestId: uuid.NewString(), Wait: durationpb.New(0)}); err != nil {
		t.Fatal(err)
	}
	in.exec(`UPDATE memd.subjects SET retired_at = now() WHERE subject_no = (SELECT min(subject_no) FROM memd.subjects)`)
	if err := drop(root); answerOf(t, err).reason != "NOT_APPROVED" || !strings.Contains(err.Error(), "has changed since") {
		t.Errorf("of a tenant that has changed: %v", err)
	}
	if err := approve(approver, "", shown().GetDigest()); err != nil {
		t.Fatal(err)
	}
	all, err := s.erasure(auditor).ListApprovals(ctx, &memdv1.ListApprovalsRequest{Tenant: "acme"})
	if err != nil || len(all.GetApprovals()) != 2 {
		t.Fatalf("%v, %v", all, err)
	}
	void := &memdv1.VoidApprovalRequest{Tenant: "acme", ApprovalId: all.GetApprovals()[0].GetApprovalId()}
	if res, err := s.erasure(root).VoidApproval(ctx, void); err != nil || res.GetApproval().GetVoidedAt() == nil {
		t.Errorf("%v, %v", res, err)
	}
	if got := answerOf(t, drop(root)); got.reason != "NOT_APPROVED" {
		t.Errorf("voided: %v", got)
	}
	if err := approve(approver, "", shown().GetDigest()); err != nil {
		t.Fatal(err)
	}
	if err := drop(root); err != nil {
		t.Error(err)
	}
}
