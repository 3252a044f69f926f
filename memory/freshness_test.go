package memory_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/provenance"
)

// tracked is what the test knows of one row: what was acknowledged, and what
// was asked for but not acknowledged yet.
type tracked struct {
	acked     int64 // the version that was acknowledged last
	begun     int64 // the highest version that may exist
	deleting  bool
	deleted   bool
	expiresAt time.Time
}

// ledger is what the test knows of all rows of its scopes.
type ledger struct {
	mu   sync.Mutex
	rows map[memd.Scope]map[uuid.UUID]*tracked
}

func (l *ledger) do(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// pick returns a row of a scope that nobody deletes.
func (l *ledger) pick(s memd.Scope) (id uuid.UUID, t *tracked) {
	l.do(func() {
		for i, r := range l.rows[s] {
			if !r.deleting {
				id, t = i, r
				return
			}
		}
	})
	return id, t
}

// snapshot copies what is known of a scope.
func (l *ledger) snapshot(s memd.Scope) map[uuid.UUID]tracked {
	out := map[uuid.UUID]tracked{}
	l.do(func() {
		for id, t := range l.rows[s] {
			out[id] = *t
		}
	})
	return out
}

// Whatever was acknowledged before a search began is in its answer, and
// whatever was deleted or had expired before is not: on every replica, in
// memory or not, while rows are added, updated, deleted and expire.
func TestService_freshness(t *testing.T) {
	b := setup(t)
	servers := []*node.Server{b.srv}
	for _, adjust := range []func(*node.ServerConfig){
		func(*node.ServerConfig) {},
		func(c *node.ServerConfig) { c.MaxScopeRows = 12 },                     // across the limit all the time
		func(c *node.ServerConfig) { c.MaxScopeRows, c.MaxCodedRows = 5, 20 },  // across two
		func(c *node.ServerConfig) { c.MaxScopeRows, c.MaxCodedRows = 12, 12 }, // from memory to none
		func(c *node.ServerConfig) { c.MaxResidentBytes = 30_000 },             // scopes push each other out
	} {
		s, _ := b.ServerWith(adjust)
		s.Memory.Exhaust()
		servers = append(servers, s)
	}
	scopes := []memd.Scope{user("a"), user("b"), user("c"), user("d"), user("e"), shared()}
	l := &ledger{rows: map[memd.Scope]map[uuid.UUID]*tracked{}}
	for _, s := range scopes {
		l.rows[s] = map[uuid.UUID]*tracked{}
	}
	seed := uint64(time.Now().UnixNano())
	t.Log("seed ", seed)
	var writers, readers sync.WaitGroup
	var searches, over atomic.Int64
	done := make(chan struct{})
	for w := range 4 {
		writers.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			for range 120 {
				if err := b.mutate(r, servers[r.IntN(2)].Memory, scopes[r.IntN(len(scopes))], l); err != nil {
					t.Errorf("writing: %v", err)
				}
			}
		})
	}
	for n, srv := range servers {
		readers.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(100+n)))
			for {
				select {
				case <-done:
					return
				default:
				}
				s := scopes[r.IntN(len(scopes))]
				q := memory.Query{Scope: s, Vector: unit(0), TopK: memd.MaxTopK}
				before, began := l.snapshot(s), b.clock.Now()
				got, err := srv.Memory.Search(t.Context(), b.tenant, q)
				if err != nil {
					t.Errorf("server %d: Search: %v", n, err)
					return
				}
				searches.Add(1)
				if srv.Memory.Streamed(b.tenant.No, provenance.RefOf(b.keys(), s)) {
					over.Add(1)
				}
				if !judge(t, n, before, l.snapshot(s), began, b.clock.Now(), got.Hits) {
					return
				}
			}
		})
	}
	writers.Wait()
	close(done)
	readers.Wait()
	t.Logf("%d searches, %d of them from the database", searches.Load(), over.Load())
	b.clock.advance(time.Second) // past the last expiry
	// At rest every replica agrees with the tables.
	for _, s := range scopes {
		var want []uuid.UUID
		for _, m := range b.all(s) {
			want = append(want, m.ID)
		}
		for n, srv := range servers {
			got := map[uuid.UUID]bool{}
			for _, id := range ids(b.search(srv.Memory, memory.Query{Scope: s}).Hits) {
				got[id] = true
			}
			for _, id := range want {
				if !got[id] {
					t.Errorf("server %d lacks a row", n)
				}
			}
			if len(got) != len(want) {
				t.Errorf("server %d has %d rows, the table %d", n, len(got), len(want))
			}
		}
	}
}

// mutate does one random write and books what it began and what was acknowledged.
func (b *bundle) mutate(r *rand.Rand, m *memory.Service, s memd.Scope, l *ledger) error {
	id, row := l.pick(s)
	change := memory.Change{Text: new("changed")}
	if s.Shared() {
		change.Impersonal = true
	}
	switch p := r.IntN(10); {
	case row != nil && p < 3:
		l.do(func() { row.deleting = true })
		_, err := m.Delete(b.ctx(), b.tenant, s, id, false)
		if err == nil {
			l.do(func() { row.deleted = true })
		}
		return err
	case row != nil && p < 6:
		l.do(func() { change.Expected = row.acked; row.begun = max(row.begun, row.acked+1) })
		got, err := m.Update(b.ctx(), b.tenant, s, id, change)
		if errors.Is(err, memd.ErrVersionConflict) || errors.Is(err, memd.ErrNotFound) {
			return nil // another writer was quicker
		}
		if err == nil {
			l.do(func() { row.acked = max(row.acked, got.Version) })
		}
		return err
	}
	rows := make([]memory.Row, 1+r.IntN(3))
	for i := range rows {
		rows[i] = memory.Row{Scope: s, Kind: memory.KindRaw, Text: "x", Vector: unit(r.IntN(4)), Impersonal: s.Shared()}
		if r.IntN(4) == 0 {
			rows[i].ExpiresAt = b.clock.Now().Add(time.Duration(100+r.IntN(400)) * time.Millisecond)
		}
	}
	added, err := m.Add(b.ctx(), b.tenant, rows)
	if err != nil {
		return err
	}
	l.do(func() {
		for i, a := range added {
			l.rows[s][a.ID] = &tracked{acked: 1, begun: 1, expiresAt: rows[i].ExpiresAt}
		}
	})
	return nil
}

func judge(t *testing.T, server int, before, after map[uuid.UUID]tracked, began, ended time.Time, hits []memory.Hit) bool {
	t.Helper()
	ok := true
	fail := func(format string, args ...any) {
		ok = false
		t.Errorf("server %d: "+format, append([]any{server}, args...)...)
	}
	seen := map[uuid.UUID]bool{}
	for _, h := range hits {
		if seen[h.Memory.ID] {
			fail("a row came twice")
		}
		seen[h.Memory.ID] = true
		was, known := before[h.Memory.ID]
		switch {
		case known && was.deleted:
			fail("a row deleted before the search began")
		case known && h.Memory.Version < was.acked:
			fail("version %d after %d was acknowledged", h.Memory.Version, was.acked)
		case !h.Memory.ExpiresAt.IsZero() && !h.Memory.ExpiresAt.After(began):
			fail("a row expired before the search began")
		}
		if is, ok := after[h.Memory.ID]; ok && h.Memory.Version > is.begun {
			fail("version %d, which nobody wrote", h.Memory.Version)
		}
	}
	for id, was := range before {
		is := after[id]
		if !is.deleting && (was.expiresAt.IsZero() || was.expiresAt.After(ended)) && !seen[id] {
			fail("a row acknowledged before the search began is missing (version %d)", was.acked)
		}
	}
	return ok
}

// A row of a transaction that was in flight while others committed and readers
// read appears as soon as it commits. (A delta "newer than the last one seen"
// loses such rows.)
func TestService_Search_transactionsInFlight(t *testing.T) {
	b := setup(t)
	second, _ := b.Server()
	streaming, _ := b.ServerWith(func(c *node.ServerConfig) { c.MaxScopeRows, c.MaxCodedRows = 1, 1 })
	coded, _ := b.ServerWith(func(c *node.ServerConfig) { c.MaxScopeRows = 1 })
	coded.Memory.Exhaust()
	servers := []*memory.Service{b.m, second.Memory, streaming.Memory, coded.Memory}
	src := b.addOne(raw(user("bob"), "s1", "source"))
	b.addOne(raw(user("ada"), "s1", "first"))
	for round := range 4 {
		release := b.holdLineage()
		late := make(chan memory.Added, 1)
		go func() {
			added, err := b.m.Add(t.Context(), b.tenant, []memory.Row{summary(user("ada"), of(src))})
			if err != nil {
				t.Errorf("the late Add: %v", err)
				added = make([]memory.Added, 1)
			}
			late <- added[0]
		}()
		b.waitFor(`SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
			WHERE c.relname = 'memory_sources' AND NOT l.granted`, 1)
		want := 1 + 3*round + round
		for range 3 {
			b.addOne(raw(user("ada"), "s1", "early"))
			want++
			for _, m := range servers {
				if got := len(b.search(m, memory.Query{Scope: user("ada")}).Hits); got != want {
					t.Errorf("round %d: %d rows while one is in flight, want %d", round, got, want)
				}
			}
		}
		release()
		a := <-late
		for n, m := range servers {
			r := b.search(m, memory.Query{Scope: user("ada"), Vector: unit(1)})
			if len(r.Hits) != want+1 || r.Hits[0].Score != 1 {
				t.Errorf("round %d, server %d: %d rows, want %d; the late row is missing", round, n, len(r.Hits), want+1)
			}
		}
		if _, err := b.m.Get(t.Context(), b.tenant, user("ada"), a.ID, false); err != nil {
			t.Error(err)
		}
	}
}

// holdLineage keeps derived rows from committing after they were inserted,
// until it is released.
func (b *bundle) holdLineage() (release func()) {
	b.t.Helper()
	conn, err := pgx.Connect(b.ctx(), b.DB.URL(""))
	if err != nil {
		b.t.Fatal(err)
	}
	tx, err := conn.Begin(b.ctx())
	if err == nil {
		_, err = tx.Exec(b.ctx(), `LOCK TABLE memd.memory_sources IN SHARE MODE`)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return func() {
		if err := tx.Commit(context.Background()); err != nil {
			b.t.Error(err)
		}
		_ = conn.Close(context.Background())
	}
}

// A scope that grows past the limit of rows and shrinks below it again gives
// the same answers throughout.
func TestService_Search_acrossTheLimit(t *testing.T) {
	b := setup(t)
	few, _ := b.ServerWith(func(c *node.ServerConfig) { c.MaxScopeRows, c.MaxCodedRows = 20, 20 })
	ref := provenance.RefOf(b.keys(), user("ada"))
	var rows []memory.Added
	same := func(streamed bool) {
		t.Helper()
		for range 2 { // the first may find out that it has to change over
			q := memory.Query{Scope: user("ada"), IncludeVectors: true}
			want := b.search(b.m, q)
			if diff := cmp.Diff(want, b.search(few.Memory, q)); diff != "" || len(want.Hits) != len(rows) {
				t.Fatalf("%d rows, %d hits; the two differ:\n%s", len(rows), len(want.Hits), diff)
			}
		}
		if got := few.Memory.Streamed(b.tenant.No, ref); got != streamed {
			t.Errorf("%d rows: streamed = %v", len(rows), got)
		}
	}
	grow := func(n int) {
		for len(rows) < n {
			rows = append(rows, b.addOne(raw(user("ada"), "s1", fmt.Sprint(len(rows)))))
		}
	}
	shrink := func(n int) {
		for len(rows) > n {
			b.delete(user("ada"), rows[len(rows)-1].ID, false)
			rows = rows[:len(rows)-1]
		}
	}
	for range 2 {
		grow(20)
		same(false)
		b.update(user("ada"), rows[0].ID, memory.Change{Expected: b.get(user("ada"), rows[0].ID).Version, Text: new("x")})
		same(false) // changed rows need no room
		grow(21)
		same(true)
		shrink(16)
		same(true)
		shrink(5)
		same(false)
	}
}

// What a reader got that asked only for changes is no scope by itself when the
// scope was emptied meanwhile, and what was read before an erasure is not taken
// after it.
func TestService_Search_emptiedMeanwhile(t *testing.T) {
	b := setup(t)
	ref := provenance.RefOf(b.keys(), user("ada"))
	b.add(raw(user("ada"), "s1", "1"), raw(user("ada"), "s1", "2"))
	for name, between := range map[string]func(){
		"emptied":            func() { b.m.Empty(b.tenant.No, ref) },
		"evicted":            func() { b.m.Evict(b.tenant.No, ref) },
		"emptied and loaded": func() { b.m.Empty(b.tenant.No, ref); b.search(b.m, memory.Query{Scope: user("ada")}) },
	} {
		t.Run(name, func(t *testing.T) {
			b.search(b.m, memory.Query{Scope: user("ada")})
			if ok, err := b.m.Fill(t.Context(), b.keys(), b.tenant, ref, between); ok || err != nil {
				t.Errorf("applied = %v, %v", ok, err)
			}
			if n := len(b.search(b.m, memory.Query{Scope: user("ada")}).Hits); n != 2 {
				t.Errorf("%d hits", n)
			}
		})
	}
	t.Run("a cold load across a new epoch", func(t *testing.T) {
		b.m.Evict(b.tenant.No, ref)
		refresh := func() {
			if err := b.m.Refresh(t.Context(), b.tenant.No); err != nil {
				t.Error(err)
			}
		}
		if ok, err := b.m.Fill(t.Context(), b.keys(), b.tenant, ref, refresh); ok || err != nil {
			t.Errorf("applied = %v, %v", ok, err)
		}
	})
	if ok, err := b.m.Fill(t.Context(), b.keys(), b.tenant, ref, func() {}); !ok || err != nil {
		t.Errorf("undisturbed: applied = %v, %v", ok, err)
	}
}

// Many who search a cold scope at once have it read from the database once.
func TestService_Search_loadsOnce(t *testing.T) {
	b := setup(t)
	for range 3 {
		b.add(raw(user("ada"), "s1", "1"), raw(user("ada"), "s1", "2"))
	}
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
	const readers = 6
	waiting := `SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation WHERE c.relname = 'memories' AND NOT l.granted`
	var started, wg sync.WaitGroup
	started.Add(readers)
	for range readers {
		wg.Go(func() {
			started.Done()
			if n := len(b.search(b.m, memory.Query{Scope: user("ada")}).Hits); n != 6 {
				t.Errorf("%d hits", n)
			}
		})
	}
	started.Wait()
	b.waitFor(waiting, 1)
	for range 100 {
		if n := b.count(waiting); n != 1 {
			t.Fatalf("%d read the scope at once", n)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
}

// Whoever is forgotten leaves the memory of every server with the new key
// epoch, though nobody searches there again, and the vectors are overwritten.
func TestService_Refresh_forgetsInMemory(t *testing.T) {
	b := setup(t)
	second, _ := b.Server()
	src := b.add(raw(user("ada"), "s1", "hers"), raw(user("bob"), "s1", "his"))
	b.addOne(summary(user("bob"), of(src[0])))
	k := b.keys()
	ada, bob := provenance.RefOf(k, user("ada")), provenance.RefOf(k, user("bob"))
	type held struct{ ada, bob [][]float32 }
	var before []held
	for _, m := range []*memory.Service{b.m, second.Memory} {
		b.search(m, memory.Query{Scope: user("ada")})
		b.search(m, memory.Query{Scope: user("bob")})
		h := held{m.Vectors(b.tenant.No, ada), m.Vectors(b.tenant.No, bob)}
		if len(h.ada) != 1 || len(h.bob) != 2 || zero(h.ada[0]) || zero(h.bob[0]) || zero(h.bob[1]) {
			t.Fatalf("in memory before: %v", h)
		}
		before = append(before, h)
	}
	b.ForgetUser(b.srv, b.tenant, "app", "ada")
	for n, m := range []*memory.Service{b.m, second.Memory} {
		if v := m.Vectors(b.tenant.No, ada); len(v) != 0 {
			t.Errorf("server %d still holds %d vectors", n, len(v))
		}
		if !zero(before[n].ada[0]) {
			t.Errorf("server %d left the forgotten user's vector", n)
		}
		if zero(before[n].bob[0]) == zero(before[n].bob[1]) || len(m.Vectors(b.tenant.No, bob)) != 1 {
			t.Errorf("server %d has %v of the neighbour's", n, before[n].bob)
		}
	}
}

func zero(v []float32) bool {
	for _, x := range v {
		if x != 0 {
			return false
		}
	}
	return true
}
