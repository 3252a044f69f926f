package server_test

import (
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"google.golang.org/protobuf/types/known/timestamppb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/auth"
)

// A month is planned, kept while it may not go, and begun when it may.
func TestRetention_PlanAndRun(t *testing.T) {
	in := setup(t)
	tenant := in.tenant("acme")
	_, agent := in.key(tenant.No, auth.Agent)
	_, operator := in.key(tenant.No, auth.Operator)
	s := in.serve()
	row := raw(user("chat", "alice"), "tea")
	row.SourceTime = timestamppb.New(time.Date(2020, 9, 1, 0, 0, 0, 0, time.UTC))
	if _, err := s.memory(agent).Add(t.Context(), &memdv1.AddRequest{Rows: []*memdv1.Row{row}}); err != nil {
		t.Fatal(err)
	}
	admin := s.admin(operator)
	plan := func(want memdv1.KeptReason) {
		t.Helper()
		got, err := s.erasure(operator).PlanRetention(t.Context(), &memdv1.PlanRetentionRequest{Tenant: "acme"})
		if err != nil || len(got.GetExpiries()) != 1 {
			t.Fatalf("%v, %v", got, err)
		}
		e := got.GetExpiries()[0]
		if e.GetKept() != want || e.GetMonth() != "2020-09" || e.GetDataClass() != memdv1.DataClass_DATA_CLASS_MEMORY || e.GetRows() != 1 || e.GetBytes() == 0 {
			t.Errorf("%v, want %v", e, want)
		}
	}
	keep := func(r *memdv1.Retention) *memdv1.Retention {
		t.Helper()
		set, err := admin.SetPolicy(t.Context(), &memdv1.SetPolicyRequest{Tenant: "acme", Policy: &memdv1.Policy{MemoryRetention: r}})
		if err != nil {
			t.Fatal(err)
		}
		return set.GetTenant().GetPolicy().GetMemoryRetention()
	}
	plan(memdv1.KeptReason_KEPT_REASON_FOR_EVER)
	keep(&memdv1.Retention{Months: new(int32(1200))})
	plan(memdv1.KeptReason_KEPT_REASON_IN_WINDOW)
	keep(&memdv1.Retention{NotBefore: timestamppb.New(time.Date(9000, 1, 1, 0, 0, 0, 0, time.UTC))})
	if got := keep(&memdv1.Retention{Months: new(int32(2))}); got.GetNotBefore().AsTime().Year() != 9000 {
		t.Errorf("a change of the months took the floor away: %v", got)
	}
	plan(memdv1.KeptReason_KEPT_REASON_NOT_BEFORE)
	run := func() *memdv1.Expiry {
		t.Helper()
		got, err := s.erasure(operator).RunRetention(t.Context(), &memdv1.RunRetentionRequest{Tenant: "acme"})
		if err != nil || len(got.GetExpiries()) != 1 {
			t.Fatalf("%v, %v", got, err)
		}
		return got.GetExpiries()[0]
	}
	if e := run(); e.GetState() != 0 {
		t.Errorf("before the floor: %v", e)
	}
	keep(&memdv1.Retention{NotBefore: timestamppb.New(time.Unix(0, 0))})
	plan(memdv1.KeptReason_KEPT_REASON_UNSPECIFIED)
	begun, again := run(), run()
	if begun.GetState() == 0 || again.GetRequestId() != begun.GetRequestId() {
		t.Errorf("begun %v, again %v", begun, again)
	}
	_, err := s.memory(agent).Add(t.Context(), &memdv1.AddRequest{Rows: []*memdv1.Row{row}})
	if got := answerOf(t, err); got.code != connect.CodeFailedPrecondition || got.reason != "MONTH_EXPIRED" {
		t.Errorf("adding of a month that expires: %v", got)
	}
	_, err = admin.SetPolicy(t.Context(), &memdv1.SetPolicyRequest{Tenant: "acme", Policy: &memdv1.Policy{MemoryRetention: &memdv1.Retention{Months: new(int32(-1))}}})
	if got := answerOf(t, err); got.code != connect.CodeInvalidArgument {
		t.Errorf("fewer than no months: %v", got)
	}
}
