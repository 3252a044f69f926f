package server_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"forgettable.dev/memd/eraser"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/auth"
)

// nothing is a store that holds nothing, and fails when it is told to.
type nothing struct{ calls atomic.Int32 }

func (n *nothing) Count(context.Context, eraser.Request) (int64, error) {
	n.calls.Add(1)
	return 0, nil
}
func (n *nothing) Verify(context.Context, eraser.Request) (int64, error) {
	panic("a test verifies nothing")
}
func (n *nothing) Erase(context.Context, eraser.Request) (eraser.Result, error) {
	panic("a test erases nothing")
}

func TestTargets_FromCreationToDeletion(t *testing.T) {
	in := setup(t)
	in.private = true
	acme := in.tenant("acme")
	s := in.serve()
	_, secret := in.key(auth.Installation, auth.Operator)
	_, auditor := in.key(acme.No, auth.Auditor)
	targets := s.targets(secret)
	ctx := t.Context()

	var handler atomic.Pointer[http.Handler]
	store := &nothing{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*handler.Load()).ServeHTTP(w, r) }))
	t.Cleanup(srv.Close)
	made, err := targets.CreateTarget(ctx, &memdv1.CreateTargetRequest{
		Tenant: "acme", Name: "store", Kind: memdv1.TargetKind_TARGET_KIND_CONNECT, Order: memdv1.TargetOrder_TARGET_ORDER_BEFORE_SESSIONS,
		Url: srv.URL, AllowPrivate: true, Timeout: durationpb.New(5 * time.Second),
	})
	if err != nil || !strings.HasPrefix(made.GetSecret(), "memdt_") {
		t.Fatal(made, err)
	}
	h, err := eraser.Handler(store, eraser.WithToken(made.GetSecret()))
	if err != nil {
		t.Fatal(err)
	}
	handler.Store(&h)
	want := &memdv1.Target{
		Tenant: "acme", Name: "store", Kind: memdv1.TargetKind_TARGET_KIND_CONNECT, Order: memdv1.TargetOrder_TARGET_ORDER_BEFORE_SESSIONS,
		Required: true, Url: srv.URL, AllowPrivate: true, Timeout: durationpb.New(5 * time.Second),
	}
	given := "whsec_" + strings.Repeat("A", 40)
	hook, err := targets.CreateTarget(ctx, &memdv1.CreateTargetRequest{
		Tenant: "acme", Name: "hook", Kind: memdv1.TargetKind_TARGET_KIND_WEBHOOK, BestEffort: true, Url: "https://hooks.example/in", Secret: given,
	})
	if err != nil || hook.GetSecret() != "" {
		t.Fatal(hook, err)
	}
	list, err := s.targets(auditor).ListTargets(ctx, &memdv1.ListTargetsRequest{})
	if err != nil || len(list.GetTargets()) != 2 {
		t.Fatal(list, err)
	}
	if diff := cmp.Diff(want, list.GetTargets()[0], protocmp.Transform(), protocmp.IgnoreFields(&memdv1.Target{}, "target_id", "created_at", "created_by")); diff != "" {
		t.Error(diff)
	}
	// Neither list nor log shows a secret.
	for _, text := range []string{list.String(), s.log.String()} {
		if strings.Contains(text, made.GetSecret()) || strings.Contains(text, given) {
			t.Error("a secret is shown again")
		}
	}
	got, err := targets.TestTarget(ctx, &memdv1.TestTargetRequest{Tenant: "acme", Name: "store"})
	if err != nil || !got.GetOk() || got.GetCode() != "ok" || got.GetCount() != 0 || got.Count == nil || store.calls.Load() != 1 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := s.admin(secret).SuspendTenant(ctx, &memdv1.SuspendTenantRequest{Tenant: "acme", Reason: "contract ended"}); err != nil {
		t.Fatal(err)
	}
	_, err = targets.TestTarget(ctx, &memdv1.TestTargetRequest{Tenant: "acme", Name: "store"})
	if got := answerOf(t, err); got.reason != "TENANT_INACTIVE" || store.calls.Load() != 1 {
		t.Errorf("suspended: %v, %d calls", got, store.calls.Load())
	}
	if _, err := s.admin(secret).ResumeTenant(ctx, &memdv1.ResumeTenantRequest{Tenant: "acme", Reason: "contract renewed"}); err != nil {
		t.Fatal(err)
	}
	srv.Close()
	got, err = targets.TestTarget(ctx, &memdv1.TestTargetRequest{Tenant: "acme", Name: "store"})
	if err != nil || got.GetOk() || got.GetCode() != "unreachable" || got.GetTries() != 2 {
		t.Errorf("down: %v, %v", got, err)
	}
	_, err = targets.CreateTarget(ctx, &memdv1.CreateTargetRequest{Tenant: "acme", Name: "hook", Kind: 2, Url: "https://hooks.example/other"})
	if got := answerOf(t, err); got.code != connect.CodeAlreadyExists {
		t.Error(got)
	}
	for i, code := range []connect.Code{0, connect.CodeNotFound} {
		_, err := targets.DeleteTarget(ctx, &memdv1.DeleteTargetRequest{Tenant: "acme", Name: "hook"})
		if i == 0 && err != nil || i == 1 && answerOf(t, err).code != code {
			t.Error(err)
		}
	}
	_, err = targets.ListTargets(ctx, &memdv1.ListTargetsRequest{})
	if got := answerOf(t, err); got != (answer{connect.CodeInvalidArgument, "INVALID", "tenant must be given"}) {
		t.Error(got)
	}
}

func TestTargets_ATenantsOperatorSeesThatTenantOnly(t *testing.T) {
	in := setup(t)
	in.private = true
	acme, _ := in.tenant("acme"), in.tenant("globex")
	s := in.serve()
	_, secret := in.key(acme.No, auth.Operator)
	_, root := in.key(auth.Installation, auth.Operator)
	_, agent := in.key(acme.No, auth.Agent)
	ctx := t.Context()
	create := func(secret, tenant string) error {
		_, err := s.targets(secret).CreateTarget(ctx, &memdv1.CreateTargetRequest{Tenant: tenant, Name: "hook", Kind: 2, Url: "https://hooks.example"})
		return err
	}
	if err := create(root, "globex"); err != nil {
		t.Fatal(err)
	}
	mine := s.targets(secret)
	notFound := answer{connect.CodeNotFound, "NOT_FOUND", "not found"}
	for name, call := range map[string]func(tenant string) error{
		"CreateTarget": func(tenant string) error { return create(secret, tenant) },
		"ListTargets": func(tenant string) error {
			_, err := mine.ListTargets(ctx, &memdv1.ListTargetsRequest{Tenant: tenant})
			return err
		},
		"DeleteTarget": func(tenant string) error {
			_, err := mine.DeleteTarget(ctx, &memdv1.DeleteTargetRequest{Tenant: tenant, Name: "hook"})
			return err
		},
		"TestTarget": func(tenant string) error {
			_, err := mine.TestTarget(ctx, &memdv1.TestTargetRequest{Tenant: tenant, Name: "hook"})
			return err
		},
	} {
		for _, tenant := range []string{"globex", "nobody"} {
			if got := answerOf(t, call(tenant)); got != notFound {
				t.Errorf("%s of %s: %v", name, tenant, got)
			}
		}
	}
	list, err := s.targets(root).ListTargets(ctx, &memdv1.ListTargetsRequest{Tenant: "globex"})
	if err != nil || len(list.GetTargets()) != 1 {
		t.Errorf("globex has %v, %v", list, err)
	}
	if err := create(secret, ""); err != nil {
		t.Errorf("its own: %v", err)
	}
	if got := answerOf(t, create(agent, "acme")); got.code != connect.CodePermissionDenied {
		t.Errorf("an agent: %v", got)
	}
	// What is inside the installation is for the installation's operator.
	for name, req := range map[string]*memdv1.CreateTargetRequest{
		"private":   {Name: "in", Kind: memdv1.TargetKind_TARGET_KIND_CONNECT, Url: "https://10.0.0.1", AllowPrivate: true},
		"log file":  {Name: "log", Kind: memdv1.TargetKind_TARGET_KIND_LOGFILE, Path: "/var/log/memd/all.log"},
		"retention": {Name: "keeps", Kind: memdv1.TargetKind_TARGET_KIND_RETENTION, Path: "/var/log/memd/all.log", Retention: durationpb.New(time.Hour)},
	} {
		_, err := mine.CreateTarget(ctx, req)
		if got := answerOf(t, err); got.code != connect.CodePermissionDenied {
			t.Errorf("%s: %v", name, got)
		}
		req.Tenant = "acme"
		if _, err := s.targets(root).CreateTarget(ctx, req); err != nil {
			t.Errorf("%s by the installation's: %v", name, err)
		}
	}
}

func TestTargets_RefuseMalformedRequests(t *testing.T) {
	in := setup(t)
	in.tenant("acme")
	s := in.serve()
	_, root := in.key(auth.Installation, auth.Operator)
	targets := s.targets(root)
	ctx := t.Context()
	for name, c := range map[string]struct {
		field  string
		change func(*memdv1.CreateTargetRequest)
	}{
		"name":        {"name", func(r *memdv1.CreateTargetRequest) { r.Name = "../x" }},
		"no kind":     {"kind", func(r *memdv1.CreateTargetRequest) { r.Kind = 0 }},
		"kind":        {"kind", func(r *memdv1.CreateTargetRequest) { r.Kind = 77 }},
		"order":       {"order", func(r *memdv1.CreateTargetRequest) { r.Order = 77 }},
		"url":         {"url", func(r *memdv1.CreateTargetRequest) { r.Url = strings.Repeat("x", 3000) }},
		"http":        {"url", func(r *memdv1.CreateTargetRequest) { r.Url = "http://hooks.example" }},
		"timeout":     {"timeout", func(r *memdv1.CreateTargetRequest) { r.Timeout = durationpb.New(time.Hour) }},
		"retention":   {"retention", func(r *memdv1.CreateTargetRequest) { r.Retention = durationpb.New(-time.Second) }},
		"not allowed": {"allow_private", func(r *memdv1.CreateTargetRequest) { r.AllowPrivate = true }},
		"secret":      {"secret", func(r *memdv1.CreateTargetRequest) { r.Secret = "not-a-key-of-webhooks" }},
		"fields":      {"log_fields.user", func(r *memdv1.CreateTargetRequest) { r.LogFields = &memdv1.LogFields{User: "a b"} }},
	} {
		req := &memdv1.CreateTargetRequest{Tenant: "acme", Name: "hook", Kind: memdv1.TargetKind_TARGET_KIND_WEBHOOK, Url: "https://hooks.example"}
		c.change(req)
		_, err := targets.CreateTarget(ctx, req)
		if got := violations(t, err); !slices.Contains(got, c.field) {
			t.Errorf("%s: %v", name, got)
		}
		if strings.Contains(err.Error(), "not-a-key-of-webhooks") {
			t.Error("the secret is repeated")
		}
	}
	_, err := targets.DeleteTarget(ctx, &memdv1.DeleteTargetRequest{Tenant: "acme"})
	if got := violations(t, err); !slices.Contains(got, "name") {
		t.Errorf("deleting all: %v", got)
	}
}
