package server_test

import (
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/protobuf/testing/protocmp"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/auth"
)

func TestErasure_ForgetsAndReports(t *testing.T) {
	in := setup(t)
	in.work()
	first, second := in.serve(), in.serve()
	acme := in.tenant("acme")
	_, agent := in.key(acme.No, auth.Agent)
	_, eraser := in.key(acme.No, auth.Eraser)
	ctx := t.Context()
	alice, bob := user("chat", "alice"), user("chat", "bob")
	var ids []string
	for _, scope := range []*memdv1.Scope{alice, bob} {
		row := raw(scope, "green tea")
		row.SessionId = "s1"
		added, err := first.memory(agent).Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{row}})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, added.GetResults()[0].GetMemoryId())
	}
	source := func(id string) *memdv1.Source {
		return &memdv1.Source{Source: &memdv1.Source_MemoryId{MemoryId: id}}
	}
	summary, err := first.memory(agent).Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{{
		Scope: shared("chat"), Kind: memdv1.Kind_KIND_SUMMARY, Text: "tea is liked", Sources: []*memdv1.Source{source(ids[0]), source(ids[1])},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	search := func(s *instance, scope *memdv1.Scope) int {
		t.Helper()
		res, err := s.memory(agent).Search(ctx, &memdv1.SearchRequest{Scope: scope, Text: "green tea", IncludeShared: true})
		if err != nil {
			t.Fatal(err)
		}
		return len(res.GetHits())
	}
	if before := search(second, alice); before != 2 {
		t.Fatalf("%d hits before", before)
	}
	req := &memdv1.ForgetUserRequest{App: "chat", UserId: "alice", RequestId: uuid.NewString()}
	res, err := first.erasure(eraser).ForgetUser(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	r := res.GetReport()
	if r.GetState() != memdv1.ErasureState_ERASURE_STATE_DONE || r.GetRequestId() != req.GetRequestId() || r.GetKeyEpoch() != 2 || r.GetFinishedAt() == nil {
		t.Errorf("report %v", r)
	}
	// The salt is the requester's alone: another key that repeats the request gets
	// the same report without it.
	_, other := in.key(acme.No, auth.Eraser)
	others, err := second.erasure(other).ForgetUser(ctx, req)
	if err != nil || r.GetSalt() == "" || others.GetReport().GetSalt() != "" || others.GetReport().GetRequestId() != req.GetRequestId() {
		t.Errorf("the salt is %d long for the requester and %d for another: %v", len(r.GetSalt()), len(others.GetReport().GetSalt()), err)
	}
	counts := map[string]*memdv1.StoreCount{}
	for _, c := range r.GetCounts() {
		counts[c.GetStore()] = c
		if c.After == nil || c.GetAfter() != 0 {
			t.Errorf("left of %s: %v", c.GetStore(), c)
		}
	}
	if counts["memories"].GetBefore() == 0 || counts["sessions"].GetBefore() != 1 {
		t.Errorf("counts %v", counts)
	}
	if r.GetFallenTotal() != 1 || len(r.GetFallen()) != 1 || r.GetFallen()[0].GetMemoryId() != summary.GetResults()[0].GetMemoryId() ||
		r.GetFallen()[0].GetScope().GetShared().GetApp() != "chat" || len(r.GetFallen()[0].GetSurvivingSources()) != 1 ||
		r.GetFallen()[0].GetSurvivingSources()[0].GetMemoryId() != ids[1] {
		t.Errorf("fallen %v", r.GetFallen())
	}
	key := r.GetKey()
	if key.GetKmsVersion() == "" || key.GetUnreadableAt() == nil ||
		key.GetPurgedAt().AsTime().Sub(key.GetDestroyedAt().AsTime()) != 45*24*time.Hour {
		t.Errorf("key %v", key)
	}
	for name, s := range map[string]*instance{"the same": first, "another": second} {
		if a, b := search(s, alice), search(s, bob); a != 0 || b != 1 {
			t.Errorf("on %s replica: %d hits of the forgotten, %d of the other", name, a, b)
		}
	}
	again, err := second.erasure(eraser).ForgetUser(ctx, req)
	if diff := cmp.Diff(r, again.GetReport(), protocmp.Transform()); diff != "" || err != nil {
		t.Errorf("again: %v %s", err, diff)
	}
	req.UserId = "bob"
	_, err = first.erasure(eraser).ForgetUser(ctx, req)
	if got := answerOf(t, err); got.code != connect.CodeAlreadyExists || got.reason != "REQUEST_REUSED" {
		t.Errorf("for somebody else: %v", got)
	}
	if n := search(first, bob); n != 1 {
		t.Errorf("which left %d rows", n)
	}
}

func TestErasure_RefusesWhatNamesNobody(t *testing.T) {
	in := setup(t)
	s := in.serve()
	acme := in.tenant("acme")
	_, secret := in.key(acme.No, auth.Eraser)
	_, agent := in.key(acme.No, auth.Agent)
	c := s.erasure(secret)
	id := uuid.NewString()
	for field, req := range map[string]*memdv1.ForgetUserRequest{
		"app":        {UserId: "alice", RequestId: id},
		"user_id":    {App: "chat", RequestId: id},
		"request_id": {App: "chat", UserId: "alice"},
	} {
		_, err := c.ForgetUser(t.Context(), req)
		if fields := violations(t, err); len(fields) != 1 || fields[0] != field {
			t.Errorf("without %s: complains about %q", field, fields)
		}
	}
	_, err := c.ForgetSession(t.Context(), &memdv1.ForgetSessionRequest{App: "chat", UserId: "alice", RequestId: id})
	if fields := violations(t, err); len(fields) != 1 || fields[0] != "session_id" {
		t.Errorf("without a session: complains about %q", fields)
	}
	_, err = s.erasure(agent).ForgetUser(t.Context(), &memdv1.ForgetUserRequest{App: "chat", UserId: "alice", RequestId: id})
	if got := answerOf(t, err); got.reason != "PERMISSION_DENIED" {
		t.Errorf("by an agent: %v", got)
	}
}
