package server_test

import (
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/auth"
)

func TestCompaction_IsAskedForPausedAndScheduled(t *testing.T) {
	in := setup(t)
	s := in.serve()
	_, secret := in.key(auth.Installation, auth.Operator)
	_, auditor := in.key(auth.Installation, auth.Auditor)
	c := memdv1connect.NewCompactServiceClient(s.client(secret))
	look := memdv1connect.NewCompactServiceClient(s.client(auditor))
	ctx := t.Context()
	plan, err := look.PlanCompaction(ctx, &memdv1.PlanCompactionRequest{})
	if err != nil || len(plan.GetTables()) < 20 {
		t.Fatal(plan, err)
	}
	for _, x := range plan.GetTables() {
		if x.GetName() == "memories" && (!x.GetContent() || x.GetLocked().AsDuration() <= 0 || x.GetNeedsBytes() < x.GetBytes()) {
			t.Errorf("%v", x)
		}
	}
	run := func(m memdv1.CompactionMode) int64 {
		t.Helper()
		got, err := c.RunCompaction(ctx, &memdv1.RunCompactionRequest{Mode: m})
		if err != nil || got.GetNumber() == 0 || got.GetWorkerThere() {
			t.Fatal(got, err)
		}
		return got.GetNumber()
	}
	number := run(memdv1.CompactionMode_COMPACTION_MODE_REWRITE)
	if again := run(memdv1.CompactionMode_COMPACTION_MODE_REWRITE); again != number {
		t.Errorf("asked again: %d, want %d", again, number)
	}
	run(memdv1.CompactionMode_COMPACTION_MODE_VACUUM)
	schedule := &memdv1.CompactionSchedule{
		Mode: memdv1.CompactionMode_COMPACTION_MODE_REWRITE, Every: durationpb.New(24 * time.Hour), StartMinute: 120, Minutes: 90, Days: []int32{0, 6},
	}
	if _, err := c.SetCompactionSchedule(ctx, &memdv1.SetCompactionScheduleRequest{Schedule: schedule}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.PauseCompaction(ctx, &memdv1.PauseCompactionRequest{}); err != nil {
		t.Fatal(err)
	}
	got, err := look.GetCompactions(ctx, &memdv1.GetCompactionsRequest{})
	if err != nil || !got.GetPaused() || len(got.GetCompactions()) != 2 || got.GetWorkerThere() {
		t.Fatal(got, err)
	}
	if diff := cmp.Diff(schedule, got.GetSchedule(), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if _, err := c.ResumeCompaction(ctx, &memdv1.ResumeCompactionRequest{}); err != nil {
		t.Fatal(err)
	}
	got, err = look.GetCompactions(ctx, &memdv1.GetCompactionsRequest{Number: number})
	if err != nil || got.GetPaused() || len(got.GetCompactions()) != 1 || got.GetCompactions()[0].GetState() != memdv1.CompactionState_COMPACTION_STATE_ASKED {
		t.Error(got, err)
	}
	_, err = look.GetCompactions(ctx, &memdv1.GetCompactionsRequest{Number: number + 100})
	if got := answerOf(t, err); got.code != connect.CodeNotFound {
		t.Error(got)
	}
	for what, schedule := range map[string]*memdv1.CompactionSchedule{
		"none":              nil,
		"no mode":           {Minutes: 1, Days: []int32{0}},
		"no day":            {Mode: 1, Minutes: 1},
		"a day twice":       {Mode: 1, Minutes: 1, Days: []int32{1, 1}},
		"every ten seconds": {Mode: 1, Minutes: 1, Days: []int32{1}, Every: durationpb.New(10 * time.Second)},
	} {
		_, err := c.SetCompactionSchedule(ctx, &memdv1.SetCompactionScheduleRequest{Schedule: schedule})
		if got := answerOf(t, err); got.code != connect.CodeInvalidArgument {
			t.Errorf("%s: %v", what, got)
		}
	}
}

// The tables are all tenants', so that no tenant's key may have them locked, nor by
// a policy of its own.
func TestCompaction_IsTheInstallations(t *testing.T) {
	in := setup(t)
	acme := in.tenant("acme")
	s := in.serve()
	_, theirs := in.key(acme.No, auth.Operator|auth.Auditor)
	_, auditor := in.key(auth.Installation, auth.Auditor)
	_, root := in.key(auth.Installation, auth.Operator)
	ctx := t.Context()
	tenants := memdv1connect.NewCompactServiceClient(s.client(theirs))
	looks := memdv1connect.NewCompactServiceClient(s.client(auditor))
	for what, err := range map[string]error{
		"plan":           second(tenants.PlanCompaction(ctx, &memdv1.PlanCompactionRequest{})),
		"look":           second(tenants.GetCompactions(ctx, &memdv1.GetCompactionsRequest{})),
		"run":            second(tenants.RunCompaction(ctx, &memdv1.RunCompactionRequest{Mode: 1})),
		"pause":          second(tenants.PauseCompaction(ctx, &memdv1.PauseCompactionRequest{})),
		"an auditor run": second(looks.RunCompaction(ctx, &memdv1.RunCompactionRequest{Mode: 1})),
	} {
		if got := answerOf(t, err); got.code != connect.CodePermissionDenied {
			t.Errorf("%s: %v", what, got)
		}
	}
	policy := func(secret string, m memdv1.CompactionMode) error {
		return second(s.admin(secret).SetPolicy(ctx, &memdv1.SetPolicyRequest{Tenant: "acme", Policy: &memdv1.Policy{Compaction: m}}))
	}
	if got := answerOf(t, policy(theirs, memdv1.CompactionMode_COMPACTION_MODE_REWRITE)); got.code != connect.CodePermissionDenied {
		t.Errorf("a rewrite by a tenant's own policy: %v", got)
	}
	if err := policy(theirs, memdv1.CompactionMode_COMPACTION_MODE_VACUUM); err != nil {
		t.Error(err)
	}
	if err := policy(root, memdv1.CompactionMode_COMPACTION_MODE_REWRITE); err != nil {
		t.Error(err)
	}
	got, err := s.admin(theirs).GetTenant(ctx, &memdv1.GetTenantRequest{Name: "acme"})
	if err != nil || got.GetTenant().GetPolicy().GetCompaction() != memdv1.CompactionMode_COMPACTION_MODE_REWRITE {
		t.Error(got, err)
	}
}
