package memory_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/tenants"
)

// coded returns a server with hardly any room for vectors, which answers from codes.
func (b *bundle) coded() *memory.Service {
	b.t.Helper()
	s, _ := b.ServerWith(func(c *node.ServerConfig) { c.MaxScopeRows = 1 })
	s.Memory.Exhaust()
	return s.Memory
}

// A scope goes from its vectors to codes and to the database, and back, as it
// grows and shrinks, and gives the same answers throughout.
func TestService_Search_acrossTiers(t *testing.T) {
	b := setup(t)
	few, _ := b.ServerWith(func(c *node.ServerConfig) { c.MaxScopeRows, c.MaxCodedRows = 8, 16 })
	few.Memory.Exhaust()
	ref := provenance.RefOf(b.keys(), user("ada"))
	var rows []memory.Added
	to := func(n int, tier string) {
		t.Helper()
		for len(rows) < n {
			r := raw(user("ada"), "s1", fmt.Sprint(len(rows)))
			r.Vector = []float32{1, float32(len(rows)), 1, 2}
			rows = append(rows, b.addOne(r))
		}
		for len(rows) > n {
			b.delete(user("ada"), rows[len(rows)-1].ID, false)
			rows = rows[:len(rows)-1]
		}
		for range 2 { // the first may find out that it has to change over
			q := memory.Query{Scope: user("ada"), Vector: []float32{1, 3, 1, 1}, IncludeVectors: true}
			want := b.search(b.m, q)
			if diff := cmp.Diff(want, b.search(few.Memory, q)); diff != "" || len(want.Hits) != len(rows) {
				t.Fatalf("%d rows, %d hits; the two differ:\n%s", len(rows), len(want.Hits), diff)
			}
		}
		got := "resident"
		switch {
		case few.Memory.Streamed(b.tenant.No, ref):
			got = "streamed"
		case few.Memory.Coded(b.tenant.No, ref):
			got = "coded"
		}
		if got != tier {
			t.Errorf("%d rows are %s, not %s", len(rows), got, tier)
		}
	}
	for range 2 {
		to(8, "resident")
		to(9, "coded")
		b.update(user("ada"), rows[0].ID, memory.Change{Expected: b.get(user("ada"), rows[0].ID).Version, Vector: &[]float32{0, 0, 1, 0}})
		to(16, "coded")
		to(17, "streamed")
		to(12, "streamed")
		to(11, "coded")
		to(6, "coded")
		to(5, "resident")
	}
}

// With more rows than are looked at, the nearest are found and top_k is full,
// whatever the filter.
func TestService_Search_codedNarrows(t *testing.T) {
	const dimension = 128
	b := setup(t, func(p *tenants.Policy) { p.Dimension = dimension })
	s, _ := b.ServerWith(func(c *node.ServerConfig) { c.MaxScopeRows = 100 })
	r := rand.New(rand.NewPCG(1, 2))
	// All but those with one entry of metadata are far nearer to every query.
	vector := func(n string) []float32 {
		v := make([]float32, dimension)
		for i := range v {
			v[i] = float32(r.NormFloat64())
		}
		if n != "7" {
			v[0] += 20
		}
		return v
	}
	var all []known
	for range 12 {
		rows := make([]memory.Row, memd.MaxBatch)
		for i := range rows {
			n := fmt.Sprint(r.IntN(50))
			rows[i] = memory.Row{
				Scope: user("ada"), SessionID: fmt.Sprint("s", r.IntN(20)), Kind: memory.KindRaw, Text: "x", Vector: vector(n),
				SourceTime: day(2025, 1, 1+r.IntN(28)), Metadata: map[string]string{"n": n},
			}
		}
		for i, a := range b.add(rows...) {
			all = append(all, known{Row: rows[i], id: a.ID, sessions: []string{rows[i].SessionID}})
		}
	}
	for i, f := range []memory.Filter{
		{}, {Metadata: map[string]string{"n": "7"}}, {Metadata: map[string]string{"n": "none"}}, {SessionIDs: []string{"s3", "s4"}},
		{From: day(2025, 1, 9), To: day(2025, 1, 11)},
	} {
		found, wanted := 0, 0
		for range 10 {
			q := memory.Query{Scope: user("ada"), Vector: vector(""), TopK: 10, Filter: f}
			hits := b.search(s.Memory, q).Hits
			want := oracle(all, q, b.clock.Now())
			want = want[:min(10, len(want))]
			if len(hits) != len(want) {
				t.Fatalf("filter %d: %d hits, want %d", i, len(hits), len(want))
			}
			for _, w := range want {
				wanted++
				for _, h := range hits {
					if h.Memory.ID == w.id {
						found++
					}
				}
			}
		}
		if found < wanted*97/100 {
			t.Errorf("filter %d: %d of %d found", i, found, wanted)
		}
	}
	if !s.Memory.Coded(b.tenant.No, provenance.RefOf(b.keys(), user("ada"))) {
		t.Error("the scope is not coded")
	}
}

// A code belongs to its row: another's does not open, and a row that has none is
// coded from its vector.
func TestService_codes(t *testing.T) {
	b := setup(t)
	one, two := raw(user("ada"), "s1", "one"), raw(user("ada"), "s1", "two")
	two.Vector = unit(1)
	a := b.add(one, two)
	m := b.coded()
	b.search(m, memory.Query{Scope: user("ada")}) // finds that there is no room for vectors
	want := b.search(b.m, memory.Query{Scope: user("ada")})
	if diff := cmp.Diff(want, b.search(m, memory.Query{Scope: user("ada")})); diff != "" {
		t.Error(diff)
	}
	ref := provenance.RefOf(b.keys(), user("ada"))
	b.exec(`UPDATE memd.memories SET sealed_code = NULL WHERE memory_id = $1`, a[0].ID)
	m.Evict(b.tenant.No, ref)
	if diff := cmp.Diff(want, b.search(m, memory.Query{Scope: user("ada")})); diff != "" {
		t.Error(diff)
	}
	b.exec(`UPDATE memd.memories m SET sealed_code = o.sealed_code FROM memd.memories o WHERE m.memory_id = $1 AND o.memory_id = $2`, a[0].ID, a[1].ID)
	m.Evict(b.tenant.No, ref)
	_, err := m.Search(t.Context(), b.tenant, memory.Query{Scope: user("ada"), Vector: unit(0), TopK: 1})
	wantErr(t, err, memd.ErrCorrupt)
}

// A search whose snapshot is older than what memory has begins again.
func TestService_Search_codedOvertaken(t *testing.T) {
	b := setup(t)
	m := b.coded()
	ref := provenance.RefOf(b.keys(), user("ada"))
	b.add(raw(user("ada"), "s1", "1"), raw(user("ada"), "s1", "2"))
	search := func() int { return len(b.search(m, memory.Query{Scope: user("ada")}).Hits) }
	if n := search(); n != 2 || !m.Coded(b.tenant.No, ref) {
		t.Fatalf("%d hits", n)
	}
	late := func(between func()) error { return m.RankLate(t.Context(), b.keys(), b.tenant, ref, unit(0), between) }
	if err := late(func() {}); err != nil {
		t.Error(err)
	}
	if err := late(func() { b.addOne(raw(user("bob"), "s1", "3")); search() }); err != nil {
		t.Errorf("nothing changed in the scope: %v", err)
	}
	wantErr(t, late(func() { b.addOne(raw(user("ada"), "s1", "3")); search() }), memory.ErrOvertaken)
}

// While one search loads a scope, others wait for it, or read it themselves.
func TestService_Search_codedLoads(t *testing.T) {
	b := setup(t)
	b.add(raw(user("ada"), "s1", "1"), raw(user("ada"), "s1", "2"))
	ref := provenance.RefOf(b.keys(), user("ada"))
	for name, readers := range map[string]int64{"patient": 1, "impatient": 4} {
		t.Run(name, func(t *testing.T) {
			m := b.coded()
			if name == "impatient" {
				m.Impatient()
			}
			b.search(m, memory.Query{Scope: user("ada")})
			m.Forget(b.tenant.No, ref)
			conn, err := pgx.Connect(t.Context(), b.DB.URL(""))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close(context.Background()) }()
			tx, err := conn.Begin(t.Context())
			if err == nil {
				_, err = tx.Exec(t.Context(), `LOCK TABLE memd.memories IN ACCESS EXCLUSIVE MODE`)
			}
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					if n := len(b.search(m, memory.Query{Scope: user("ada")}).Hits); n != 2 {
						t.Errorf("%d hits", n)
					}
				})
			}
			b.waitFor(`SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation WHERE c.relname = 'memories' AND NOT l.granted`, readers)
			if n, _ := m.Loading(); n != 1 {
				t.Errorf("%d scopes are loading", n)
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			wg.Wait()
			if n, rows := m.Loading(); n != 0 || rows != 0 || !m.Coded(b.tenant.No, ref) {
				t.Errorf("%d scopes and %d rows are loading", n, rows)
			}
		})
	}
}

// Rows are added to an app's scope and their contributors are forgotten while two
// replicas search it, and it moves from tier to tier: whoever is forgotten is not
// found from then on, and everybody else always is.
func TestService_Search_tiersWhileForgetting(t *testing.T) {
	b := setup(t)
	var replicas []*memory.Service
	for _, rows := range [][2]int{{10, 25}, {6, 14}} {
		s, _ := b.ServerWith(func(c *node.ServerConfig) { c.MaxScopeRows, c.MaxCodedRows = rows[0], rows[1] })
		s.Memory.Exhaust()
		replicas = append(replicas, s.Memory)
	}
	var mu sync.Mutex
	gone, there := map[uuid.UUID]bool{}, map[uuid.UUID]bool{}
	of := func(who string, n int) []memory.Added {
		rows := make([]memory.Row, n)
		for i := range rows {
			rows[i] = memory.Row{Scope: shared(), Kind: memory.KindRaw, Text: who, Vector: unit(i % 4), Contributor: &memory.Contributor{UserID: who, SessionID: "s"}}
		}
		added := b.add(rows...)
		if who == "stays" {
			mu.Lock()
			defer mu.Unlock()
			for _, a := range added {
				there[a.ID] = true
			}
		}
		return added
	}
	done := make(chan struct{})
	var readers sync.WaitGroup
	for n, m := range replicas {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				mu.Lock()
				wasGone, wasThere := copyOf(gone), copyOf(there)
				mu.Unlock()
				r, err := m.Search(t.Context(), b.tenant, memory.Query{Scope: shared(), Vector: unit(0), TopK: memd.MaxTopK})
				if err != nil {
					t.Errorf("replica %d: %v", n, err)
					return
				}
				for _, id := range ids(r.Hits) {
					if wasGone[id] {
						t.Errorf("replica %d found a row of somebody who was forgotten", n)
					}
					delete(wasThere, id)
				}
				if len(wasThere) > 0 {
					t.Errorf("replica %d lacks %d rows", n, len(wasThere))
				}
			}
		})
	}
	for i := range 3 {
		who := fmt.Sprint("leaves", i)
		of("stays", 2)
		added := of(who, 9)
		of("stays", 1)
		b.ForgetUser(b.srv, b.tenant, "app", who)
		mu.Lock()
		for _, a := range added {
			gone[a.ID] = true
		}
		mu.Unlock()
	}
	close(done)
	readers.Wait()
	for n, m := range replicas {
		if got := len(b.search(m, memory.Query{Scope: shared()}).Hits); got != len(there) {
			t.Errorf("replica %d has %d rows, want %d", n, got, len(there))
		}
	}
}

func copyOf(m map[uuid.UUID]bool) map[uuid.UUID]bool {
	out := make(map[uuid.UUID]bool, len(m))
	for k := range m {
		out[k] = true
	}
	return out
}
