package attack_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/memory"
)

const (
	people    = 12
	perCall   = 5 * time.Second
	heapLimit = 512 << 20
)

// TestEndurance has people add, update, delete, search, talk, save files and be
// forgotten on two replicas, and operators make archives, compact and expire, while PostgreSQL is restarted and killed and the key service goes
// away. What was acknowledged must be there, what was forgotten must not, at
// every search; errors are of the kinds that say "try again"; and in the end
// nothing is left over: no memory, no connection, no goroutine.
func TestEndurance(t *testing.T) {
	s := seed(t)
	lasts := length(12 * time.Second)
	r := build(t, 2)
	ctx, stop := context.WithTimeout(t.Context(), lasts)
	defer stop()
	r.stop = stop

	var group sync.WaitGroup
	var crowd [people]*person
	for i := range crowd {
		crowd[i] = &person{
			r: r, rng: rand.New(rand.NewPCG(s, uint64(i))), scope: memd.Scope{App: "app", UserID: fmt.Sprintf("user-%d", i)},
			live: map[uuid.UUID]int64{}, unsure: map[uuid.UUID]bool{}, dead: map[uuid.UUID]bool{}, talks: talks{sessions: map[string]*talk{}},
		}
		group.Go(func() { crowd[i].liveOn(ctx) })
	}
	var operated int64
	group.Go(func() { operated = r.clerk(ctx, rand.New(rand.NewPCG(s, 1<<33))) })
	troubles := r.trouble(ctx, rand.New(rand.NewPCG(s, 1<<32)))
	group.Wait()

	var total tally
	for _, p := range crowd {
		p.check(t.Context(), "at the end")
		p.checkTalks(t.Context(), "at the end")
		total.add(&p.tally)
	}
	t.Logf("%v with %d troubles and %d acts of operators: %s", lasts, troubles, operated, &total)
	if operated == 0 || total.said.Load() == 0 || total.forgotten.Load() == 0 || total.added.Load() == 0 || total.checked.Load() == 0 {
		t.Error("hardly anything happened: the test would be vacuous")
	}
	r.bounded(t)
}

// trouble makes trouble until ctx ends and returns how often.
func (r *rig) trouble(ctx context.Context, rng *rand.Rand) int {
	deadline, _ := ctx.Deadline()
	every := max(2*time.Second, time.Until(deadline)/40)
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return n
		case <-time.After(every/2 + rand.N(every)):
		}
		switch rng.IntN(3) {
		case 0:
			r.restartPostgres(false)
		case 1:
			r.restartPostgres(true)
		case 2:
			r.kms.Stop()
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			r.kms.Restart(r.t, 0)
		}
	}
}

// tally counts what people did.
type tally struct {
	added, updated, deleted, said, checked, forgotten, retried atomic.Int64
}

func (a *tally) add(b *tally) {
	a.added.Add(b.added.Load())
	a.updated.Add(b.updated.Load())
	a.deleted.Add(b.deleted.Load())
	a.said.Add(b.said.Load())
	a.checked.Add(b.checked.Load())
	a.forgotten.Add(b.forgotten.Load())
	a.retried.Add(b.retried.Load())
}

func (a *tally) String() string {
	return fmt.Sprintf("%d rows added, %d updated, %d deleted, %d events and files, %d answers checked, %d erasures, %d calls to be tried again",
		a.added.Load(), a.updated.Load(), a.deleted.Load(), a.said.Load(), a.checked.Load(), a.forgotten.Load(), a.retried.Load())
}

// person is a user with one thing going on at a time, so that what must be
// found is known: live rows at their versions. unsure are rows of calls that
// failed half-way; dead ones must never be seen again.
type person struct {
	tally
	r      *rig
	rng    *rand.Rand
	scope  memd.Scope
	live   map[uuid.UUID]int64
	unsure map[uuid.UUID]bool
	dead   map[uuid.UUID]bool
	talks  talks
	events int
	life   int
}

func (p *person) liveOn(ctx context.Context) {
	for ctx.Err() == nil {
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), perCall)
		switch n := p.rng.IntN(100); {
		case n < 30:
			p.add(call)
		case n < 38:
			p.update(call)
		case n < 44:
			p.delete(call)
		case n < 54:
			p.talk(call)
		case n < 60:
			p.save(call)
		case n < 68:
			p.checkTalks(call, "under way")
		case n < 98:
			p.check(call, "under way")
		default:
			p.forget(ctx)
		}
		cancel()
	}
}

func (p *person) server() *node.Server { return p.r.servers[p.rng.IntN(len(p.r.servers))] }

func (p *person) store() *memory.Service { return p.server().Memory }

// passing reports whether a call failed in a way that passes, and fails the
// test if it failed in another.
func (p *person) passing(what string, err error) bool {
	if err == nil {
		return false
	}
	p.retried.Add(1)
	if !memd.Transient(err) && !errors.Is(err, context.DeadlineExceeded) {
		p.r.t.Errorf("%s: not an error to try again: %v", what, err)
		p.r.stop() // once is enough
	}
	return true
}

func (p *person) vector() []float32 {
	v := make([]float32, p.r.tenant.Dimension)
	for i := range v {
		v[i] = float32(p.rng.NormFloat64()) + 0.01
	}
	return v
}

func (p *person) add(ctx context.Context) {
	rows := make([]memory.Row, 1+p.rng.IntN(8))
	for i := range rows {
		p.events++
		rows[i] = memory.Row{
			Scope: p.scope, SessionID: fmt.Sprintf("s%d of life %d", p.rng.IntN(3), p.life), Kind: memory.KindRaw, Text: "words", Vector: p.vector(),
			EventID: fmt.Sprint(p.events), SourceTime: time.Now(),
		}
	}
	// An event can be added again until it is acknowledged, so nothing stays
	// unsure for long.
	for {
		added, err := p.store().Add(ctx, p.r.tenant, rows)
		if p.passing("Add", err) {
			if ctx.Err() != nil {
				p.abandon(rows)
				return
			}
			continue
		}
		for _, a := range added {
			p.live[a.ID] = a.Version
			p.added.Add(1)
		}
		return
	}
}

// abandon gives up on events that may or may not have been stored: whatever
// else is found of this user from now on may be one of them.
func (p *person) abandon(rows []memory.Row) {
	for range rows {
		p.unsure[uuid.Nil] = true
	}
}

func (p *person) any() (uuid.UUID, int64, bool) {
	for id, v := range p.live {
		return id, v, true
	}
	return uuid.Nil, 0, false
}

func (p *person) update(ctx context.Context) {
	id, version, ok := p.any()
	if !ok {
		return
	}
	text, now := "other words", time.Now()
	m, err := p.store().Update(ctx, p.r.tenant, p.scope, id, memory.Change{Expected: version, Text: &text, SourceTime: &now})
	switch {
	case p.passing("Update", err):
		delete(p.live, id)
		p.unsure[id] = true // there, at one version or the next
	default:
		p.live[id] = m.Version
		p.updated.Add(1)
	}
}

func (p *person) delete(ctx context.Context) {
	id, _, ok := p.any()
	if !ok {
		return
	}
	_, err := p.store().Delete(ctx, p.r.tenant, p.scope, id, false)
	delete(p.live, id)
	if p.passing("Delete", err) {
		p.unsure[id] = true
		return
	}
	p.dead[id] = true
	p.deleted.Add(1)
}

// check searches, on either replica, and compares.
func (p *person) check(ctx context.Context, when string) {
	var got memory.Result
	for {
		var err error
		got, err = p.store().Search(ctx, p.r.tenant, memory.Query{Scope: p.scope, Vector: p.vector(), TopK: memd.MaxTopK})
		if !p.passing("Search", err) {
			break
		}
		if ctx.Err() != nil {
			return
		}
	}
	p.checked.Add(1)
	seen := map[uuid.UUID]bool{}
	for _, h := range got.Hits {
		m := h.Memory
		seen[m.ID] = true
		version, known := p.live[m.ID]
		switch {
		case p.dead[m.ID]:
			p.r.t.Errorf("%s: a deleted or forgotten row is found", when)
		case known && m.Version != version:
			p.r.t.Errorf("%s: a row has version %d instead of %d", when, m.Version, version)
		case !known && !p.unsure[m.ID] && !p.unsure[uuid.Nil]:
			p.r.t.Errorf("%s: a row is found that was never acknowledged", when)
		}
	}
	if len(p.live) > memd.MaxTopK {
		return
	}
	for id := range p.live {
		if !seen[id] {
			p.r.t.Errorf("%s: an acknowledged row is not found (%d of %d are)", when, len(seen), len(p.live))
			return
		}
	}
}

// forget forgets the user and tries until that is done.
func (p *person) forget(ctx context.Context) {
	request := uuid.New()
	for {
		if p.r.t.Failed() {
			return
		}
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		s := p.r.servers[p.rng.IntN(len(p.r.servers))].Erasure
		report, err := s.ForgetUser(call, erasure.Caller{Tenant: p.r.tenant.No, Epoch: p.r.tenant.Epoch}, p.scope.App, p.scope.UserID, request)
		cancel()
		if !p.passing("ForgetUser", err) && report.State >= erasure.StateDone {
			break
		}
	}
	for id := range p.live {
		p.dead[id] = true
	}
	for id := range p.unsure {
		if id != uuid.Nil {
			p.dead[id] = true
		}
	}
	clear(p.live)
	clear(p.unsure)
	p.talks.forgotten()
	p.forgotten.Add(1)
	p.life++ // who returns has other sessions: the old ones are dead
}

// bounded looks at what is left when nothing goes on any more.
func (r *rig) bounded(t *testing.T) {
	conn, err := pgx.Connect(t.Context(), r.pg.URL("memd", ""))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var n, most int
	// A pool, a listener and the journal's for each process, what compacts, and
	// this connection.
	const journal, compacting = 3, 4
	most = (len(r.servers)+1)*(maxConns+1+journal) + compacting + 1
	if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	if n > most {
		t.Errorf("%d connections, more than %d", n, most)
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if m.HeapAlloc > heapLimit {
		t.Errorf("%d MB on the heap", m.HeapAlloc>>20)
	}
	t.Logf("%d connections, %d MB on the heap, %d goroutines", n, m.HeapAlloc>>20, runtime.NumGoroutine())
}
