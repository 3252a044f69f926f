package server_test

import (
	"fmt"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/auth"
)

func TestAdmin_FromNothingToAFirstMemory(t *testing.T) {
	in := setup(t)
	in.work()
	s := in.serve()
	_, root := in.key(auth.Installation, auth.Operator)
	admin := s.admin(root)
	req := &memdv1.CreateTenantRequest{Name: "acme", DisplayName: "Acme Ltd", Policy: &memdv1.Policy{
		Dimension: 128, IngestionDelay: durationpb.New(0),
	}}
	made, err := admin.CreateTenant(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	want := &memdv1.Tenant{
		Name: "acme", DisplayName: "Acme Ltd", State: memdv1.TenantState_TENANT_STATE_ACTIVE, KeyEpoch: 1,
		Policy: &memdv1.Policy{
			Dimension: 128, Embedder: "lexical", VectorFormat: memdv1.VectorFormat_VECTOR_FORMAT_FLOAT32,
			DestroyDelay: durationpb.New(24 * time.Hour), Index: memdv1.IndexMode_INDEX_MODE_AUTO, IngestionDelay: durationpb.New(0),
			LiftFence: memdv1.LiftFence_LIFT_FENCE_AFTER_ERASURE, Compaction: memdv1.CompactionMode_COMPACTION_MODE_VACUUM, SessionRetention: &memdv1.Retention{Months: new(int32(0))},
			MemoryRetention: &memdv1.Retention{Months: new(int32(0))}, Quota: &memdv1.Quota{Rows: new(int64(0)), Bytes: new(int64(0)), CallsPerSecond: new(int32(0))},
		},
	}
	if diff := cmp.Diff(want, made.GetTenant(), protocmp.Transform(), protocmp.IgnoreFields(&memdv1.Tenant{}, "created_at", "updated_at")); diff != "" {
		t.Error(diff)
	}
	again, err := admin.CreateTenant(t.Context(), req)
	if diff := cmp.Diff(made, again, protocmp.Transform(), protocmp.IgnoreFields(&memdv1.Tenant{}, "updated_at")); diff != "" || err != nil {
		t.Errorf("again: %v %s", err, diff)
	}
	req.DisplayName = "Another"
	_, err = admin.CreateTenant(t.Context(), req)
	if got := answerOf(t, err); got.code != connect.CodeAlreadyExists || got.reason != "EXISTS" {
		t.Error(got)
	}

	// The tenant's first key comes with it, once, and never again.
	req.DisplayName, req.FirstKeyRoles = "Acme Ltd", []memdv1.Role{memdv1.Role_ROLE_AGENT}
	first, err := admin.CreateTenant(t.Context(), req)
	if err != nil || len(first.GetFirstKey().GetRoles()) != 1 {
		t.Fatalf("%v, %v", first, err)
	}
	if _, err := s.memory(first.GetFirstSecret()).Add(t.Context(), &memdv1.AddRequest{Rows: []*memdv1.Row{raw(user("chat", "zoe"), "tea")}}); err != nil {
		t.Error(err)
	}
	if _, err := admin.RevokeApiKey(t.Context(), &memdv1.RevokeApiKeyRequest{KeyId: first.GetFirstKey().GetKeyId()}); err != nil {
		t.Error(err)
	}
	if first, err = admin.CreateTenant(t.Context(), req); err != nil || first.GetFirstKey() != nil || first.GetFirstSecret() != "" {
		t.Errorf("a second first key: %v, %v", first, err)
	}
	req.FirstKeyRoles = []memdv1.Role{memdv1.Role_ROLE_APPROVER}
	_, err = admin.CreateTenant(t.Context(), req)
	if got := answerOf(t, err); got.code != connect.CodeInvalidArgument {
		t.Errorf("an approver: %v", got)
	}

	key, err := admin.CreateApiKey(t.Context(), &memdv1.CreateApiKeyRequest{Tenant: "acme", Name: "agent 1", Roles: []memdv1.Role{memdv1.Role_ROLE_AGENT}})
	if err != nil {
		t.Fatal(err)
	}
	added, err := s.memory(key.GetSecret()).Add(t.Context(), &memdv1.AddRequest{Rows: []*memdv1.Row{raw(user("chat", "alice"), "tea")}})
	if err != nil || added.GetResults()[0].GetStatus() != memdv1.AddStatus_ADD_STATUS_CREATED {
		t.Errorf("added %v, %v", added, err)
	}
	changed, err := admin.SetPolicy(t.Context(), &memdv1.SetPolicyRequest{Tenant: "acme", Policy: &memdv1.Policy{Index: memdv1.IndexMode_INDEX_MODE_SEALED}})
	want.Policy.Index = memdv1.IndexMode_INDEX_MODE_SEALED
	if diff := cmp.Diff(want.GetPolicy(), changed.GetTenant().GetPolicy(), protocmp.Transform()); diff != "" || err != nil {
		t.Errorf("policy: %v %s", err, diff)
	}
	changed, err = admin.SetPolicy(t.Context(), &memdv1.SetPolicyRequest{Tenant: "acme", Policy: &memdv1.Policy{Dimension: 129}})
	if err != nil || changed.GetTenant().GetPolicy().GetDimension() != 129 {
		t.Errorf("changed to %v, %v", changed.GetTenant().GetPolicy(), err)
	}
	for problem, p := range map[string]*memdv1.Policy{
		"policy.dimension cannot be changed while rows are embedded anew for the last change; wait until that is done": {Dimension: 130},
		"policy.embedder cannot be changed where no embedder could make the vectors anew; make another tenant":         {Embedder: "none"},
	} {
		_, err = admin.SetPolicy(t.Context(), &memdv1.SetPolicyRequest{Tenant: "acme", Policy: p})
		if got := answerOf(t, err); got != (answer{connect.CodeInvalidArgument, "INVALID", problem}) {
			t.Error(got)
		}
	}
}

func TestAdmin_ATenantsOperatorSeesThatTenantOnly(t *testing.T) {
	in := setup(t)
	acme := in.tenant("acme")
	globex := in.tenant("globex")
	s := in.serve()
	_, secret := in.key(acme.No, auth.Operator)
	other, _ := in.key(globex.No, auth.Agent)
	root, _ := in.key(auth.Installation, auth.Operator)
	own, _ := in.key(acme.No, auth.Agent)
	admin := s.admin(secret)
	ctx := t.Context()
	notFound := answer{connect.CodeNotFound, "NOT_FOUND", "not found"}
	agent := []memdv1.Role{memdv1.Role_ROLE_AGENT}
	for name, call := range map[string]func(tenant string) error{
		"GetTenant": func(tenant string) error {
			_, err := admin.GetTenant(ctx, &memdv1.GetTenantRequest{Name: tenant})
			return err
		},
		"SetPolicy": func(tenant string) error {
			_, err := admin.SetPolicy(ctx, &memdv1.SetPolicyRequest{Tenant: tenant, Policy: &memdv1.Policy{Index: 2}})
			return err
		},
		"CreateApiKey": func(tenant string) error {
			_, err := admin.CreateApiKey(ctx, &memdv1.CreateApiKeyRequest{Tenant: tenant, Name: "n", Roles: agent})
			return err
		},
		"ListApiKeys": func(tenant string) error {
			_, err := admin.ListApiKeys(ctx, &memdv1.ListApiKeysRequest{Tenant: tenant})
			return err
		},
	} {
		if err := call("acme"); err != nil {
			t.Errorf("%s of its own: %v", name, err)
		}
		for _, tenant := range []string{"globex", "nobody"} {
			if got := answerOf(t, call(tenant)); got != notFound {
				t.Errorf("%s of %s: %v", name, tenant, got)
			}
		}
	}
	// The empty name is the installation.
	_, err := admin.CreateApiKey(ctx, &memdv1.CreateApiKeyRequest{Name: "n", Roles: []memdv1.Role{memdv1.Role_ROLE_OPERATOR}})
	if got := answerOf(t, err); got != notFound {
		t.Errorf("a key of the installation: %v", got)
	}
	for name, id := range map[string]string{"another tenant's": other.ID.String(), "the installation's": root.ID.String()} {
		_, err := admin.RevokeApiKey(ctx, &memdv1.RevokeApiKeyRequest{KeyId: id})
		if got := answerOf(t, err); got != notFound {
			t.Errorf("revoking %s key: %v", name, got)
		}
	}
	revoked, err := admin.RevokeApiKey(ctx, &memdv1.RevokeApiKeyRequest{KeyId: own.ID.String()})
	if err != nil || revoked.GetApiKey().GetRevokedAt() == nil || revoked.GetApiKey().GetTenant() != "acme" {
		t.Errorf("revoking its own: %v, %v", revoked, err)
	}
	list, err := admin.ListTenants(ctx, &memdv1.ListTenantsRequest{})
	if err != nil || len(list.GetTenants()) != 1 || list.GetTenants()[0].GetName() != "acme" {
		t.Errorf("lists %v, %v", list, err)
	}
	_, err = admin.CreateTenant(ctx, &memdv1.CreateTenantRequest{Name: "initech"})
	if got := answerOf(t, err); got.code != connect.CodePermissionDenied {
		t.Errorf("creating a tenant: %v", got)
	}
}

func TestAdmin_ListsPageByPage(t *testing.T) {
	in := setup(t)
	s := in.serve()
	_, root := in.key(auth.Installation, auth.Operator)
	admin := s.admin(root)
	var names []string
	for i := range 5 {
		name := fmt.Sprintf("t%d", i)
		in.tenant(name)
		names = append(names, name)
	}
	var got []string
	for token := ""; ; {
		page, err := admin.ListTenants(t.Context(), &memdv1.ListTenantsRequest{PageSize: 2, PageToken: token})
		if err != nil || len(page.GetTenants()) > 2 {
			t.Fatal(page, err)
		}
		for _, one := range page.GetTenants() {
			got = append(got, one.GetName())
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if diff := cmp.Diff(names, got); diff != "" {
		t.Error(diff)
	}
	made := map[string]bool{}
	for range 5 {
		k, err := admin.CreateApiKey(t.Context(), &memdv1.CreateApiKeyRequest{
			Tenant: "t0", Name: "n", Roles: []memdv1.Role{memdv1.Role_ROLE_ERASER, memdv1.Role_ROLE_AGENT}})
		if err != nil {
			t.Fatal(err)
		}
		made[k.GetApiKey().GetKeyId()] = true
	}
	for token := ""; ; {
		page, err := admin.ListApiKeys(t.Context(), &memdv1.ListApiKeysRequest{Tenant: "t0", PageSize: 2, PageToken: token})
		if err != nil || len(page.GetApiKeys()) > 2 {
			t.Fatal(page, err)
		}
		for _, k := range page.GetApiKeys() {
			if !made[k.GetKeyId()] || fmt.Sprint(k.GetRoles()) != "[ROLE_AGENT ROLE_ERASER]" || k.GetCreatedBy() == "" {
				t.Errorf("unexpected, or twice: %v", k)
			}
			delete(made, k.GetKeyId())
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if len(made) != 0 {
		t.Errorf("%d keys were not listed", len(made))
	}
	_, err := admin.ListApiKeys(t.Context(), &memdv1.ListApiKeysRequest{Tenant: "t0", PageToken: "nonsense!"})
	if got := answerOf(t, err); got.code != connect.CodeInvalidArgument {
		t.Errorf("a token of nobody's: %v", got)
	}
}
