package memory_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/provenance"
)

// state is what a scope holds: the version of each row that has not expired.
type state map[uuid.UUID]int64

// load is two replicas under load. A round ends with nobody at work.
type load struct {
	*bundle
	seed    uint64
	servers []*node.Server
	scopes  []memd.Scope
	refs    map[memd.Scope]memd.Ref

	mu sync.Mutex
	// rows are those that were acknowledged in an earlier round: what is added in a
	// round is not deleted in it, so a row that was there for a moment only cannot be.
	rows map[memd.Scope]state
	// by says who contributed a row of the shared scope.
	by map[uuid.UUID]memd.Scope

	leaving memd.Scope // whoever is forgotten in this round

	searches, exact atomic.Int64
}

const sqlCommitted = `
SELECT m.memory_id, m.version FROM memd.memories m
JOIN memd.subjects s ON s.tenant_no = m.tenant_no AND s.subject_no = m.owner_no
WHERE s.user_ref = $1 AND (m.expires_at IS NULL OR m.expires_at > $2)`

// committed asks the tables.
func (l *load) committed(conn *pgx.Conn, s memd.Scope) state {
	l.t.Helper()
	ref := l.refs[s]
	rows, err := conn.Query(l.ctx(), sqlCommitted, ref[:], l.clock.Now())
	if err != nil {
		l.t.Error(err)
		return nil
	}
	out := state{}
	var id uuid.UUID
	var version int64
	if _, err := pgx.ForEachRow(rows, []any{&id, &version}, func() error { out[id] = version; return nil }); err != nil {
		l.t.Error(err)
	}
	return out
}

// answer is what a replica finds in a scope. Every row has the text of its version.
func (l *load) answer(srv *node.Server, s memd.Scope) state {
	l.t.Helper()
	got, err := srv.Memory.Search(l.ctx(), l.tenant, memory.Query{Scope: s, Vector: unit(0), TopK: memd.MaxTopK})
	if err != nil {
		l.t.Errorf("Search: %v", err)
	}
	l.searches.Add(1)
	out := state{}
	for _, h := range got.Hits {
		if _, twice := out[h.Memory.ID]; twice {
			l.t.Error("a row came twice")
		}
		if want := text(h.Memory.Version); h.Memory.Text != want {
			l.t.Errorf("version %d has the text of another: %q", h.Memory.Version, h.Memory.Text)
		}
		out[h.Memory.ID] = h.Memory.Version
	}
	return out
}

func text(version int64) string { return fmt.Sprint("text of version ", version) }

// look searches between two looks at the tables. What these agree on is in the
// answer as it is there; when nothing was committed in between, that is all of it.
func (l *load) look(conn *pgx.Conn, srv *node.Server, s memd.Scope) {
	l.t.Helper()
	before := l.committed(conn, s)
	got := l.answer(srv, s)
	after := l.committed(conn, s)
	for id, version := range got {
		was, there := before[id]
		is, stays := after[id]
		switch {
		case l.leaves(s, id): // It goes at a moment that the tables do not tell.
		case !there && !stays:
			l.t.Errorf("%v: a row is found that is in neither look at the tables", s)
		case version != was && version != is && (!there || !stays || version < was || version > is):
			l.t.Errorf("%v: version %d is found, and the tables have %d and then %d", s, version, was, is)
		}
	}
	for id, version := range before {
		if after[id] == version && got[id] != version && !l.leaves(s, id) {
			l.t.Errorf("%v: a row that was there all the time is not found", s)
		}
	}
	if maps.Equal(before, after) && maps.Equal(before, got) {
		l.exact.Add(1)
	}
}

// leaves says whether a row is of whoever is being forgotten.
func (l *load) leaves(s memd.Scope, id uuid.UUID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leaving != (memd.Scope{}) && (s == l.leaving || l.by[id] == l.leaving)
}

// write does one random write by a replica.
func (l *load) write(r *rand.Rand, srv *node.Server) {
	s := l.scopes[r.IntN(len(l.scopes))]
	id, version, old := l.pick(r, s)
	change := memory.Change{Expected: version, Text: new(text(version + 1)), SourceTime: new(l.clock.Now()), Impersonal: s.Shared()}
	var err error
	switch p := r.IntN(10); {
	case old && p < 2:
		if _, err = srv.Memory.Delete(l.ctx(), l.tenant, s, id, false); err == nil {
			l.do(func() { delete(l.rows[s], id) })
		}
	case old && p < 5:
		var m memory.Memory
		if m, err = srv.Memory.Update(l.ctx(), l.tenant, s, id, change); err == nil {
			l.do(func() { l.rows[s][id] = m.Version })
		}
	default:
		err = l.addTo(r, srv, s)
	}
	switch {
	case err == nil, errors.Is(err, memd.ErrVersionConflict), errors.Is(err, memd.ErrNotFound), errors.Is(err, memd.ErrMemoryDeleted):
	case errors.Is(err, memd.ErrFenced), errors.Is(err, memd.ErrErasedBefore), errors.Is(err, memd.ErrStale), memd.Transient(err):
		if l.leaving == (memd.Scope{}) {
			l.t.Errorf("writing while nobody is forgotten: %v", err)
		}
	default:
		l.t.Errorf("writing: %v", err)
	}
}

func (l *load) do(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// pick returns a row of an earlier round.
func (l *load) pick(r *rand.Rand, s memd.Scope) (id uuid.UUID, version int64, ok bool) {
	l.do(func() {
		n := len(l.rows[s])
		if n == 0 {
			return
		}
		at := r.IntN(n)
		for id, version = range l.rows[s] {
			if at--; at < 0 {
				ok = true
				return
			}
		}
	})
	return id, version, ok
}

func (l *load) addTo(r *rand.Rand, srv *node.Server, s memd.Scope) error {
	rows := make([]memory.Row, 1+r.IntN(4))
	by := l.scopes[r.IntN(len(l.scopes)-1)]
	for i := range rows {
		rows[i] = memory.Row{Scope: s, Kind: memory.KindRaw, Text: text(1), Vector: unit(r.IntN(4)), SourceTime: l.clock.Now()}
		if s.Shared() {
			rows[i].Contributor = &memory.Contributor{UserID: by.UserID}
		}
		if r.IntN(4) == 0 {
			rows[i].ExpiresAt = l.clock.Now().Add(time.Duration(1+r.IntN(3)) * time.Hour)
		}
	}
	added, err := srv.Memory.Add(l.ctx(), l.tenant, rows)
	if err == nil && s.Shared() {
		l.do(func() {
			for _, a := range added {
				l.by[a.ID] = by
			}
		})
	}
	return err
}

// round has writers and readers of both replicas at work, and perhaps somebody
// forgotten by one of them. When all have ended, both answer what the tables have.
func (l *load) round(n int, conns []*pgx.Conn) {
	l.t.Helper()
	var group sync.WaitGroup
	var writing atomic.Int64
	for w := range 4 {
		writing.Add(1)
		group.Go(func() {
			defer writing.Add(-1)
			r := rand.New(rand.NewPCG(l.seed, uint64(100*n+w)))
			for range 8 {
				l.write(r, l.servers[w%2])
			}
		})
	}
	for i, conn := range conns[:len(conns)-1] {
		group.Go(func() {
			r := rand.New(rand.NewPCG(l.seed, uint64(100*n+50+i)))
			for range 4 {
				l.look(conn, l.servers[i%2], l.scopes[r.IntN(len(l.scopes))])
			}
			for writing.Load() > 0 {
				l.look(conn, l.servers[i%2], l.scopes[r.IntN(len(l.scopes))])
			}
		})
	}
	if l.leaving != (memd.Scope{}) {
		group.Go(func() { l.ForgetUser(l.servers[n%2], l.tenant, l.leaving.App, l.leaving.UserID) })
	}
	group.Wait()
	for _, s := range l.scopes {
		want := l.committed(conns[len(conns)-1], s)
		for i, srv := range l.servers {
			if got := l.answer(srv, s); !maps.Equal(want, got) {
				l.t.Errorf("round %d: replica %d finds %d rows of %v, the tables have %d: %v and %v", n, i, len(got), s, len(want), got, want)
			}
		}
		l.rows[s] = want
	}
}

// Two replicas under load answer every search with exactly the rows that are
// committed, at the versions that are: while rows are added, updated and deleted
// by both, expire, and users are forgotten.
func TestReplicas_AnswerWithExactlyWhatIsCommitted(t *testing.T) {
	b := setup(t)
	other, _ := b.Server()
	l := &load{
		bundle: b, seed: uint64(time.Now().UnixNano()), servers: []*node.Server{b.srv, other},
		scopes: []memd.Scope{user("a"), user("b"), user("c"), shared()}, // the shared one last
		refs:   map[memd.Scope]memd.Ref{}, rows: map[memd.Scope]state{}, by: map[uuid.UUID]memd.Scope{},
	}
	t.Log("seed ", l.seed)
	for _, s := range l.scopes {
		l.refs[s], l.rows[s] = provenance.RefOf(b.keys(), s), state{}
	}
	var conns []*pgx.Conn
	for range 5 {
		conn, err := pgx.Connect(t.Context(), b.DB.URL(""))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		conns = append(conns, conn)
	}
	for n := range 6 {
		l.leaving = memd.Scope{}
		if n%3 == 2 {
			l.leaving = l.scopes[n/3%3]
		}
		l.round(n, conns)
		b.clock.advance(time.Hour) // Some of what is there expires, in memory as well.
	}
	t.Logf("%d searches, %d of them with nothing committed in between", l.searches.Load(), l.exact.Load())
	if l.exact.Load() < 50 {
		t.Error("hardly any answer could be compared: the test would be vacuous")
	}
}
