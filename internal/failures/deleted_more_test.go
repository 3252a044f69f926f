package failures_test

// Deleted more than was asked.
//
//	delete-all for one user resets everybody:          DeleteOfOneUserResetsEverybody
//	  mem0#3746, #3928
//	an empty id list or filter deletes everything:     AnEmptyFilterDeletesEverything;
//	  chroma#583, #948                                 erasure.TestForget_RefusesWhatNamesNobody
//	one owner's deletion takes the shared thing:       TheSharedThingGoesAlong;
//	  letta#1917, cognee#2732                          memory.TestService_Delete
//	"forget what matches this query"                   NothingIsForgottenByQuery
//	one scope's erasure flushes everybody's cache      ErasureFlushesEverybodysCache

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/protobuf/reflect/protoreflect"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

func TestFailure_mem0_3746_DeleteOfOneUserResetsEverybody(t *testing.T) {
	in := setup(t)
	acme, globex := in.customer("acme"), in.customer("globex")
	for i := range 20 {
		for _, c := range []*customer{acme, globex} {
			id := fmt.Sprintf("user%d", i)
			c.add(said(id, "s1", id), contributed(id, "s1", id+" shared"))
		}
	}
	acme.forgetUser(0, "user7")
	acme.forgetSession(1, "user8", "s1")
	var group []string
	for i := range 20 {
		id := fmt.Sprintf("user%d", i)
		globex.wants(user(id), id)
		if i == 7 || i == 8 {
			acme.wants(user(id))
			continue
		}
		acme.wants(user(id), id)
		group = append(group, id+" shared")
	}
	acme.wants(shared(), group...)
	if n := len(globex.texts(shared())); n != 20 {
		t.Errorf("%d shared rows of the other tenant", n)
	}
}

func TestFailure_chroma_583_AnEmptyFilterDeletesEverything(t *testing.T) {
	in := setup(t)
	c := in.customer("acme")
	c.add(said("alice", "s1", "alice"), contributed("bob", "b1", "bob shared"))
	for _, m := range c.memory {
		for what, req := range map[string]*memdv1.DeleteRequest{
			"nothing":       {},
			"no id":         {Scope: user("alice")},
			"no user":       {Scope: user(""), MemoryId: uuid.NewString()},
			"a wildcard":    {Scope: user("*"), MemoryId: uuid.NewString()},
			"the zero id":   {Scope: user("alice"), MemoryId: uuid.Nil.String()},
			"another id":    {Scope: user("alice"), MemoryId: uuid.NewString(), DeleteDerived: true},
			"another scope": {Scope: shared(), MemoryId: uuid.NewString(), DeleteDerived: true},
		} {
			if res, err := m.Delete(t.Context(), req); err == nil && (res.GetDerivedDeleted() != 0 || what == "nothing" || what == "a wildcard") {
				t.Errorf("%s: %v", what, res)
			}
		}
	}
	for _, e := range c.eraser {
		for _, req := range []*memdv1.ForgetUserRequest{
			{}, {App: app}, {App: app, UserId: "alice"}, {App: app, UserId: "*", RequestId: uuid.NewString()},
			{App: "*", UserId: "alice", RequestId: uuid.NewString()}, {App: app, RequestId: uuid.NewString()},
		} {
			if _, err := e.ForgetUser(t.Context(), req); reason(err) != "INVALID" && reason(err) != "INVALID_ARGUMENT" {
				t.Errorf("%v: %q, %v", req, reason(err), err)
			}
		}
		for _, req := range []*memdv1.ForgetSessionRequest{
			{App: app, UserId: "alice", RequestId: uuid.NewString()}, {App: app, UserId: "alice", SessionId: "*", RequestId: uuid.NewString()},
		} {
			if _, err := e.ForgetSession(t.Context(), req); reason(err) != "INVALID" && reason(err) != "INVALID_ARGUMENT" {
				t.Errorf("%v: %q, %v", req, reason(err), err)
			}
		}
	}
	c.wants(user("alice"), "alice")
	c.wants(shared(), "bob shared")
}

func TestFailure_letta_1917_TheSharedThingGoesAlong(t *testing.T) {
	in := setup(t)
	c := in.customer("acme")
	house := &memdv1.Row{Scope: shared(), Impersonal: true, Kind: memdv1.Kind_KIND_RAW, Text: "opening hours", Vector: vector()}
	ids := c.add(house, said("alice", "s1", "alice"), said("bob", "b1", "bob"))
	c.add(drawn(user("alice"), "alice on the hours", ids[0], ids[1]), drawn(user("bob"), "bob on the hours", ids[0], ids[2]))
	c.forgetUser(0, "alice")
	c.wants(shared(), "opening hours")
	c.wants(user("bob"), "bob", "bob on the hours")
}

// There is no such call: what is forgotten is named by its id. A field that
// holds words to be matched would be a way to forget the wrong thing.
func TestFailure_seeds_NothingIsForgottenByQuery(t *testing.T) {
	want := map[protoreflect.FullName][]string{
		"memd.v1.ForgetUserRequest":    {"app", "user_id", "request_id", "wait"},
		"memd.v1.ForgetSessionRequest": {"app", "user_id", "session_id", "request_id", "wait"},
		"memd.v1.DeleteTenantRequest":  {"tenant", "confirm_display_name", "request_id", "wait"},
		"memd.v1.DeleteRequest":        {"scope", "memory_id", "delete_derived"},
		// Rows that a check of this erasure names, and no others.
		"memd.v1.RemoveSurvivorsRequest": {"request_id", "tenant", "rows"},
		// What the tenant's policy says, which PlanRetention tells before.
		"memd.v1.RunRetentionRequest": {"tenant"},
	}
	// What looks, and what keeps from being deleted, deletes nothing.
	looks := map[protoreflect.Name]bool{
		"DryRun": true, "GetErasure": true, "ListErasures": true, "WatchErasure": true, "GetReceipt": true, "VerifyErasure": true,
		"ApproveDeletion": true, "VoidApproval": true, "ListApprovals": true,
		"Hold": true, "ReleaseHold": true, "ListHolds": true, "GetReceiptKeys": true,
		"PlanRetention": true,
	}
	got := map[protoreflect.FullName][]string{}
	for _, file := range []protoreflect.FileDescriptor{memdv1.File_memd_v1_erasure_proto, memdv1.File_memd_v1_memory_proto} {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				m := methods.Get(j)
				if file == memdv1.File_memd_v1_memory_proto && m.Name() != "Delete" || looks[m.Name()] {
					continue
				}
				for f := range m.Input().Fields().Len() {
					got[m.Input().FullName()] = append(got[m.Input().FullName()], string(m.Input().Fields().Get(f).Name()))
				}
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what deletes, and by what (-want +got):\n%s", diff)
	}
}

func TestFailure_seeds_ErasureFlushesEverybodysCache(t *testing.T) {
	in := setup(t)
	acme, globex := in.customer("acme"), in.customer("globex")
	acme.add(said("alice", "s1", "alice"), said("bob", "b1", "bob"))
	globex.add(said("gina", "g1", "gina"))
	globex.wants(user("gina"), "gina")
	acme.wants(user("bob"), "bob")
	acme.forgetUser(0, "alice")
	acme.wants(user("bob"), "bob") // Both replicas have the new keys now.
	before := in.KMS.Server.Calls("")
	globex.wants(user("gina"), "gina")
	acme.wants(user("bob"), "bob")
	if n := in.KMS.Server.Calls("") - before; n != 0 {
		t.Errorf("%d calls of the key service after somebody else's erasure", n)
	}
}
