package memory_test

import (
	"errors"
	"testing"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
)

// A search whose premise does not hold finds nothing, whether its scope is in
// memory or not; without one it asks for none.
func TestService_Search_premise(t *testing.T) {
	b := setup(t)
	alice, nobody := memd.Scope{App: "chat", UserID: "alice"}, memd.Scope{App: "chat", UserID: "nobody"}
	b.addOne(memory.Row{Scope: alice, Kind: memory.KindRaw, Text: "tea", Vector: unit(0)})
	for range 2 { // cold, then in memory
		for _, q := range []memory.Query{{Scope: alice}, {Scope: nobody}, {Scope: alice, IncludeShared: true}} {
			q.Vector, q.TopK = unit(0), 1
			tenant := b.tenant
			tenant.Premise = &pg.Premise{Of: []byte("no such key"), Revision: []uint32{1, 2}}
			r, err := b.m.Search(t.Context(), tenant, q)
			if !errors.Is(err, pg.ErrPremise) || len(r.Hits) > 0 || tenant.Premise.Held() {
				t.Errorf("%v: %v, %v", q.Scope, r, err)
			}
		}
		b.search(b.m, memory.Query{Scope: alice})
	}
}
