package memory_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/compact"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/memory/sketches"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/tenants"
)

// sketcher builds sketches when a test says so, and keeps them up to date to the row.
func (b *bundle) sketcher() *memory.Sketcher {
	return &memory.Sketcher{
		Pool: b.DB.Pool(node.WorkerRole), Maintain: b.DB.Pool(compact.Role), Clock: b.clock, ManyChanged: 1,
		Logger: slog.New(slog.NewTextHandler(b.t.Output(), nil)),
		Keys:   func(ctx context.Context, t memd.TenantNo) (*shred.Keys, error) { return b.srv.Keyring.Keys(ctx, t, 0) },
	}
}

func (b *bundle) round(s *memory.Sketcher) {
	b.t.Helper()
	if err := s.Round(b.ctx()); err != nil {
		b.t.Fatalf("building sketches: %v", err)
	}
}

// indexed returns a server with no room for a scope, be it of codes.
func (b *bundle) indexed() *memory.Service {
	b.t.Helper()
	s, _ := b.ServerWith(func(c *node.ServerConfig) { c.MaxScopeRows, c.MaxCodedRows = 1, 2 })
	return s.Memory
}

func (b *bundle) tables() int64 {
	b.t.Helper()
	return b.count(`SELECT count(*) FROM pg_class WHERE relnamespace = 'memd_sketches'::regnamespace AND relkind = 'r'`)
}

func (b *bundle) inUse() int64 {
	b.t.Helper()
	return b.count(`SELECT count(*) FROM memd.sketches WHERE state = 3`)
}

// sql changes something as anybody would, triggers included.
func (b *bundle) sql(returning string) { query(b, pgx.RowTo[int], returning) }

func wide(p *tenants.Policy) { p.Dimension = 64 }

func random(r *rand.Rand, dimension int) []float32 {
	v := make([]float32, dimension)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	return v
}

// crowd adds batches of rows with an entry of metadata that one in 50 has.
func (b *bundle) crowd(r *rand.Rand, batches int) (all []known) {
	b.t.Helper()
	for range batches {
		rows := make([]memory.Row, memd.MaxBatch)
		for i := range rows {
			rows[i] = memory.Row{
				Scope: user("ada"), SessionID: fmt.Sprint("s", r.IntN(20)), Kind: memory.KindRaw, Text: "x", Vector: random(r, b.tenant.Dimension),
				SourceTime: day(2025, 1, 1+r.IntN(28)), Metadata: map[string]string{"n": fmt.Sprint(r.IntN(50))},
			}
		}
		for i, a := range b.add(rows...) {
			all = append(all, known{Row: rows[i], id: a.ID, sessions: []string{rows[i].SessionID}})
		}
	}
	return all
}

// A scope that fits no memory is found by its sketches, what was added since among
// it, and top_k is full whatever the filter.
func TestService_Search_indexed(t *testing.T) {
	b := setup(t, wide)
	m, s := b.indexed(), b.sketcher()
	r := rand.New(rand.NewPCG(1, 2))
	all := b.crowd(r, 3)
	q := memory.Query{Scope: user("ada"), Vector: all[0].Vector, TopK: 1}
	b.search(m, q) // finds that there is no room, and then asks
	b.search(m, q)
	b.round(s)
	if b.inUse() != 1 || b.tables() != 1 {
		t.Fatalf("%d scopes have sketches in use, in %d tables", b.inUse(), b.tables())
	}
	all = append(all, b.crowd(r, 1)...)
	for i, f := range []memory.Filter{
		{}, {Metadata: map[string]string{"n": "7"}}, {Metadata: map[string]string{"n": "none"}}, {SessionIDs: []string{"s3", "s4"}},
		{From: day(2025, 1, 9), To: day(2025, 1, 11)},
	} {
		found, wanted := 0, 0
		for range 4 {
			q := memory.Query{Scope: user("ada"), Vector: random(r, 64), TopK: 10, Filter: f}
			hits := b.search(m, q).Hits
			want := oracle(all, q, b.clock.Now())
			want = want[:min(10, len(want))]
			if len(hits) != len(want) {
				t.Fatalf("filter %d: %d hits, want %d", i, len(hits), len(want))
			}
			have := map[uuid.UUID]bool{}
			for _, h := range hits {
				if h.Memory.Text != "x" || have[h.Memory.ID] {
					t.Fatalf("filter %d: hit %+v", i, h)
				}
				have[h.Memory.ID] = true
			}
			for _, w := range want {
				wanted++
				if have[w.id] {
					found++
				}
			}
		}
		if found < wanted*95/100 {
			t.Errorf("filter %d: %d of %d found", i, found, wanted)
		}
	}
	// That it was the sketches that found them: without its sketch a row is not found.
	hit := func() bool {
		h := b.search(m, q).Hits
		return len(h) == 1 && h[0].Memory.ID == all[0].id
	}
	no := b.count(`SELECT sketch_no FROM memd.sketches`)
	if !hit() {
		t.Error("the row itself is not found")
	}
	b.exec(fmt.Sprintf(`DELETE FROM memd_sketches.s%d WHERE memory_id = '%s'`, no, all[0].id))
	if hit() {
		t.Error("a row without a sketch is found: the scope was scanned")
	}
	// A change brings it up to date.
	b.update(user("ada"), all[0].id, memory.Change{Expected: 1, Text: new("y")})
	if !hit() {
		t.Error("the row is not found before the sketches were brought up to date")
	}
	b.round(s)
	if n := b.count(fmt.Sprintf(`SELECT count(*) FROM memd_sketches.s%d`, no)); n != int64(len(all)) {
		t.Errorf("%d sketches, want %d", n, len(all))
	}
	if !hit() {
		t.Error("the row is not found after the sketches were brought up to date")
	}
}

// Whoever is forgotten is not found from then on, and leaves no sketch; a policy
// that forbids sketches has them dropped, and searches find the same without.
func TestService_Search_indexedForgets(t *testing.T) {
	b := setup(t, wide)
	m, s := b.indexed(), b.sketcher()
	r := rand.New(rand.NewPCG(1, 2))
	b.crowd(r, 1)
	row := memory.Row{Scope: shared(), Kind: memory.KindRaw, Text: "x", Vector: random(r, 64), Contributor: &memory.Contributor{UserID: "ada", SessionID: "s"}}
	other := row
	other.Contributor = &memory.Contributor{UserID: "bob", SessionID: "s"}
	b.add(row, row, other, other, other)
	build := func(want int64) {
		t.Helper()
		for _, scope := range []memd.Scope{user("ada"), shared()} {
			for range 2 {
				b.search(m, memory.Query{Scope: scope, Vector: row.Vector, TopK: 1})
			}
		}
		b.round(s)
		if b.inUse() != want || b.tables() != want {
			t.Fatalf("%d scopes have sketches in use, in %d tables, want %d", b.inUse(), b.tables(), want)
		}
	}
	build(2)
	b.ForgetUser(b.srv, b.tenant, "app", "ada")
	if b.tables() != 0 {
		t.Error("sketches of what somebody said are left when the person is forgotten")
	}
	if n := len(b.search(m, memory.Query{Scope: shared(), Vector: row.Vector}).Hits); n != 3 {
		t.Errorf("%d rows of the others", n)
	}
	b.round(s)
	if n := b.count(`SELECT rows FROM memd.sketches WHERE state = 3`); n != 3 || b.tables() != 1 {
		t.Errorf("%d sketches are in use, in %d tables", n, b.tables())
	}
	b.sql(`UPDATE memd.tenants SET policy = policy || '{"index": "sealed"}' RETURNING 1`)
	b.round(s)
	if b.tables() != 0 {
		t.Error("there are sketches, which the policy forbids")
	}
	b.tenant.Sealed = true
	if n := len(b.search(m, memory.Query{Scope: shared(), Vector: row.Vector}).Hits); n != 3 {
		t.Errorf("%d rows are found without sketches", n)
	}
	if n := b.count(`SELECT count(*) FROM memd.sketches`); n != 0 {
		t.Error("sketches were asked for, which the policy forbids")
	}
}

// Somebody is forgotten while sketches are being built: those are never used.
func TestSketcher_Round_forgottenMeanwhile(t *testing.T) {
	b := setup(t, wide)
	m, s := b.indexed(), b.sketcher()
	b.crowd(rand.New(rand.NewPCG(1, 2)), 1)
	for range 2 {
		b.search(m, memory.Query{Scope: user("ada"), Vector: random(rand.New(rand.NewPCG(3, 4)), 64)})
	}
	keys := s.Keys
	s.Keys = func(ctx context.Context, t memd.TenantNo) (*shred.Keys, error) {
		k, err := keys(ctx, t)
		b.sql(`INSERT INTO memd.hides SELECT tenant_no, owner_no, owner_no, 0, 1, gen_random_uuid() FROM memd.sketches RETURNING 1`)
		return k, err
	}
	b.round(s)
	if b.inUse() != 0 || b.tables() != 0 {
		t.Errorf("%d are in use, in %d tables", b.inUse(), b.tables())
	}
	// And a table that is dropped between a search's look at the directory and its look
	// at the table is no gap: the search begins again.
	err := b.DB.Pool(node.AppRole).Look(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		_, err := sketches.Nearest(t.Context(), tx, sketches.Table{No: 1}, make([]byte, 8), 10)
		return err
	})
	wantErr(t, err, sketches.ErrGone)
}

// Rows are added and deleted and their contributors forgotten while two replicas
// search, sketches are built all the time, and the scope moves between memory and
// sketches, both ways: no search misses a row or finds one that is gone.
func TestService_Search_indexedMeanwhile(t *testing.T) {
	b := setup(t, wide)
	var replicas []*memory.Service
	for _, rows := range [][2]int{{4, 16}, {1, 2}} {
		s, _ := b.ServerWith(func(c *node.ServerConfig) { c.MaxScopeRows, c.MaxCodedRows = rows[0], rows[1] })
		s.Memory.Exhaust()
		replicas = append(replicas, s.Memory)
	}
	r := rand.New(rand.NewPCG(1, 2))
	type row struct {
		id     uuid.UUID
		vector []float32
	}
	var mu sync.Mutex
	gone, there := map[uuid.UUID]row{}, map[uuid.UUID]row{}
	add := func(who string, n int) (out []row) {
		rows := make([]memory.Row, n)
		for i := range rows {
			rows[i] = memory.Row{Scope: shared(), Kind: memory.KindRaw, Text: who, Vector: random(r, 64), Contributor: &memory.Contributor{UserID: who, SessionID: "s"}}
		}
		for i, a := range b.add(rows...) {
			out = append(out, row{a.ID, rows[i].Vector})
		}
		return out
	}
	move := func(from, to map[uuid.UUID]row, rows ...row) {
		mu.Lock()
		defer mu.Unlock()
		for _, r := range rows {
			delete(from, r.id)
			if to != nil {
				to[r.id] = r
			}
		}
	}
	done := make(chan struct{})
	var others sync.WaitGroup
	s := b.sketcher()
	others.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				if err := s.Round(t.Context()); err != nil {
					t.Errorf("building sketches: %v", err)
					return
				}
			}
		}
	})
	look := func(n int, m *memory.Service, of row, want bool) bool {
		got, err := m.Search(t.Context(), b.tenant, memory.Query{Scope: shared(), Vector: of.vector, TopK: 3})
		if err != nil {
			t.Errorf("replica %d: %v", n, err)
			return false
		}
		found := false
		for _, h := range got.Hits {
			found = found || h.Memory.ID == of.id
		}
		if found != want {
			t.Errorf("replica %d: found is %t, want %t", n, found, want)
		}
		return found == want
	}
	for n, m := range replicas {
		others.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				mu.Lock()
				var some []row
				for _, r := range gone {
					some = append(some, r)
					break
				}
				missed := len(some)
				var before row
				for _, before = range there {
					break
				}
				mu.Unlock()
				if missed == 1 && !look(n, m, some[0], false) {
					return
				}
				if before.vector == nil {
					continue
				}
				got, err := m.Search(t.Context(), b.tenant, memory.Query{Scope: shared(), Vector: before.vector, TopK: 3})
				mu.Lock()
				_, still := there[before.id]
				mu.Unlock()
				if err != nil || still && (len(got.Hits) == 0 || got.Hits[0].Memory.ID != before.id) {
					t.Errorf("replica %d: %v, or a row is missed", n, err)
					return
				}
			}
		})
	}
	for i := range 2 {
		who := fmt.Sprint("leaves", i)
		stays := add("stays", 30)
		move(nil, there, stays...)
		leaves := add(who, 9)
		b.waitFor(`SELECT count(*) FROM memd.sketches WHERE state = 3 AND rows >= 30`, 1)
		for _, r := range add("stays", 3) { // what a replica finds the moment that it was added
			move(nil, there, r)
			for n, m := range replicas {
				look(n, m, r, true)
			}
		}
		b.ForgetUser(b.srv, b.tenant, "app", who)
		move(nil, gone, leaves...)
		for _, r := range stays[:28] {
			move(there, nil, r)
			b.delete(shared(), r.id, false)
			move(nil, gone, r)
		}
	}
	close(done)
	others.Wait()
	b.round(s)
	for n, m := range replicas {
		for range 2 {
			if got := len(b.search(m, memory.Query{Scope: shared(), Vector: random(r, 64)}).Hits); got != len(there) {
				t.Errorf("replica %d has %d rows, want %d", n, got, len(there))
			}
		}
	}
	if !replicas[0].Coded(b.tenant.No, provenance.RefOf(b.keys(), shared())) {
		t.Error("the scope has not come back into memory")
	}
}

// A worker that compacts builds sketches by itself, and a compaction finds none left of
// what was forgotten.
func TestSketcher_Run(t *testing.T) {
	c := &clock{}
	b := &bundle{Stack: memdtest.Start(t, memdtest.WithClock(c), memdtest.WithCompaction()), t: t, clock: c}
	b.srv, _ = b.Server()
	b.m = b.srv.Memory
	p := memdtest.Policy()
	wide(&p)
	b.tenant = b.Tenant("acme", p)
	m := b.indexed()
	b.crowd(rand.New(rand.NewPCG(1, 2)), 1)
	q := memory.Query{Scope: user("ada"), Vector: random(rand.New(rand.NewPCG(3, 4)), 64), TopK: 3}
	want := b.search(b.m, q)
	b.search(m, q)
	b.waitFor(`SELECT count(*) FROM memd.sketches WHERE state = 3`, 1)
	if diff := cmp.Diff(want, b.search(m, q)); diff != "" {
		t.Error(diff)
	}
	b.ForgetUser(b.srv, b.tenant, "app", "ada")
	if b.tables() != 0 {
		t.Error("sketches are left of somebody who was forgotten")
	}
	b.waitFor(`SELECT count(*) FROM memd.sketches`, 0)
}
