package memory_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/memory"
)

func user(id string) memd.Scope { return memd.Scope{App: "app", UserID: id} }

func TestService_AddSearchForget(t *testing.T) {
	s := memdtest.Start(t)
	a, _ := s.Server()
	b, _ := s.Server()
	tenant := s.Tenant("acme", memdtest.Policy())
	ctx := t.Context()

	added, err := a.Memory.Add(ctx, tenant, []memory.Row{
		{Scope: user("ada"), SessionID: "s1", Kind: memory.KindRaw, Text: "tea", Vector: []float32{3, 0, 0, 0}, Metadata: map[string]string{"k": "v"}},
		{Scope: user("bob"), SessionID: "s1", Kind: memory.KindRaw, Text: "coffee", Vector: []float32{0, 2, 0, 0}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, srv := range []*struct{ m *memory.Service }{{a.Memory}, {b.Memory}} {
		got, err := srv.m.Search(ctx, tenant, memory.Query{Scope: user("ada"), Vector: []float32{1, 0, 0, 0}, TopK: 5, IncludeVectors: true})
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Hits) != 1 || got.Hits[0].Memory.ID != added[0].ID || got.Hits[0].Score < 0.999 {
			t.Fatalf("hits = %+v", got.Hits)
		}
		m := got.Hits[0].Memory
		if diff := cmp.Diff([]float32{3, 0, 0, 0}, m.Vector); diff != "" || m.Text != "tea" || m.Metadata["k"] != "v" || m.SessionIDs[0] != "s1" {
			t.Errorf("memory = %+v\n%s", m, diff)
		}
	}
	r := s.ForgetUser(a, tenant, "app", "ada")
	t.Log(r.Stores, r.Key.Version)
	for _, m := range []*memory.Service{a.Memory, b.Memory} {
		got, err := m.Search(ctx, tenant, memory.Query{Scope: user("ada"), Vector: []float32{1, 0, 0, 0}, TopK: 5})
		if err != nil || len(got.Hits) != 0 {
			t.Fatalf("after forgetting: %+v, %v", got, err)
		}
		got, err = m.Search(ctx, tenant, memory.Query{Scope: user("bob"), Vector: []float32{0, 1, 0, 0}, TopK: 5})
		if err != nil || len(got.Hits) != 1 {
			t.Fatalf("the neighbour: %+v, %v", got, err)
		}
	}
}
