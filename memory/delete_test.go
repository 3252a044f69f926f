package memory_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/memory"
)

func (b *bundle) delete(scope memd.Scope, id uuid.UUID, derived bool) memory.Deleted {
	b.t.Helper()
	d, err := b.m.Delete(b.ctx(), b.tenant, scope, id, derived)
	if err != nil {
		b.t.Fatalf("Delete: %v", err)
	}
	return d
}

// Deleting what is gone succeeds; what is another owner's or tenant's stays,
// and the caller cannot tell it from what never was (mem0#6080, #4236,
// Memori#136, graphiti#1705).
func TestService_Delete(t *testing.T) {
	b := setup(t)
	second, _ := b.Server()
	other := b.Tenant("globex", memdtest.Policy())
	rows := b.add(raw(user("ada"), "s1", "1"), raw(user("ada"), "s1", "2"),
		memory.Row{Scope: shared(), Kind: memory.KindFact, Text: "x", Vector: unit(0), Impersonal: true})
	foreign, err := b.m.Add(t.Context(), other, []memory.Row{raw(user("ada"), "s1", "theirs")})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		scope memd.Scope
		id    uuid.UUID
	}{
		"never there": {user("ada"), uuid.New()}, "another user": {user("bob"), rows[0].ID}, "another app": {memd.Scope{App: "b", UserID: "ada"}, rows[0].ID},
		"the shared scope": {shared(), rows[0].ID}, "a user for the shared": {user("ada"), rows[2].ID}, "another tenant's": {user("ada"), foreign[0].ID},
	} {
		t.Run(name, func(t *testing.T) {
			for _, derived := range []bool{false, true} {
				if d := b.delete(tc.scope, tc.id, derived); d != (memory.Deleted{}) {
					t.Errorf("deleted = %+v", d)
				}
			}
		})
	}
	if n := b.count(`SELECT count(*) FROM memd.memories`); n != 4 {
		t.Fatalf("%d rows, want 4", n)
	}
	b.search(second.Memory, memory.Query{Scope: user("ada")})
	for range 2 {
		b.delete(user("ada"), rows[0].ID, false)
		for _, m := range []*memory.Service{b.m, second.Memory} {
			if got := ids(b.search(m, memory.Query{Scope: user("ada")}).Hits); len(got) != 1 || got[0] != rows[1].ID {
				t.Errorf("hits = %v", got)
			}
		}
	}
	if err := (b.search(b.m, memory.Query{Scope: shared()})); len(err.Hits) != 1 {
		t.Errorf("the shared row went along (letta#1917)")
	}
	_, err = b.m.Delete(t.Context(), b.tenant, user("ada"), uuid.Nil, true)
	wantErr(t, err, memd.ErrInvalid)
}

// A deleted fact does not live on in what was derived from it (graphiti#1837,
// #1083), in whatever scope and however indirectly, also when a row in between
// had gone before.
func TestService_Delete_derived(t *testing.T) {
	for _, tc := range []struct {
		name   string
		gone   []int // rows deleted alone before
		expire bool  // whether those expire instead
	}{
		{"all there", nil, false},
		{"one in between deleted", []int{2}, false},
		{"two in between deleted", []int{2, 3}, false},
		{"one in between expired and swept", []int{2}, true},
		{"the row itself expired and not swept", []int{0}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := setup(t)
			chain := b.add(raw(user("ada"), "s1", "fact"), raw(user("ada"), "s1", "other"))
			scopes := []memd.Scope{user("ada"), user("ada"), user("bob"), shared(), user("cy")}
			sources := [][]int{2: {0, 1}, 3: {2}, 4: {3, 1}}
			for i := 2; i < len(scopes); i++ {
				var from []memory.Source
				for _, s := range sources[i] {
					from = append(from, of(chain[s]))
				}
				chain = append(chain, b.addOne(summary(scopes[i], from...)))
			}
			unrelated := b.addOne(summary(user("dan"), of(chain[1])))
			for _, g := range tc.gone {
				if !tc.expire {
					b.delete(scopes[g], chain[g].ID, false)
					continue
				}
				b.update(scopes[g], chain[g].ID, memory.Change{Expected: 1, ExpiresAt: new(b.clock.Now().Add(10 * time.Millisecond))})
				b.waitFor(`SELECT count(*) FROM memd.memories WHERE expires_at <= now()`, 1)
				if g != 0 {
					b.sweep()
				}
			}
			remain := int64(3)
			for _, g := range tc.gone {
				if g != 0 {
					remain--
				}
			}
			if len(tc.gone) == 0 {
				if d := b.delete(user("ada"), chain[0].ID, false); d.DerivedRemaining != 3 {
					t.Errorf("derived remaining = %+v", d)
				}
			}
			got := b.delete(user("ada"), chain[0].ID, true)
			if diff := cmp.Diff(memory.Deleted{DerivedDeleted: remain}, got); diff != "" {
				t.Errorf("deleted (-want +got):\n%s", diff)
			}
			left := b.count(`SELECT count(*) FROM memd.memories WHERE memory_id = ANY ($1)`, []uuid.UUID{chain[1].ID, unrelated.ID})
			if all := b.count(`SELECT count(*) FROM memd.memories`); left != 2 || all != 2 {
				t.Errorf("%d of 2 others are left, %d in all", left, all)
			}
		})
	}
}

// Deleting the current version brings no older one back (mem0 PR #5270), and
// no late write brings the row back.
func TestService_Delete_currentVersion(t *testing.T) {
	b := setup(t)
	a := b.addOne(event(user("ada"), "s1", "e", "one"))
	b.addOne(event(user("ada"), "s1", "e", "two"))
	b.update(user("ada"), a.ID, memory.Change{Expected: 2, Text: new("three")})
	b.delete(user("ada"), a.ID, false)
	if got := b.all(user("ada")); len(got) != 0 {
		t.Errorf("all = %+v", got)
	}
	for _, text := range []string{"one", "two", "three", "four"} {
		if got := b.addOne(event(user("ada"), "s1", "e", text)); got.Status != memory.StatusDeleted {
			t.Errorf("re-added %q: %+v", text, got)
		}
	}
	_, err := b.m.Update(t.Context(), b.tenant, user("ada"), a.ID, memory.Change{Expected: 3, Text: new("x")})
	wantErr(t, err, memd.ErrNotFound)
	if hits := b.search(b.m, memory.Query{Scope: user("ada")}).Hits; len(hits) != 0 {
		t.Errorf("hits = %+v", hits)
	}
}
