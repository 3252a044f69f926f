package server_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/auth"
)

// follow watches an erasure until it is done and returns the names of the steps.
func follow(ctx context.Context, t *testing.T, c memdv1connect.ErasureServiceClient, request string) (steps []string, last memdv1.ErasureState) {
	t.Helper()
	stream, err := c.WatchErasure(ctx, &memdv1.WatchErasureRequest{RequestId: request, UntilDone: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stream.Close() }() // What was received counts.
	for {
		event, err := stream.Receive()
		if errors.Is(err, io.EOF) {
			return steps, last
		}
		if err != nil {
			t.Fatal(err)
		}
		last = event.GetErasure().GetState()
		if event.GetStep().GetDone() {
			steps = append(steps, event.GetStep().GetName())
		}
	}
}

// A request that does not wait is accepted at once, counted before, watched on
// another replica, held, released and listed.
func TestErasure_AsAJob(t *testing.T) {
	in := setup(t)
	in.work()
	first, second := in.serve(), in.serve()
	acme := in.tenant("acme")
	_, agent := in.key(acme.No, auth.Agent)
	_, eraser := in.key(acme.No, auth.Eraser)
	_, operator := in.key(acme.No, auth.Operator)
	_, auditor := in.key(acme.No, auth.Auditor)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := first.memory(agent).Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{raw(user("chat", "alice"), "green tea")}}); err != nil {
		t.Fatal(err)
	}
	dry, err := first.erasure(auditor).DryRun(ctx, &memdv1.DryRunRequest{App: "chat", UserId: "alice"})
	if err != nil || len(dry.GetCounts()) == 0 || dry.GetHeld() {
		t.Fatalf("%v, %v", dry, err)
	}
	hold, err := first.erasure(operator).Hold(ctx, &memdv1.HoldRequest{HoldId: uuid.NewString(), App: "chat", UserId: "alice", Reason: "case 17"})
	if err != nil || hold.GetHold().GetReason() != "case 17" || hold.GetHold().GetKind() != memdv1.ErasureKind_ERASURE_KIND_USER {
		t.Fatalf("%v, %v", hold, err)
	}
	request := uuid.NewString()
	res, err := first.erasure(eraser).ForgetUser(ctx, &memdv1.ForgetUserRequest{
		App: "chat", UserId: "alice", RequestId: request, Wait: durationpb.New(0),
	})
	e := res.GetReport().GetErasure()
	if err != nil || !e.GetHeld() || e.GetState() != memdv1.ErasureState_ERASURE_STATE_ACCEPTED || len(res.GetReport().GetSalt()) != 64 ||
		e.GetDueAt().AsTime().Sub(e.GetAcceptedAt().AsTime()) != 30*24*time.Hour {
		t.Fatalf("%v, %v", res, err)
	}
	if _, err := second.erasure(eraser).GetReceipt(ctx, &memdv1.GetReceiptRequest{RequestId: request}); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("a receipt of what is not done: %v", err)
	}
	if _, err := second.erasure(operator).ReleaseHold(ctx, &memdv1.ReleaseHoldRequest{HoldId: hold.GetHold().GetHoldId()}); err != nil {
		t.Fatal(err)
	}
	steps, last := follow(ctx, t, second.erasure(auditor), request)
	if len(steps) < 10 || last != memdv1.ErasureState_ERASURE_STATE_DONE {
		t.Errorf("steps %v, %v", steps, last)
	}
	got, err := second.erasure(auditor).GetErasure(ctx, &memdv1.GetErasureRequest{RequestId: request})
	if err != nil || len(got.GetReport().GetSteps()) != len(steps) || got.GetReport().GetSalt() != "" {
		t.Errorf("%v, %v", got, err)
	}
	list, err := second.erasure(auditor).ListErasures(ctx, &memdv1.ListErasuresRequest{
		States: []memdv1.ErasureState{memdv1.ErasureState_ERASURE_STATE_DONE}, PageSize: 1,
	})
	if err != nil || len(list.GetErasures()) != 1 || list.GetErasures()[0].GetRequestId() != request {
		t.Errorf("%v, %v", list, err)
	}
	holds, err := second.erasure(auditor).ListHolds(ctx, &memdv1.ListHoldsRequest{Released: true})
	if err != nil || len(holds.GetHolds()) != 1 || holds.GetHolds()[0].GetReleasedAt() == nil {
		t.Errorf("%v, %v", holds, err)
	}
}

// Requests for one user, by two replicas at once: some are the same request, some
// are not. All succeed, and those that are the same are told the same.
func TestForgetUser_AtOnceByTwoReplicas(t *testing.T) {
	in := setup(t)
	in.work()
	replicas := []*instance{in.serve(), in.serve()}
	acme := in.tenant("acme")
	_, agent := in.key(acme.No, auth.Agent)
	_, eraser := in.key(acme.No, auth.Eraser)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	rows := []*memdv1.Row{raw(user("chat", "alice"), "green tea"), raw(user("chat", "bob"), "coffee")}
	if _, err := replicas[0].memory(agent).Add(ctx, &memdv1.AddRequest{Rows: rows}); err != nil {
		t.Fatal(err)
	}
	same := uuid.NewString()
	requests := []string{same, same, uuid.NewString(), uuid.NewString(), same, same}
	reports := make([]*memdv1.Report, len(requests))
	group, ctx := errgroup.WithContext(ctx)
	for i, id := range requests {
		group.Go(func() error {
			res, err := replicas[i%2].erasure(eraser).ForgetUser(ctx, &memdv1.ForgetUserRequest{
				App: "chat", UserId: "alice", RequestId: id, Wait: durationpb.New(time.Minute),
			})
			reports[i] = res.GetReport()
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	for i, r := range reports {
		if r.GetState() != memdv1.ErasureState_ERASURE_STATE_DONE || r.GetRequestId() != requests[i] {
			t.Errorf("%d: %v of %s", i, r.GetState(), r.GetRequestId())
		}
		if requests[i] == same && (r.GetSalt() != reports[0].GetSalt() || !r.GetAcceptedAt().AsTime().Equal(reports[0].GetAcceptedAt().AsTime())) {
			t.Errorf("%d: the same request was told something else", i)
		}
	}
	list, err := replicas[1].erasure(eraser).ListErasures(t.Context(), &memdv1.ListErasuresRequest{})
	if err != nil || len(list.GetErasures()) != 3 {
		t.Errorf("%d erasures, %v", len(list.GetErasures()), err)
	}
	for _, replica := range replicas {
		for name, want := range map[string]int{"alice": 0, "bob": 1} {
			got, err := replica.memory(agent).List(t.Context(), &memdv1.ListRequest{Scope: user("chat", name)})
			if err != nil || len(got.GetMemories()) != want {
				t.Errorf("%s has %d memories, %v", name, len(got.GetMemories()), err)
			}
		}
	}
}

// A watcher whose key is revoked is told no more.
func TestWatchErasure_EndsWithItsKey(t *testing.T) {
	in := setup(t)
	s := in.serve()
	acme := in.tenant("acme")
	_, eraser := in.key(acme.No, auth.Eraser)
	key, auditor := in.key(acme.No, auth.Auditor)
	_, root := in.key(auth.Installation, auth.Operator)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	request := uuid.NewString()
	if _, err := s.erasure(eraser).ForgetUser(ctx, &memdv1.ForgetUserRequest{App: "chat", UserId: "alice", RequestId: request, Wait: durationpb.New(0)}); err != nil {
		t.Fatal(err)
	}
	stream, err := s.erasure(auditor).WatchErasure(ctx, &memdv1.WatchErasureRequest{RequestId: request})
	if err == nil {
		_, err = stream.Receive()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.admin(root).RevokeApiKey(ctx, &memdv1.RevokeApiKeyRequest{KeyId: key.ID.String()}); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = stream.Receive()
	}
	if connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("%v", err)
	}
}

// Another tenant's erasures and holds cannot be told from none, and what is
// malformed, or another's to do, is refused.
func TestErasure_OfOthersIsNotFound(t *testing.T) {
	in := setup(t)
	s := in.serve()
	acme, other := in.tenant("acme"), in.tenant("other")
	_, eraser := in.key(acme.No, auth.Eraser)
	_, operator := in.key(acme.No, auth.Operator)
	_, stranger := in.key(other.No, auth.Eraser|auth.Operator|auth.Auditor)
	_, root := in.key(auth.Installation, auth.Operator)
	ctx := t.Context()
	request, hold := uuid.NewString(), uuid.NewString()
	if _, err := s.erasure(eraser).ForgetUser(ctx, &memdv1.ForgetUserRequest{App: "chat", UserId: "alice", RequestId: request, Wait: durationpb.New(0)}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.erasure(operator).Hold(ctx, &memdv1.HoldRequest{HoldId: hold, Reason: "case 17"}); err != nil {
		t.Fatal(err)
	}
	c := s.erasure(stranger)
	for name, ask := range map[string]func(id, tenant string) error{
		"GetErasure": func(id, tenant string) error {
			_, err := c.GetErasure(ctx, &memdv1.GetErasureRequest{RequestId: id, Tenant: tenant})
			return err
		},
		"GetReceipt": func(id, tenant string) error {
			_, err := c.GetReceipt(ctx, &memdv1.GetReceiptRequest{RequestId: id, Tenant: tenant})
			return err
		},
		"VerifyErasure": func(id, tenant string) error {
			_, err := c.VerifyErasure(ctx, &memdv1.VerifyErasureRequest{RequestId: id, Tenant: tenant})
			return err
		},
		"WatchErasure": func(id, tenant string) error {
			stream, err := c.WatchErasure(ctx, &memdv1.WatchErasureRequest{RequestId: id, Tenant: tenant})
			if err == nil {
				_, err = stream.Receive()
			}
			return err
		},
	} {
		for _, of := range [][2]string{{request, ""}, {uuid.NewString(), ""}, {request, "acme"}, {request, "nobody"}} {
			if err := ask(of[0], of[1]); connect.CodeOf(err) != connect.CodeNotFound {
				t.Errorf("%s of %v: %v", name, of, err)
			}
		}
		if err := ask("no uuid", ""); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%s of no uuid: %v", name, err)
		}
	}
	for _, id := range []string{hold, uuid.NewString()} {
		if _, err := c.ReleaseHold(ctx, &memdv1.ReleaseHoldRequest{HoldId: id}); connect.CodeOf(err) != connect.CodeNotFound {
			t.Errorf("releasing another's hold: %v", err)
		}
	}
	for name, err := range map[string]error{
		"a hold without a reason": second(s.erasure(operator).Hold(ctx, &memdv1.HoldRequest{HoldId: uuid.NewString()})),
		"a hold on a wildcard":    second(s.erasure(operator).Hold(ctx, &memdv1.HoldRequest{HoldId: uuid.NewString(), App: "chat", UserId: "*", Reason: "x"})),
		"a hold on an app":        second(s.erasure(operator).Hold(ctx, &memdv1.HoldRequest{HoldId: uuid.NewString(), App: "chat", Reason: "x"})),
		"a dry run of nobody":     second(s.erasure(eraser).DryRun(ctx, &memdv1.DryRunRequest{App: "chat"})),
		"a page that is none":     second(s.erasure(eraser).ListErasures(ctx, &memdv1.ListErasuresRequest{PageToken: "?"})),
		"waiting for an hour":     second(s.erasure(eraser).ForgetUser(ctx, &memdv1.ForgetUserRequest{App: "chat", UserId: "a", RequestId: uuid.NewString(), Wait: durationpb.New(time.Hour)})),
		"another display name":    second(s.erasure(root).DeleteTenant(ctx, &memdv1.DeleteTenantRequest{Tenant: "acme", ConfirmDisplayName: "Acme?", RequestId: uuid.NewString()})),
	} {
		if connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := s.erasure(operator).DeleteTenant(ctx, &memdv1.DeleteTenantRequest{Tenant: "acme", ConfirmDisplayName: acme.DisplayName, RequestId: uuid.NewString()})
	if connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("a tenant's own key deletes it: %v", err)
	}
	_, err = s.erasure(root).DeleteTenant(ctx, &memdv1.DeleteTenantRequest{Tenant: "other", ConfirmDisplayName: other.DisplayName, RequestId: uuid.NewString()})
	if connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("deleting a tenant that is active: %v", err)
	}
}

// second is the error of a call.
func second[T any](_ T, err error) error { return err }
