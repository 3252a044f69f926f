package server_test

import (
	"context"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/pg"
)

// A tenant is suspended, resumed, suspended again and deleted, by the API alone;
// each replica knows with its next call.
func TestAdmin_SuspensionAndItsWayOut(t *testing.T) {
	in := setup(t)
	in.work()
	first, second := in.serve(), in.serve()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, root := in.key(auth.Installation, auth.Operator)
	_, watcher := in.key(auth.Installation, auth.Auditor)
	admin := first.admin(root)
	made, err := admin.CreateTenant(ctx, &memdv1.CreateTenantRequest{
		Name: "acme", DisplayName: "Acme Ltd", Policy: &memdv1.Policy{IngestionDelay: durationpb.New(0)},
	})
	if err != nil || made.GetTenant().GetState() != memdv1.TenantState_TENANT_STATE_ACTIVE {
		t.Fatalf("%v, %v", made, err)
	}
	key, err := admin.CreateApiKey(ctx, &memdv1.CreateApiKeyRequest{Tenant: "acme", Name: "all", Roles: []memdv1.Role{
		memdv1.Role_ROLE_AGENT, memdv1.Role_ROLE_ERASER, memdv1.Role_ROLE_OPERATOR,
	}})
	if err != nil {
		t.Fatal(err)
	}
	own := key.GetSecret()
	add := func(s *instance) answer {
		_, err := s.memory(own).Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{raw(user("chat", "alice"), "green tea")}})
		if err != nil {
			return answerOf(t, err)
		}
		return answer{}
	}
	both := func(when, reason string) {
		t.Helper()
		for _, s := range []*instance{first, second} {
			if got := add(s); got.reason != reason {
				t.Errorf("%s: %v", when, got)
			}
		}
	}
	suspend := func(s *instance, secret, tenant, reason string) (memdv1.TenantState, error) {
		res, err := s.admin(secret).SuspendTenant(ctx, &memdv1.SuspendTenantRequest{Tenant: tenant, Reason: reason})
		return res.GetTenant().GetState(), err
	}
	both("active", "")
	for name, secret := range map[string]string{"its own operator": own, "an auditor": watcher} {
		if _, err := suspend(first, secret, "acme", "unpaid"); connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("by %s: %v", name, err)
		}
	}
	for reason, want := range map[string]connect.Code{"": connect.CodeInvalidArgument, "a\nb": connect.CodeInvalidArgument, strings.Repeat("x", 1025): connect.CodeInvalidArgument} {
		if _, err := suspend(first, root, "acme", reason); connect.CodeOf(err) != want {
			t.Errorf("reason of %d bytes: %v", len(reason), err)
		}
	}
	if _, err := suspend(first, root, "nobody", "unpaid"); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("of nobody: %v", err)
	}
	both("still active", "")

	for range 2 { // Safe to repeat.
		if state, err := suspend(first, root, "acme", "unpaid"); err != nil || state != memdv1.TenantState_TENANT_STATE_SUSPENDED {
			t.Fatalf("%v, %v", state, err)
		}
		both("suspended", "TENANT_INACTIVE")
	}
	resumed, err := second.admin(root).ResumeTenant(ctx, &memdv1.ResumeTenantRequest{Tenant: "acme", Reason: "paid"})
	if err != nil || resumed.GetTenant().GetState() != memdv1.TenantState_TENANT_STATE_ACTIVE {
		t.Fatalf("%v, %v", resumed, err)
	}
	both("resumed", "")

	drop := func(display, request string) (*memdv1.Report, error) {
		res, err := second.erasure(root).DeleteTenant(ctx, &memdv1.DeleteTenantRequest{Tenant: "acme", ConfirmDisplayName: display, RequestId: request})
		return res.GetReport(), err
	}
	request := uuid.NewString()
	refused := func(when, reason, says string) {
		t.Helper()
		if _, err := drop("Acme Ltd", request); answerOf(t, err).reason != reason || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", when, err)
		}
	}
	refused("active", "TENANT_INACTIVE", "it is active")
	if _, err := suspend(second, root, "acme", "contract ended"); err != nil {
		t.Fatal(err)
	}
	refused("suspended", "TENANT_INACTIVE", "it is suspended, and has to be drained first")
	for _, to := range []memdv1.TenantState{memdv1.TenantState_TENANT_STATE_EXPORTING, memdv1.TenantState_TENANT_STATE_DRAINED} {
		res, err := first.admin(root).MoveTenant(ctx, &memdv1.MoveTenantRequest{Tenant: "acme", State: to, Reason: "contract ended"})
		if err != nil || res.GetTenant().GetState() != to {
			t.Fatalf("%v, %v", res, err)
		}
		both(to.String(), "TENANT_INACTIVE")
	}
	for name, move := range map[string]*memdv1.MoveTenantRequest{
		"to where only a purge leads": {Tenant: "acme", State: memdv1.TenantState_TENANT_STATE_PURGED, Reason: "x"},
		"to nowhere":                  {Tenant: "acme", Reason: "x"},
		"without a reason":            {Tenant: "acme", State: memdv1.TenantState_TENANT_STATE_SUSPENDED},
	} {
		if _, err := admin.MoveTenant(ctx, move); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := drop("acme ltd", request); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("confirmed wrongly: %v", err)
	}
	refused("drained", "NOT_APPROVED", "has to approve it first")
	_, approver := in.key(auth.Installation, auth.Approver)
	shown := in.approve(ctx, second, approver, "acme", "Acme Ltd")
	report, err := drop("Acme Ltd", request)
	if err != nil || report.GetState() < memdv1.ErasureState_ERASURE_STATE_DONE || report.GetKey().GetKmsVersion() == "" {
		t.Fatalf("%v, %v", report, err)
	}
	if shown.GetBytes() == 0 || shown.GetSubjects() != 1 || len(shown.GetStrangers()) != 0 || shown.GetDisplayName() != "Acme Ltd" {
		t.Errorf("the dry run showed %v", shown)
	}
	if _, err := admin.ResumeTenant(ctx, &memdv1.ResumeTenantRequest{Tenant: "acme", Reason: "a mistake"}); answerOf(t, err).reason != "TENANT_INACTIVE" {
		t.Errorf("resumed after its deletion: %v", err)
	}
	both("purged", "UNAUTHENTICATED")
	got, err := admin.GetTenant(ctx, &memdv1.GetTenantRequest{Name: "acme"})
	if err != nil || got.GetTenant().GetState() != memdv1.TenantState_TENANT_STATE_PURGED {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := admin.CreateApiKey(ctx, &memdv1.CreateApiKeyRequest{Tenant: "acme", Name: "late", Roles: []memdv1.Role{memdv1.Role_ROLE_AGENT}}); answerOf(t, err).reason != "TENANT_INACTIVE" {
		t.Errorf("a key of a tenant that is gone: %v", err)
	}
	log, err := first.admin(watcher).ListTransitions(ctx, &memdv1.ListTransitionsRequest{Tenant: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	var way []string
	for _, m := range log.GetTransitions() {
		way = append(way, strings.ToLower(strings.TrimPrefix(m.GetTo().String(), "TENANT_STATE_")))
		if byWorker := m.GetByKeyId() == ""; byWorker != (m.GetTo() == memdv1.TenantState_TENANT_STATE_PURGED || m.GetFrom() == memdv1.TenantState_TENANT_STATE_CREATING) || m.GetAt() == nil {
			t.Errorf("in the log: %v", m)
		}
	}
	if got := strings.Join(way, " "); got != "purged purging drained exporting suspended active suspended active" {
		t.Errorf("the log is: %s", got)
	}
}

// approve has a tenant's deletion approved as it is now.
func (in *installation) approve(ctx context.Context, s *instance, secret, tenant, display string) *memdv1.DryRunResponse {
	in.t.Helper()
	shown, err := s.erasure(secret).DryRun(ctx, &memdv1.DryRunRequest{Tenant: tenant})
	if err != nil {
		in.t.Fatal(err)
	}
	if _, err := s.erasure(secret).ApproveDeletion(ctx, &memdv1.ApproveDeletionRequest{
		Tenant: tenant, ConfirmDisplayName: display, Digest: shown.GetDigest(),
	}); err != nil {
		in.t.Fatal(err)
	}
	return shown
}

// Under a hold a purge is accepted and does not begin, and there is no way back.
func TestAdmin_NoWayBackFromAnAcceptedDeletion(t *testing.T) {
	in := setup(t)
	in.work()
	s := in.serve()
	acme := in.tenant("acme")
	_, root := in.key(auth.Installation, auth.Operator)
	_, own := in.key(acme.No, auth.Operator)
	ctx := t.Context()
	hold, err := s.erasure(own).Hold(ctx, &memdv1.HoldRequest{HoldId: uuid.NewString(), App: "chat", UserId: "alice", Reason: "case 17"})
	if err != nil {
		t.Fatal(err)
	}
	drop := &memdv1.DeleteTenantRequest{Tenant: "acme", RequestId: uuid.NewString(), Wait: durationpb.New(0)}
	if _, err := s.erasure(root).DeleteTenant(ctx, drop); answerOf(t, err).reason != "TENANT_INACTIVE" {
		t.Errorf("of an active tenant, under a hold: %v", err)
	}
	if _, err := s.admin(root).SuspendTenant(ctx, &memdv1.SuspendTenantRequest{Tenant: "acme", Reason: "unpaid"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.admin(root).MoveTenant(ctx, &memdv1.MoveTenantRequest{Tenant: "acme", State: memdv1.TenantState_TENANT_STATE_DRAINED, Reason: "unpaid"}); err != nil {
		t.Fatal(err)
	}
	_, approver := in.key(auth.Installation, auth.Approver)
	in.approve(ctx, s, approver, "acme", "")
	res, err := s.erasure(root).DeleteTenant(ctx, drop)
	if err != nil || !res.GetReport().GetErasure().GetHeld() {
		t.Fatalf("%v, %v", res, err)
	}
	if _, err := s.admin(root).ResumeTenant(ctx, &memdv1.ResumeTenantRequest{Tenant: "acme", Reason: "paid"}); answerOf(t, err).reason != "TENANT_INACTIVE" {
		t.Errorf("resumed: %v", err)
	}
	if _, err := s.erasure(own).ReleaseHold(ctx, &memdv1.ReleaseHoldRequest{HoldId: hold.GetHold().GetHoldId()}); err != nil {
		t.Fatal(err)
	}
	drop.Wait = nil
	if res, err = s.erasure(root).DeleteTenant(ctx, drop); err != nil || res.GetReport().GetState() < memdv1.ErasureState_ERASURE_STATE_DONE {
		t.Errorf("%v, %v", res, err)
	}
}

// The policy says when a user who was erased may return.
func TestAdmin_PolicyOfLiftingFences(t *testing.T) {
	in := setup(t)
	in.work()
	s := in.serve()
	acme := in.tenant("acme")
	_, root := in.key(auth.Installation, auth.Operator)
	_, own := in.key(acme.No, auth.Agent|auth.Eraser)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	back := func() error {
		row := raw(user("chat", "alice"), "back")
		row.SourceTime = timestamppb.Now()
		_, err := s.memory(own).Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{row}})
		return err
	}
	forget := func(delay time.Duration, lift memdv1.LiftFence) string {
		t.Helper()
		set, err := s.admin(root).SetPolicy(ctx, &memdv1.SetPolicyRequest{Tenant: "acme", Policy: &memdv1.Policy{IngestionDelay: durationpb.New(delay), LiftFence: lift}})
		if err != nil || set.GetTenant().GetPolicy().GetLiftFence() != lift {
			t.Fatalf("%v, %v", set, err)
		}
		id := uuid.NewString()
		res, err := s.erasure(own).ForgetUser(ctx, &memdv1.ForgetUserRequest{App: "chat", UserId: "alice", RequestId: id})
		if err != nil || res.GetReport().GetState() != memdv1.ErasureState_ERASURE_STATE_DONE {
			t.Fatalf("%v, %v", res, err)
		}
		return id
	}
	forget(time.Hour, memdv1.LiftFence_LIFT_FENCE_AFTER_ERASURE)
	if err := back(); err != nil {
		t.Errorf("after the erasure: %v", err)
	}
	id := forget(5*time.Second, memdv1.LiftFence_LIFT_FENCE_AFTER_SWEEP)
	if got := answerOf(t, back()); got.reason != "FENCED" {
		t.Errorf("before the sweep: %v", got)
	}
	stream, err := s.erasure(own).WatchErasure(ctx, &memdv1.WatchErasureRequest{RequestId: id})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stream.Close() }() // What was received counts.
	for last := memdv1.ErasureState(0); last != memdv1.ErasureState_ERASURE_STATE_FINAL; {
		event, err := stream.Receive()
		if err != nil {
			t.Fatal(err)
		}
		last = event.GetErasure().GetState()
	}
	if err := back(); err != nil {
		t.Errorf("after the sweep: %v", err)
	}
}

// Why a tenant was taken somewhere, and why a hold was set, is at rest under the
// tenant's keys, and shown to auditors, not to whoever else may look.
func TestReasons_AreSealedAndTheAuditors(t *testing.T) {
	in := setup(t)
	s := in.serve()
	acme := in.tenant("acme")
	_, root := in.key(auth.Installation, auth.Operator)
	_, operator := in.key(acme.No, auth.Operator)
	ctx := t.Context()
	const why, held = "Mr Klein signed the notice", "Ms Roth is in court"
	if _, err := s.admin(root).SuspendTenant(ctx, &memdv1.SuspendTenantRequest{Tenant: "acme", Reason: why}); err != nil {
		t.Fatal(err)
	}
	id := uuid.NewString()
	set, err := s.erasure(operator).Hold(ctx, &memdv1.HoldRequest{HoldId: id, App: "chat", UserId: "alice", Reason: held})
	if err != nil || set.GetHold().GetReason() != held {
		t.Fatalf("%v, %v", set, err)
	}
	for role, want := range map[auth.Roles][2]string{
		auth.Auditor: {why, held}, auth.Operator: {"", ""}, auth.Auditor | auth.Operator: {why, held},
	} {
		_, secret := in.key(acme.No, role)
		log, err := s.admin(secret).ListTransitions(ctx, &memdv1.ListTransitionsRequest{Tenant: "acme"})
		if err != nil || len(log.GetTransitions()) != 2 || log.GetTransitions()[0].GetReason() != want[0] || log.GetTransitions()[1].GetReason() != "its keys are made" {
			t.Errorf("%v: %v, %v", role, log, err)
		}
		holds, err := s.erasure(secret).ListHolds(ctx, &memdv1.ListHoldsRequest{})
		if err != nil || len(holds.GetHolds()) != 1 || holds.GetHolds()[0].GetReason() != want[1] {
			t.Errorf("%v: %v, %v", role, holds, err)
		}
	}
	// Another operator who repeats it is not told what the first one wrote.
	_, other := in.key(acme.No, auth.Operator)
	again, err := s.erasure(other).Hold(ctx, &memdv1.HoldRequest{HoldId: id, App: "chat", UserId: "alice", Reason: "the same"})
	if err != nil || again.GetHold().GetReason() != "" {
		t.Errorf("%v, %v", again, err)
	}
	err = in.db.Pool("").With(ctx, func(db pg.DB) error {
		for _, table := range []string{"tenant_transitions", "holds", "ledger_outbox"} {
			var rows string
			if err := db.QueryRow(ctx, `SELECT coalesce(string_agg(t::text, ' '), '') FROM memd.`+table+` t`).Scan(&rows); err != nil {
				return err
			}
			for _, text := range []string{why, held} {
				if rows == "" || strings.Contains(rows, text) || strings.Contains(rows, hex.EncodeToString([]byte(text))) {
					t.Errorf("%s holds %q", table, rows)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
