package server_test

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/tenants"
)

// measure looks at all tenants with quotas, as a worker does every few seconds.
func (in *installation) measure() {
	in.t.Helper()
	// Each look is in another year, so that all are due.
	meter := &tenants.Meter{Pool: in.worker, Clock: &stoppedClock{at: time.Now().AddDate(in.looks, 0, 0)}, Logger: slog.New(slog.DiscardHandler)}
	in.looks++
	if err := meter.Measure(in.t.Context()); err != nil {
		in.t.Fatal(err)
	}
}

// stoppedClock goes on when it is told to.
type stoppedClock struct {
	mu sync.Mutex
	at time.Time
}

func (c *stoppedClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *stoppedClock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

func (s *instance) quota(t *testing.T, root, tenant string, q *memdv1.Quota) {
	t.Helper()
	if _, err := s.admin(root).SetPolicy(t.Context(), &memdv1.SetPolicyRequest{Tenant: tenant, Policy: &memdv1.Policy{Quota: q}}); err != nil {
		t.Fatal(err)
	}
}

func TestQuota_ATenantThatHasItAllAddsNothingAndLosesNoRight(t *testing.T) {
	in := setup(t)
	in.work()
	first, second := in.serve(), in.serve()
	acme, globex := in.tenant("acme"), in.tenant("globex")
	_, root := in.key(auth.Installation, auth.Operator)
	_, own := in.key(acme.No, auth.Agent|auth.Eraser|auth.Operator)
	_, other := in.key(globex.No, auth.Agent)
	ctx := t.Context()
	alice := user("chat", "alice")
	row := raw(alice, "green tea, in the largest of cups, and with much honey, as every morning")
	added, err := first.memory(own).Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{row, raw(alice, "no sugar")}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.sessions(own).CreateSession(ctx, &memdv1.CreateSessionRequest{App: "chat", UserId: "alice", SessionId: "s"}); err != nil {
		t.Fatal(err)
	}
	if _, err := first.artifacts(own).SaveArtifactInline(ctx, &memdv1.SaveArtifactInlineRequest{Header: artifactHeader("alice", "note"), Data: []byte("x")}); err != nil {
		t.Fatal(err)
	}

	first.quota(t, root, "acme", &memdv1.Quota{Rows: new(int64(3)), Bytes: new(int64(1 << 20))})
	in.measure()
	for name, write := range map[string]func(*instance) error{
		"a memory": func(s *instance) error {
			_, err := s.memory(own).Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{raw(alice, "coffee")}})
			return err
		},
		"memories of two": func(s *instance) error {
			_, err := s.memory(own).Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{raw(alice, "coffee"), raw(user("chat", "carl"), "milk")}})
			return err
		},
		"a memory of somebody new": func(s *instance) error {
			_, err := s.memory(own).Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{raw(user("chat", "bob"), "coffee")}})
			return err
		},
		"an update to something longer": func(s *instance) error {
			_, err := s.memory(own).Update(ctx, &memdv1.UpdateRequest{Scope: alice, MemoryId: added.GetResults()[1].GetMemoryId(), ExpectedVersion: 1, Text: uuid.NewString() + uuid.NewString()})
			return err
		},
		"a session": func(s *instance) error {
			_, err := s.sessions(own).CreateSession(ctx, &memdv1.CreateSessionRequest{App: "chat", UserId: "alice"})
			return err
		},
		"an event": func(s *instance) error {
			_, err := s.sessions(own).AppendEvents(ctx, &memdv1.AppendEventsRequest{App: "chat", UserId: "alice", SessionId: "s", Events: []*memdv1.Event{says("e1", "user", "x")}})
			return err
		},
		"events": func(s *instance) error {
			_, err := s.sessions(own).AppendEvents(ctx, &memdv1.AppendEventsRequest{App: "chat", UserId: "alice", SessionId: "s", Events: []*memdv1.Event{says("e2", "user", "x"), says("e3", "user", "y")}})
			return err
		},
		"an artifact": func(s *instance) error {
			_, err := s.artifacts(own).SaveArtifactInline(ctx, &memdv1.SaveArtifactInlineRequest{Header: artifactHeader("alice", "note"), Data: []byte("y")})
			return err
		},
	} {
		for _, s := range []*instance{first, second} {
			err := write(s)
			if err == nil {
				t.Errorf("%s: is added", name)
				continue
			}
			got := answerOf(t, err)
			if got.code != connect.CodeResourceExhausted || got.reason != "QUOTA_REACHED" || !strings.Contains(got.message, "3 rows of 3, 0 too many; delete") {
				t.Errorf("%s: %v", name, got)
			}
		}
	}
	if n := testutil.CollectAndCount(first.registry, "memd_quota_refusals_total"); n != 1 {
		t.Errorf("%d series of refusals", n)
	}
	if _, err := first.memory(other).Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{raw(alice, "coffee")}}); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	for name, call := range map[string]func() error{
		"searching": func() error {
			found, err := second.memory(own).Search(ctx, &memdv1.SearchRequest{Scope: alice, Text: "tea"})
			if err == nil && len(found.GetHits()) == 0 {
				t.Error("nothing is found")
			}
			return err
		},
		"an update to something shorter": func() error {
			_, err := second.memory(own).Update(ctx, &memdv1.UpdateRequest{Scope: alice, MemoryId: added.GetResults()[0].GetMemoryId(), ExpectedVersion: 1, Text: "tea"})
			return err
		},
		"deleting an artifact": func() error {
			_, err := second.artifacts(own).DeleteArtifact(ctx, &memdv1.DeleteArtifactRequest{Owner: artifactOwner("alice"), Name: "note", What: &memdv1.DeleteArtifactRequest_AllVersions{AllVersions: true}})
			return err
		},
		"deleting a session": func() error {
			_, err := second.sessions(own).DeleteSession(ctx, &memdv1.DeleteSessionRequest{App: "chat", UserId: "alice", SessionId: "s"})
			return err
		},
		"forgetting somebody": func() error {
			_, err := second.erasure(own).ForgetUser(ctx, &memdv1.ForgetUserRequest{App: "chat", UserId: "zoe", RequestId: uuid.NewString()})
			return err
		},
	} {
		if err := call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = second.admin(own).SetPolicy(ctx, &memdv1.SetPolicyRequest{Tenant: "acme", Policy: &memdv1.Policy{Quota: &memdv1.Quota{Rows: new(int64(0))}}})
	if got := answerOf(t, err); got.code != connect.CodePermissionDenied {
		t.Errorf("a tenant raises its own quota: %v", got)
	}

	// A policy counts at once, by what was measured last, at the other replica too.
	add := func(s *instance) error {
		_, err := s.memory(own).Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{raw(alice, uuid.NewString())}})
		return err
	}
	first.quota(t, root, "acme", &memdv1.Quota{Rows: new(int64(4))})
	if err := add(second); err != nil {
		t.Errorf("after the quota was raised: %v", err)
	}
	first.quota(t, root, "acme", &memdv1.Quota{Rows: new(int64(2)), Bytes: new(int64(0))})
	in.measure()
	if got := answerOf(t, add(second)); got.reason != "QUOTA_REACHED" {
		t.Errorf("after the quota was lowered: %v", got)
	}
	// What is deleted makes room.
	for _, r := range added.GetResults() {
		if _, err := first.memory(own).Delete(ctx, &memdv1.DeleteRequest{Scope: alice, MemoryId: r.GetMemoryId()}); err != nil {
			t.Fatal(err)
		}
	}
	in.measure()
	if err := add(second); err != nil {
		t.Errorf("after a deletion: %v", err)
	}
	got, err := first.admin(own).GetTenant(ctx, &memdv1.GetTenantRequest{Name: "acme"})
	if u := got.GetTenant().GetUsage(); err != nil || u.GetRows() != 1 || u.GetBytes() == 0 || u.GetFull() || u.GetMeasuredAt() == nil {
		t.Errorf("usage %v, %v", u, err)
	}
	first.quota(t, root, "acme", &memdv1.Quota{Bytes: new(int64(1))})
	if got := answerOf(t, add(first)); !strings.Contains(got.message, "bytes of 1, ") || strings.Contains(got.message, "rows") {
		t.Errorf("too many bytes: %v", got)
	}
}

func TestQuota_CallsASecond(t *testing.T) {
	in := setup(t)
	clock := &stoppedClock{at: time.Now()}
	in.clock = clock
	first, second := in.serve(), in.serve()
	acme, globex := in.tenant("acme"), in.tenant("globex")
	_, root := in.key(auth.Installation, auth.Operator)
	_, own := in.key(acme.No, auth.Agent|auth.Eraser|auth.Operator)
	_, other := in.key(globex.No, auth.Agent)
	ctx := t.Context()
	alice := user("chat", "alice")
	search := func(s *instance, key string) error {
		_, err := s.memory(key).Search(ctx, &memdv1.SearchRequest{Scope: alice, Text: "tea"})
		return err
	}
	refused := func(when string, err error) {
		t.Helper()
		if got := answerOf(t, err); got.code != connect.CodeResourceExhausted || got.reason != "TOO_MANY_CALLS" {
			t.Errorf("%s: %v", when, got)
		}
	}
	// Warm, so that searches ride.
	if err := search(second, own); err != nil {
		t.Fatal(err)
	}
	first.quota(t, root, "acme", &memdv1.Quota{CallsPerSecond: new(int32(2))})
	for range 2 {
		if err := search(second, own); err != nil {
			t.Fatal(err)
		}
	}
	calling, info := connect.NewClientContext(ctx)
	_, err := second.memory(own).Search(calling, &memdv1.SearchRequest{Scope: alice, Text: "tea"})
	refused("the third in a moment, at a replica that did not set the quota", err)
	if wait := retryInfo(t, err); wait != 500*time.Millisecond {
		t.Errorf("to be repeated after %v", wait)
	}
	if strings.Contains(second.log.String(), `"level":"WARN"`) {
		t.Error("a refusal is a warning: whoever floods the calls floods the log")
	}
	if after := info.ResponseHeader().Get("Retry-After"); after != "1" {
		t.Errorf("Retry-After: %q", after)
	}
	if err := search(first, own); err != nil {
		t.Errorf("the other replica has a bucket of its own: %v", err)
	}
	if err := search(second, other); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	_, err = second.sessions(own).ListSessions(ctx, &memdv1.ListSessionsRequest{App: "chat", UserId: "alice"})
	refused("another call of an agent's", err)
	for name, call := range map[string]func() error{
		"an erasure": func() error {
			_, err := second.erasure(own).ForgetUser(ctx, &memdv1.ForgetUserRequest{App: "chat", UserId: "zoe", RequestId: uuid.NewString(), Wait: durationpb.New(0)})
			return err
		},
		"a hold": func() error {
			_, err := second.erasure(own).ListHolds(ctx, &memdv1.ListHoldsRequest{})
			return err
		},
		"exports": func() error {
			_, err := memdv1connect.NewExportServiceClient(second.client(own)).ListExports(ctx, &memdv1.ListExportsRequest{Tenant: "acme"})
			return err
		},
		"administration": func() error {
			_, err := second.admin(own).GetTenant(ctx, &memdv1.GetTenantRequest{Name: "acme"})
			return err
		},
	} {
		for range 3 {
			if err := call(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}

	clock.pass(499 * time.Millisecond)
	refused("a millisecond early", search(second, own))
	clock.pass(time.Millisecond)
	if err := search(second, own); err != nil {
		t.Errorf("half a second later: %v", err)
	}
	refused("and once more", search(second, own))
	first.quota(t, root, "acme", &memdv1.Quota{CallsPerSecond: new(int32(4))})
	refused("at the moment of the change", search(second, own))
	clock.pass(250 * time.Millisecond)
	if err := search(second, own); err != nil {
		t.Errorf("a quarter of a second after the quota was doubled: %v", err)
	}
	refused("and not twice", search(second, own))
	first.quota(t, root, "acme", &memdv1.Quota{CallsPerSecond: new(int32(0))})
	for range 5 {
		if err := search(second, own); err != nil {
			t.Errorf("without a quota: %v", err)
		}
	}
}

func retryInfo(t *testing.T, err error) time.Duration {
	t.Helper()
	var e *connect.Error
	if !errors.As(err, &e) {
		t.Fatal(err)
	}
	for _, d := range e.Details() {
		m, e := connectproto.UnmarshalErrorDetail(d)
		if e != nil {
			t.Fatal(e)
		}
		if info, ok := m.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration()
		}
	}
	return 0
}
