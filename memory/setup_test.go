package memory_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/tenants"
)

// bundle is a memd with one server and one tenant, and what tests ask it.
type bundle struct {
	*memdtest.Stack
	t      testing.TB
	srv    *node.Server
	m      *memory.Service
	tenant memory.Tenant
	clock  *clock
}

// clock is a clock that a test moves. It starts at the machine's time.
type clock struct {
	mu    sync.Mutex
	ahead time.Duration
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return memd.SystemClock{}.Now().Add(c.ahead)
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
}

func setup(t testing.TB, adjust ...func(*tenants.Policy)) *bundle {
	t.Helper()
	c := &clock{}
	b := &bundle{Stack: memdtest.Start(t, memdtest.WithClock(c)), t: t, clock: c}
	b.srv, _ = b.Server()
	b.m = b.srv.Memory
	p := memdtest.Policy()
	for _, f := range adjust {
		f(&p)
	}
	b.tenant = b.Tenant("acme", p)
	return b
}

func lexical(p *tenants.Policy) { p.Embedder, p.Dimension = tenants.EmbedderLexical, 64 }

func (b *bundle) ctx() context.Context { return b.t.Context() }

func (b *bundle) add(rows ...memory.Row) []memory.Added {
	b.t.Helper()
	out, err := b.m.Add(b.ctx(), b.tenant, rows)
	if err != nil {
		b.t.Fatalf("Add: %v", err)
	}
	return out
}

func (b *bundle) addOne(r memory.Row) memory.Added {
	b.t.Helper()
	return b.add(r)[0]
}

func (b *bundle) get(scope memd.Scope, id uuid.UUID) memory.Memory {
	b.t.Helper()
	m, err := b.m.Get(b.ctx(), b.tenant, scope, id, true)
	if err != nil {
		b.t.Fatalf("Get: %v", err)
	}
	return m
}

func (b *bundle) search(m *memory.Service, q memory.Query) memory.Result {
	b.t.Helper()
	if q.TopK == 0 {
		q.TopK = memd.MaxTopK
	}
	if q.Vector == nil && q.Text == "" {
		q.Vector = unit(0)
	}
	r, err := m.Search(b.ctx(), b.tenant, q)
	if err != nil {
		b.t.Fatalf("Search: %v", err)
	}
	return r
}

func (b *bundle) update(scope memd.Scope, id uuid.UUID, c memory.Change) memory.Memory {
	b.t.Helper()
	m, err := b.m.Update(b.ctx(), b.tenant, scope, id, c)
	if err != nil {
		b.t.Fatalf("Update: %v", err)
	}
	return m
}

// all lists a whole scope.
func (b *bundle) all(scope memd.Scope) []memory.Memory {
	b.t.Helper()
	var out []memory.Memory
	token := ""
	for {
		p, err := b.m.List(b.ctx(), b.tenant, scope, memory.Filter{}, memd.MaxPageSize, token, true)
		if err != nil {
			b.t.Fatalf("List: %v", err)
		}
		out = append(out, p.Memories...)
		if token = p.Next; token == "" {
			return out
		}
	}
}

// numbers returns the contribution of a session, or of a user's own scope.
func (b *bundle) number(scope memd.Scope, session string) memd.Contribution {
	b.t.Helper()
	k := b.keys()
	conn, err := pgx.Connect(b.ctx(), b.DB.URL(""))
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	found, err := provenance.New(b.clock).Find(b.ctx(), conn, k, []provenance.Want{{Scope: scope, Session: session}})
	if err != nil {
		b.t.Fatalf("Find: %v", err)
	}
	return found[0]
}

func (b *bundle) keys() *shred.Keys { return b.Keys(b.srv, b.tenant) }

// closure reads a row's contributions from the tables, sorted.
func (b *bundle) closure(id uuid.UUID) []memd.Contribution {
	b.t.Helper()
	out := query(b, pgx.RowToStructByPos[memd.Contribution], `
		SELECT contributor_no, contributor_session FROM memd.memories WHERE memory_id = $1
		UNION ALL SELECT contributor_no, contributor_session FROM memd.memory_contributions WHERE memory_id = $1`, id)
	slices.SortFunc(out, memd.Contribution.Compare)
	return out
}

func (b *bundle) month(id uuid.UUID) memd.Month {
	b.t.Helper()
	return query(b, pgx.RowTo[memd.Month], `SELECT month FROM memd.memories WHERE memory_id = $1`, id)[0]
}

func (b *bundle) count(sql string, args ...any) int64 {
	b.t.Helper()
	return query(b, pgx.RowTo[int64], sql, args...)[0]
}

// query asks the database as its superuser.
func query[T any](b *bundle, to pgx.RowToFunc[T], sql string, args ...any) []T {
	b.t.Helper()
	conn, err := pgx.Connect(b.ctx(), b.DB.URL(""))
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	rows, err := conn.Query(b.ctx(), sql, args...)
	if err != nil {
		b.t.Fatal(err)
	}
	out, err := pgx.CollectRows(rows, to)
	if err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
	return out
}

func ids(hits []memory.Hit) []uuid.UUID {
	out := make([]uuid.UUID, len(hits))
	for i, h := range hits {
		out[i] = h.Memory.ID
	}
	return out
}

// unit is a unit vector of the test policy's four components.
func unit(i int) []float32 {
	v := make([]float32, 4)
	v[i] = 1
	return v
}

func raw(scope memd.Scope, session, text string) memory.Row {
	return memory.Row{Scope: scope, SessionID: session, Kind: memory.KindRaw, Text: text, Vector: unit(0)}
}

func summary(scope memd.Scope, sources ...memory.Source) memory.Row {
	return memory.Row{Scope: scope, Kind: memory.KindSummary, Text: "summary", Vector: unit(1), Sources: sources}
}

func of(a memory.Added) memory.Source { return memory.Source{MemoryID: a.ID, Version: a.Version} }

func shared() memd.Scope { return memd.Scope{App: "app"} }

func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error = %v, want %v", err, want)
	}
}

func day(year int, month time.Month, d int) time.Time {
	return time.Date(year, month, d, 12, 0, 0, 0, time.UTC)
}

// sweep deletes what has expired by the database's rows and the test's clock.
func (b *bundle) sweep() {
	b.t.Helper()
	err := b.DB.Pool(node.WorkerRole).InTx(b.ctx(), func(tx pgx.Tx) error {
		_, err := memory.SweepExpired(b.ctx(), tx, b.clock.Now(), 1000)
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
}
