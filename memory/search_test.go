package memory_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/tombstones"
)

func TestService_Search_refuses(t *testing.T) {
	b := setup(t)
	for name, q := range map[string]memory.Query{
		"nothing":                 {Scope: user("ada"), TopK: 1},
		"another dimension":       {Scope: user("ada"), Vector: []float32{1, 2, 3}, TopK: 1},
		"a text without embedder": {Scope: user("ada"), Text: "tea", TopK: 1},
		"a zero vector":           {Scope: user("ada"), Vector: make([]float32, 4), TopK: 1},
		"no hits wanted":          {Scope: user("ada"), Vector: unit(0)},
		"too many hits":           {Scope: user("ada"), Vector: unit(0), TopK: memd.MaxTopK + 1},
		"no app":                  {Scope: memd.Scope{UserID: "ada"}, Vector: unit(0), TopK: 1},
		"sessions of nobody":      {Scope: shared(), Vector: unit(0), TopK: 1, Filter: memory.Filter{SessionIDs: []string{"s"}}},
		"time that ends first": {Scope: user("ada"), Vector: unit(0), TopK: 1,
			Filter: memory.Filter{From: day(2025, 2, 1), To: day(2025, 1, 1)}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := b.m.Search(t.Context(), b.tenant, q)
			wantErr(t, err, memd.ErrInvalid)
		})
	}
}

// Search never looks into another user's scope, app or tenant (adk-python#1019,
// adk-go#1175).
func TestService_Search_onlyItsOwner(t *testing.T) {
	b := setup(t)
	other := b.Tenant("globex", memdtest.Policy())
	scopes := []memd.Scope{
		user("ada"), user("bob"), user("Ada"), user("ada "), shared(), {App: "b", UserID: "ada"}, {App: "b"}, {App: "appada"}, {App: "ap", UserID: "pada"},
	}
	want := map[memory.Tenant]map[memd.Scope]uuid.UUID{b.tenant: {}, other: {}}
	for tenant, rows := range want {
		for _, s := range scopes {
			r := memory.Row{Scope: s, Kind: memory.KindRaw, Text: "x", Vector: unit(0), Impersonal: s.Shared()}
			added, err := b.m.Add(t.Context(), tenant, []memory.Row{r})
			if err != nil {
				t.Fatal(err)
			}
			rows[s] = added[0].ID
		}
	}
	for tenant, rows := range want {
		for _, s := range scopes {
			got, err := b.m.Search(t.Context(), tenant, memory.Query{Scope: s, Vector: unit(0), TopK: memd.MaxTopK})
			if err != nil || len(got.Hits) != 1 || got.Hits[0].Memory.ID != rows[s] || got.Hits[0].Memory.Scope != s {
				t.Errorf("%v: %+v, %v", s, got, err)
			}
			for _, o := range scopes {
				_, err := b.m.Get(t.Context(), tenant, s, rows[o], false)
				if o != s {
					wantErr(t, err, memd.ErrNotFound)
				} else if err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// Expired rows are not returned from the moment on, swept or not
// (langgraph#8902), by a warm reader or a cold one.
func TestService_Search_neverExpired(t *testing.T) {
	b := setup(t)
	streaming, _ := b.ServerWith(func(c *node.ServerConfig) { c.MaxScopeRows = 1 })
	r := raw(user("ada"), "s1", "brief")
	r.ExpiresAt = b.clock.Now().Add(time.Minute)
	a := b.add(r, raw(user("ada"), "s1", "lasting"))
	servers := []*memory.Service{b.m, streaming.Memory}
	for _, m := range servers {
		if n := len(b.search(m, memory.Query{Scope: user("ada")}).Hits); n != 2 {
			t.Fatalf("%d hits", n)
		}
	}
	b.clock.advance(time.Minute)
	cold, _ := b.Server()
	for _, m := range append(servers, cold.Memory) {
		if got := ids(b.search(m, memory.Query{Scope: user("ada")}).Hits); len(got) != 1 || got[0] != a[1].ID {
			t.Errorf("hits = %v", got)
		}
		if _, err := m.Get(t.Context(), b.tenant, user("ada"), a[0].ID, false); err == nil {
			t.Error("Get returned an expired row")
		}
		_, err := m.Update(t.Context(), b.tenant, user("ada"), a[0].ID, memory.Change{Expected: 1, ExpiresAt: new(time.Time{})})
		wantErr(t, err, memd.ErrNotFound)
	}
	if got := b.all(user("ada")); len(got) != 1 {
		t.Errorf("all = %+v", got)
	}
}

// raise raises a user's fence as an erasure does, and does nothing more.
func (b *bundle) raise(u string) {
	b.t.Helper()
	n := b.number(user(u), "").Subject
	err := tombstones.Raise(b.ctx(), b.DB.Pool(node.WorkerRole), b.tenant.No, provenance.RefOf(b.keys(), user(u)), uuid.New(), b.clock.Now(),
		func(context.Context, pg.DB) error { return nil },
		func(ctx context.Context, db pg.DB) ([]tombstones.Hide, error) {
			held, err := memory.Scopes(ctx, db, b.tenant.No, memory.Target{{Subject: n}})
			var out []tombstones.Hide
			for _, h := range held {
				out = append(out, tombstones.Hide{Owner: h.Owner, Contributor: h.Contribution.Subject, Session: h.Contribution.Session})
			}
			return out, err
		})
	if err != nil {
		b.t.Fatal(err)
	}
}

// Behind a fence the user's scope is empty and flagged, and rows of others to
// which the user contributed are hidden, from the first request on (invariant 4).
func TestService_fenced(t *testing.T) {
	b := setup(t)
	second, _ := b.Server()
	streaming, _ := b.ServerWith(func(c *node.ServerConfig) { c.MaxScopeRows = 1 })
	servers := []*memory.Service{b.m, second.Memory, streaming.Memory}
	src := b.add(raw(user("ada"), "s1", "ada's"), raw(user("ada"), "", "ada's own"), raw(user("bob"), "s1", "bob's"), raw(user("bob"), "s1", "2"))
	hidden := []memory.Added{
		b.addOne(summary(user("bob"), of(src[2]), of(src[0]))),
		b.addOne(summary(shared(), of(src[2]), of(src[1]))),
		b.addOne(memory.Row{Scope: shared(), Kind: memory.KindFact, Text: "x", Vector: unit(0), Contributor: &memory.Contributor{UserID: "ada", SessionID: "s1"}}),
	}
	stays := b.addOne(memory.Row{Scope: shared(), Kind: memory.KindFact, Text: "x", Vector: unit(0), Impersonal: true})
	stays2 := b.addOne(memory.Row{Scope: shared(), Kind: memory.KindFact, Text: "x", Vector: unit(0), Contributor: &memory.Contributor{UserID: "bob", SessionID: "s1"}})
	for _, m := range servers {
		for scope, n := range map[memd.Scope]int{user("ada"): 2, user("bob"): 3, shared(): 4} {
			if got := len(b.search(m, memory.Query{Scope: scope}).Hits); got != n {
				t.Fatalf("before: %d hits, want %d", got, n)
			}
		}
	}
	b.raise("ada")
	for _, m := range servers {
		for name, q := range map[string]memory.Query{
			"plain": {}, "with the shared scope": {IncludeShared: true},
			"by session": {Filter: memory.Filter{SessionIDs: []string{"s1"}}}, "by unknown session": {Filter: memory.Filter{SessionIDs: []string{"?"}}},
		} {
			q.Scope = user("ada")
			if r := b.search(m, q); !r.Fenced || len(r.Hits) != 0 {
				t.Errorf("%s: %+v", name, r)
			}
		}
		for _, f := range []memory.Filter{{}, {SessionIDs: []string{"?"}}} {
			p, err := m.List(t.Context(), b.tenant, user("ada"), f, 10, "", false)
			if err != nil || !p.Fenced || len(p.Memories) != 0 {
				t.Errorf("List: %+v, %v", p, err)
			}
		}
		_, err := m.Get(t.Context(), b.tenant, user("ada"), src[0].ID, false)
		wantErr(t, err, memd.ErrNotFound)
		for scope, want := range map[memd.Scope][]uuid.UUID{user("bob"): {src[2].ID, src[3].ID}, shared(): {stays.ID, stays2.ID}} {
			r := b.search(m, memory.Query{Scope: scope})
			if len(r.Hits) != 2 || r.Fenced {
				t.Errorf("%v: %+v", scope, r)
			}
			for _, id := range want {
				if _, err := m.Get(t.Context(), b.tenant, scope, id, false); err != nil {
					t.Errorf("Get: %v", err)
				}
			}
			for _, h := range hidden {
				_, err := m.Get(t.Context(), b.tenant, scope, h.ID, false)
				wantErr(t, err, memd.ErrNotFound)
			}
		}
		if n := len(b.all(shared())) + len(b.all(user("bob"))); n != 4 {
			t.Errorf("%d rows are listed", n)
		}
		_, err = m.Add(t.Context(), b.tenant, []memory.Row{raw(user("ada"), "s1", "late")})
		wantErr(t, err, memd.ErrFenced)
		_, err = m.Update(t.Context(), b.tenant, user("ada"), src[0].ID, memory.Change{Expected: 1, Text: new("x")})
		wantErr(t, err, memd.ErrFenced)
		_, err = m.Delete(t.Context(), b.tenant, user("ada"), src[0].ID, false)
		wantErr(t, err, memd.ErrFenced)
		_, err = m.Add(t.Context(), b.tenant, []memory.Row{summary(user("bob"), of(src[0]))})
		wantErr(t, err, memd.ErrSourceGone)
		_, err = m.Update(t.Context(), b.tenant, user("bob"), hidden[0].ID, memory.Change{Expected: 1, Text: new("x")})
		wantErr(t, err, memd.ErrNotFound)
	}
}

// Who comes back starts empty, under a new number, on replicas that still
// remember the old one too.
func TestService_Search_returningUser(t *testing.T) {
	b := setup(t)
	second, _ := b.Server()
	servers := []*memory.Service{b.m, second.Memory}
	b.add(raw(user("ada"), "s1", "old"))
	q := memory.Query{Scope: user("ada"), Filter: memory.Filter{SessionIDs: []string{"s1", "s2"}}}
	for _, m := range servers {
		if n := len(b.search(m, q).Hits); n != 1 {
			t.Fatalf("%d hits", n)
		}
	}
	b.ForgetUser(b.srv, b.tenant, "app", "ada")
	for _, m := range servers {
		if r := b.search(m, q); len(r.Hits) != 0 || r.Fenced {
			t.Errorf("after forgetting: %+v", r)
		}
	}
	_, err := b.m.Add(t.Context(), b.tenant, []memory.Row{{
		Scope: user("ada"), SessionID: "s1", Kind: memory.KindRaw, Text: "late", Vector: unit(0), SourceTime: b.clock.Now(),
	}})
	wantErr(t, err, memd.ErrSessionForgotten)
	r := raw(user("ada"), "s2", "new")
	r.SourceTime = b.clock.Now()
	a := b.addOne(r)
	for _, m := range servers {
		for _, q := range []memory.Query{q, {Scope: user("ada")}} {
			if got := ids(b.search(m, q).Hits); len(got) != 1 || got[0] != a.ID {
				t.Errorf("after coming back: %v", got)
			}
		}
	}
}
