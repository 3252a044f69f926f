package failures_test

// Derived data, and how it comes to be orphaned.
//
//	a deleted fact lives on in the summary of a        AForgottenFactLivesOnInASummary
//	  surviving entity: graphiti#1837
//	entities, edges, gists without a source remain:    WithoutASourceNothingRemains
//	  graphiti#1083, #1489, mnemosyne#904
//	deleting the current version brings the            memory.TestService_Delete_currentVersion
//	  superseded one back: mem0 PR #5270
//	derived data orphaned for want of provenance       DerivedRowsNameTheirSources

import (
	"fmt"
	"testing"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

func TestFailure_graphiti_1837_AForgottenFactLivesOnInASummary(t *testing.T) {
	in := setup(t)
	c := in.customer("acme")
	ids := c.add(said("alice", "s1", "alice is allergic"), said("alice", "s2", "alice likes tea"), said("bob", "b1", "bob cooks"))
	c.add(
		drawn(user("bob"), "bob cooks for alice, who is allergic", ids[0], ids[2]),
		drawn(shared(), "of the kitchen: allergies, tea", ids...),
		drawn(user("bob"), "bob cooks well", ids[2]),
		drawn(user("alice"), "tea", ids[1]),
	)
	c.forgetSession(0, "alice", "s1")
	c.wants(user("bob"), "bob cooks", "bob cooks well")
	c.wants(shared())
	c.wants(user("alice"), "alice likes tea", "tea")
}

func TestFailure_graphiti_1083_WithoutASourceNothingRemains(t *testing.T) {
	in := setup(t)
	c := in.customer("acme")
	ids := c.add(said("alice", "s1", "alice"), said("bob", "b1", "bob"))
	// Ever further away: each from the one before and from what is bob's.
	last := ids[0]
	for i := range 12 {
		scope := shared()
		if i%2 == 1 {
			scope = user("bob")
		}
		last = c.add(drawn(scope, fmt.Sprintf("distance %d", i+1), last, ids[1]))[0]
	}
	r := c.forgetUser(0, "alice")
	if r.GetFallenTotal() != 12 {
		t.Errorf("%d fell", r.GetFallenTotal())
	}
	for _, f := range r.GetFallen() {
		// What remains of each one's sources is bob's row alone: the one before fell.
		if s := f.GetSurvivingSources(); len(s) != 1 || s[0].GetMemoryId() != ids[1] {
			t.Errorf("surviving sources %v", s)
		}
	}
	c.wants(shared())
	c.wants(user("bob"), "bob")
	for _, table := range []string{"memory_sources", "memory_contributions"} {
		if n := in.count(`SELECT count(*) FROM memd.` + table); n != 0 {
			t.Errorf("%d rows are left in %s", n, table)
		}
	}
}

func TestFailure_seeds_DerivedRowsNameTheirSources(t *testing.T) {
	in := setup(t)
	c := in.customer("acme")
	for what, row := range map[string]*memdv1.Row{
		"a summary from nothing":       {Scope: shared(), Kind: memdv1.Kind_KIND_SUMMARY, Text: "x", Vector: vector()},
		"a fact from nothing":          {Scope: user("alice"), Kind: memdv1.Kind_KIND_FACT, Text: "x", Vector: vector()},
		"a shared row of nobody":       {Scope: shared(), Kind: memdv1.Kind_KIND_RAW, Text: "x", Vector: vector()},
		"a source that never was":      drawn(shared(), "x", "6b1f6f0e-0000-4000-8000-000000000000"),
		"raw words with a source":      {Scope: user("alice"), Kind: memdv1.Kind_KIND_RAW, Text: "x", Vector: vector(), Sources: drawn(shared(), "", "6b1f6f0e-0000-4000-8000-000000000000").GetSources()},
		"impersonal with contributors": {Scope: shared(), Impersonal: true, Contributor: &memdv1.Session{UserId: "alice"}, Kind: memdv1.Kind_KIND_RAW, Text: "x", Vector: vector()},
	} {
		if _, err := c.memory[0].Add(t.Context(), &memdv1.AddRequest{Rows: []*memdv1.Row{row}}); err == nil {
			t.Errorf("%s was added", what)
		}
	}
	if n := in.count(`SELECT count(*) FROM memd.memories`); n != 0 {
		t.Errorf("%d rows", n)
	}
}
