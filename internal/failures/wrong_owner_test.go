package failures_test

// The wrong owner.
//
//	anyone may read or delete by id: mem0#6080,        ReadsAndDeletesByID
//	  #4236, Memori#136
//	delete without a group check: graphiti#1705        ReadsAndDeletesByID
//	search not filtered by user or app:                SearchOfEverybody
//	  adk-python#1019, adk-go#1175
//	session delete ignores the owner: adk-go#1195      SessionDeleteIgnoresTheOwner
//	the wrong tenant, from a pasted id                 AnIDOfAnotherTenantsUser
//	a row copied into another tenant still decrypts    memory.TestService_copiedRowsDoNotOpen

import (
	"testing"

	"google.golang.org/protobuf/types/known/fieldmaskpb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

func TestFailure_mem0_6080_ReadsAndDeletesByID(t *testing.T) {
	in := setup(t)
	acme, globex := in.customer("acme"), in.customer("globex")
	ids := acme.add(said("alice", "s1", "alice"), contributed("alice", "s1", "alice shared"))
	summary := acme.add(drawn(user("alice"), "summary", ids[0]))[0]
	acme.add(said("bob", "b1", "bob"))
	globex.add(said("alice", "s1", "alice of globex"))
	otherApp := &memdv1.Scope{Owner: &memdv1.Scope_User{User: &memdv1.UserScope{App: "mail", UserId: "alice"}}}
	for who, c := range map[string]struct {
		customer *customer
		scope    *memdv1.Scope
		ids      []string
	}{
		"another user":            {acme, user("bob"), ids},
		"a user never seen":       {acme, user("nobody"), ids},
		"another app":             {acme, otherApp, ids},
		"the shared scope":        {acme, shared(), ids[:1]},
		"the user for the shared": {acme, user("alice"), ids[1:]},
		"another tenant":          {globex, user("alice"), ids},
		"another tenant's group":  {globex, shared(), ids},
	} {
		for _, m := range c.customer.memory {
			for _, id := range c.ids {
				if _, err := m.Get(t.Context(), &memdv1.GetRequest{Scope: c.scope, MemoryId: id}); reason(err) != "NOT_FOUND" {
					t.Errorf("%s reads: %v", who, err)
				}
				_, err := m.Update(t.Context(), &memdv1.UpdateRequest{
					Scope: c.scope, MemoryId: id, ExpectedVersion: 1, Metadata: map[string]string{"k": "v"}, Impersonal: c.scope.GetShared() != nil,
					UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"metadata"}},
				})
				if reason(err) != "NOT_FOUND" {
					t.Errorf("%s updates: %v", who, err)
				}
				// No error: it cannot be told from what is gone.
				res, err := m.Delete(t.Context(), &memdv1.DeleteRequest{Scope: c.scope, MemoryId: id, DeleteDerived: true})
				if err != nil || res.GetDerivedDeleted() != 0 || res.GetDerivedRemaining() != 0 {
					t.Errorf("%s deletes: %v, %v", who, res, err)
				}
			}
		}
	}
	globex.refused(drawn(user("alice"), "from another tenant's", ids[0]), "SOURCE_GONE")
	acme.wants(user("alice"), "alice", "summary")
	acme.wants(shared(), "alice shared")
	globex.wants(user("alice"), "alice of globex")
	if _, err := acme.memory[1].Get(t.Context(), &memdv1.GetRequest{Scope: user("alice"), MemoryId: summary}); err != nil {
		t.Errorf("the owner reads: %v", err)
	}
}

func TestFailure_adk_python_1019_SearchOfEverybody(t *testing.T) {
	in := setup(t)
	acme, globex := in.customer("acme"), in.customer("globex")
	inApp := func(name, text string) *memdv1.Row {
		row := said("alice", "s1", text)
		row.Scope.GetUser().App = name
		return row
	}
	acme.add(said("alice", "s1", "alice"), said("bob", "b1", "bob"), contributed("bob", "b1", "shared"), inApp("mail", "alice in mail"))
	globex.add(said("alice", "s1", "alice of globex"), contributed("alice", "s1", "shared of globex"))
	acme.wants(user("alice"), "alice")
	acme.wants(inApp("mail", "").GetScope(), "alice in mail")
	acme.wants(shared(), "shared")
	acme.wants(user("Alice"))
	acme.wants(user("alice "))
	globex.wants(user("bob"))
	for _, m := range acme.memory {
		res, err := m.Search(t.Context(), &memdv1.SearchRequest{Scope: user("alice"), Vector: vector(), TopK: 1000, IncludeShared: true})
		if err != nil || len(res.GetHits()) != 2 {
			t.Errorf("with the shared scope: %v, %v", res, err)
		}
	}
}

func TestFailure_adk_go_1195_SessionDeleteIgnoresTheOwner(t *testing.T) {
	in := setup(t)
	acme, globex := in.customer("acme"), in.customer("globex")
	for _, c := range []*customer{acme, globex} {
		c.add(said("alice", "s1", "alice"), said("bob", "s1", "bob"), contributed("bob", "s1", "bob shared"))
	}
	acme.forgetSession(0, "alice", "s1")
	acme.forgetSession(0, "carol", "s1") // Who has no such session.
	acme.wants(user("alice"))
	acme.wants(user("bob"), "bob")
	acme.wants(shared(), "bob shared")
	globex.wants(user("alice"), "alice")
	globex.wants(user("bob"), "bob")
	acme.add(said("bob", "s1", "bob goes on"))
}

func TestFailure_seeds_AnIDOfAnotherTenantsUser(t *testing.T) {
	in := setup(t)
	acme, globex := in.customer("acme"), in.customer("globex")
	acme.add(said("alice", "s1", "alice"))
	globex.add(said("gina", "g1", "gina"), contributed("gina", "g1", "gina shared"))
	r := acme.forgetUser(0, "gina") // Pasted from the other's list.
	if before, after := store(r, "memories"); before != 0 || after != 0 {
		t.Errorf("the report says %d before and %d after", before, after)
	}
	globex.wants(user("gina"), "gina")
	globex.wants(shared(), "gina shared")
	acme.wants(user("alice"), "alice")
}
